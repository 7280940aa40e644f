"""The ``seqdata`` command."""

from seqdata.cli.app import main

__all__ = ["main"]
