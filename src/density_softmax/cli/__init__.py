"""The command line."""

from density_softmax.cli.main import main

__all__ = ["main"]
