"""What ``seqdata doctor`` looks at, one file per place."""
