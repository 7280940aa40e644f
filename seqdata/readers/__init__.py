"""Input formats of ``seqdata write``, which make sequences of files: one kind per module."""
