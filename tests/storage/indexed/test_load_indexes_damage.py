"""Damage of files of a format, and of their indexes: nothing silent, nothing unbounded.

An index that is damaged or gone is made again, which the matrix of faults knows of no other data;
so what must come is not compared here, but that it is never a wrong value.
"""

import pytest

from seqdata_testing.faults import cases_damage
from seqdata_testing.faults.matrix import run_case
from tests.storage.indexed.records import TARGET

CASES = [
    case
    for case in cases_damage.cases(TARGET, quick=True)
    if case.tries is not None and case.way.split(", ")[2] == "read" and case.fault != "D9"
]


def name(case):
    return f"{case.fault}: {case.way}".replace(", ", ",").replace(" ", "-")


def every_case():
    """Return the cases; those with other options than most people's are of the night."""
    for case in CASES:
        at_night = "verify first_read" not in case.way
        marks = [pytest.mark.nightly] * at_night
        yield pytest.param(case, marks=marks, id=name(case))


@pytest.mark.slow
@pytest.mark.parametrize("case", list(every_case()))
def test_a_fault_is_never_a_wrong_value(case):
    result = run_case(case)
    assert result.silent == result.stuck == 0
    assert result.names
    assert not set(result.names) - {
        "whole", "CorruptSampleError", "CorruptShardError", "FingerprintMismatch",
        "MissingShardError",
    }  # fmt: skip
