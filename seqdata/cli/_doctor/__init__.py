"""The checks of ``seqdata doctor``, one file per subject."""
