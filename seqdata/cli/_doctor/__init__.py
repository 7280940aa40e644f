"""Checks of ``seqdata doctor``, one file per subject."""
