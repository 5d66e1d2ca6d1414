"""The commands of `python -m bench`: each reads its options, measures, shows and writes."""
