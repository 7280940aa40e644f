"""Input formats of ``seqdata write``, one kind each: files in, sequences out."""
