"""The strategies draw what they say, and say what is missing without hypothesis."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from seqdata_testing.generators import MOST_SEQUENCES, cases, counts, indexes, lengths, policies
from seqdata_testing.waiting import patient
from tests.preloaded import python

BLOCKED = "import sys; sys.modules['hypothesis'] = None; "


def in_python(code, program=sys.executable):
    return subprocess.run(
        [program, "-c", code], capture_output=True, text=True, timeout=patient(), check=False
    )


def test_generators_without_hypothesis_name_what_to_install():
    done = in_python(BLOCKED + "import seqdata_testing.generators")
    assert "hypothesis is not installed. Run pip install hypothesis" in done.stderr


@pytest.mark.slow
def test_all_other_checks_need_neither_pytest_nor_hypothesis():
    code = "; sys.modules['pytest'] = None; import seqdata_testing.plans, seqdata_testing.contract"
    code += ", seqdata_testing.sharing, seqdata_testing.lanes, seqdata_testing.loaders"
    done = in_python(BLOCKED.rstrip("; ") + code, python())
    assert done.returncode == 0, done.stderr


def test_checks_of_plans_and_stores_load_no_torch():
    code = "import sys, seqdata_testing.plans, seqdata_testing.sharing, seqdata_testing.contract"
    done = in_python(code + "; sys.exit('torch' in sys.modules)")
    assert done.returncode == 0, done.stderr


@settings(max_examples=50)
@given(st.integers(0, 400).flatmap(lambda count: st.tuples(st.just(count), lengths(count))))
def test_lengths_are_as_many_as_asked_for_and_none_is_negative(drawn):
    count, made = drawn
    assert len(made) == count
    assert made.dtype == np.int64
    assert (made >= 0).all()


def test_a_giant_holds_half_of_all_timesteps():
    made = find(lengths(30), lambda made: 2 * made.max() >= made.sum() > 0)
    assert len(made) == 30


def test_fewer_sequences_than_ranks_are_drawn():
    assert find(counts(7), lambda count: 0 < count < 7) == 1
    assert find(counts(7), lambda count: count == 0) == 0
    assert find(counts(7), lambda count: count == 8) == 8


@settings(max_examples=100)
@given(cases(), policies(), indexes(most=20))
def test_whatever_is_drawn_can_be_planned(case, policy, index):
    assert len(case.index) <= MOST_SEQUENCES
    assert len(case.policy.plan(case.index, seed=case.seed, epoch=case.epoch)) >= 0
    policy.plan(index, seed=0, epoch=0)
