"""A state comes back from its dict, and damage of it is refused."""

from dataclasses import fields

import pytest

from seqdata.errors import ResumeError
from seqdata.plan import PLAN_VERSION
from seqdata.resume_state import FitState, show_different_options
from tests.lightning.resuming import SAVED


def test_a_state_comes_back_from_its_dict():
    assert FitState.from_dict(SAVED).as_dict() == SAVED


def test_nothing_of_a_state_is_lost_in_its_dict():
    whole = {**SAVED, "transform": "t", "weights": "w", "parts": "p"}
    assert {entry.name for entry in fields(FitState)} == whole.keys() - {"version"}
    assert FitState.from_dict(whole).as_dict() == whole


def test_every_seed_comes_back():
    largest = {**SAVED, "seed": 2**64 - 1}
    assert FitState.from_dict(largest).as_dict() == largest
    for name, most in (("seed", 2**64), ("epoch", 2**63)):
        with pytest.raises(ResumeError, match=f"must be an integer below {most}, but is {most}"):
            FitState.from_dict({**SAVED, name: most})


@pytest.mark.parametrize("version", [0, 2, None, "1"])
def test_another_version_is_refused(version):
    with pytest.raises(ResumeError, match=f"must have version 1, but has {version!r}"):
        FitState.from_dict({**SAVED, "version": version})


OPTIONAL = ("transform", "balance_ranks", "plan_version")


@pytest.mark.parametrize("name", [name for name in SAVED if name not in ("version", *OPTIONAL)])
def test_a_state_without_one_of_its_parts_is_damaged(name):
    with pytest.raises(
        ResumeError, match=rf"`{name}` of the state must be .*, but is None.*damaged"
    ):
        FitState.from_dict({key: value for key, value in SAVED.items() if key != name})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epoch", -1),
        ("position", 1.0),
        ("seed", True),
        ("policy", 3),
        ("balance_ranks", "2"),
        ("balance_ranks", -1),
        ("plan_version", 1.0),
    ],
)
def test_a_state_with_a_part_of_another_kind_is_damaged(name, value):
    with pytest.raises(ResumeError, match=f"`{name}` of the state must be .*, but is {value!r}"):
        FitState.from_dict({**SAVED, name: value})


@pytest.mark.parametrize("version", [None, 1, PLAN_VERSION - 1, PLAN_VERSION + 1])
def test_an_order_of_other_rules_cannot_be_continued_and_both_versions_are_named(version):
    """Those of a state that does not say are the first."""
    saved = FitState.from_dict({**SAVED, "plan_version": version})
    found = version or 1
    text = rf"plan version {found}, but this release makes plans of version {PLAN_VERSION},.*"
    with pytest.raises(ResumeError, match=text + "on_changed='next_epoch'.*weights of the model"):
        saved.check_plan_version()


def test_an_order_of_these_rules_is_continued():
    FitState.from_dict(SAVED).check_plan_version()


def test_ranks_that_steps_are_balanced_for_may_be_unknown():
    saved = FitState.from_dict({**SAVED, "balance_ranks": None})
    assert saved.balance_ranks is None
    assert FitState.from_dict(SAVED).balance_ranks == 2


@pytest.mark.parametrize(
    ("saved", "current", "shown"),
    [
        ("Fixed(size=8, keep='a')", "Fixed(size=9, keep='a')", ("Fixed(size=8)", "Fixed(size=9)")),
        ("Fixed(size=8, n=None)", "Bucketed(size=8, m=4)", ("Fixed(n=None)", "Bucketed(m=4)")),
        (
            "Mix(parts={'a': Part(weight=1, policy=Fixed(size=3)), 'b': 2}, by='x')",
            "Mix(parts={'a': Part(weight=1, policy=Fixed(size=4)), 'c': 2}, by='x')",
            (
                "Mix(parts={'a': Part(policy=Fixed(size=3)), 'b': 2})",
                "Mix(parts={'a': Part(policy=Fixed(size=4)), 'c': 2})",
            ),
        ),
        # shortened ones, with their digests
        ("Mix(a=1, b={'c': 2\u2026 (f0)", "Mix(a=1, b={'c': 3\u2026 (0f)", ("Mix(...'c': 2\u2026 (f0)", "Mix(...'c': 3\u2026 (0f)")),  # noqa: E501
        ("Mix(a=1, b=2\u2026 (f0)", "Mix(a=1, b=2\u2026 (0f)", ("Mix(...f0)", "Mix(...0f)")),
        ("mine", "yours", ("mine", "yours")),
        ("(" * 9999, ")", ("(" * 9999, ")")),
    ],
)  # fmt: skip
def test_only_the_options_that_differ_are_shown(saved, current, shown):
    assert show_different_options(saved, current) == shown
    state, now = (FitState.from_dict({**SAVED, "policy": policy}) for policy in (saved, current))
    text = state.describe_differences(now, ["policy", "seed"])
    assert text.startswith(f"`policy` was {shown[0]!r:.500}, but is {shown[1]!r}; `seed` was ")
