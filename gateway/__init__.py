"""How decisions are served: HTTP, queue, engines, metrics and the command line."""

__version__ = "0.1.0"
