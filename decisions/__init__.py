"""What a decision is: pure and synchronous, without sockets, clock, environment or randomness but a seed passed in.

In the order of the story: `protocol` names the nouns, `schema` validates them, `labels`, `isolation` and `prompt` say
how a question is shown, `flow` and `bracket` how its distribution comes about, `canvas` how slots become reads,
`plan` hands the reads out, `distribution`, `calibrate` and `combine` turn readouts into answers.
"""
