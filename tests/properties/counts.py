"""How often a property is tried: few times at every change, thousands of times at night.

The cases of a change are the same on every machine (the profile ``ci`` draws from no seed of its
own), and each planted bug that a property has to find is found by them: who lowers a count plants
those again (``python -m tests.mutants.run``).
"""

from hypothesis import settings

AT_NIGHT = 100
"""A profile of more examples than these is that of the night."""


def examples(factor, here):
    """Return the settings of a property.

    Args:
        factor: At night, of the profile's number of examples.
        here: Examples at every change.
    """
    profile = settings().max_examples
    return settings(max_examples=int(factor * profile) if profile > AT_NIGHT else here)
