"""Faults to inject, and what must come of them: for the core's own stores, and for plugins.

``damage`` changes files, ``processes`` ends or holds worker processes, ``training`` does so to one
of several ranks, ``limits`` takes resources away: one function per fault, each saying what must
happen. ``reading`` plays a dataset through and says what came of it, ``children`` does so in a
process of its own, with a bound, and looks for what was left behind. ``fault_case`` lists all
faults, ``matrix`` runs them: ``python -m seqdata_testing.faults``. Nothing here needs pytest.
"""
