"""Fault injection with expected outcomes, for the stores of the core and for plugins.

``damage`` changes files, ``processes`` ends or stops worker processes, ``training`` does so to one
of several ranks, ``limits`` limits resources: one function per fault, whose docstring has the
expected outcome. ``reading`` plays a dataset and returns the outcome; ``children`` does so in a
child process with a time limit, and looks for leftovers. ``fault_case`` lists all faults,
``matrix`` runs them: ``python -m seqdata_testing.faults``. None of it needs pytest.
"""
