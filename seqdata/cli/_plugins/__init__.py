"""Packages that ``seqdata plugins new`` writes, and the checks of ``seqdata plugins check``."""
