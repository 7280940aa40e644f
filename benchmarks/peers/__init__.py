"""How each loader is written and read in the benchmark: a module each, of at most 60 lines.

If yours is used wrongly or slower than it could be, its module is the place to correct it.
"""
