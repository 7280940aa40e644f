"""The ``seqdata`` command; this file hands its entry on."""

from seqdata.cli.app import main

__all__ = ["main"]
