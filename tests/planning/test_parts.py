"""Parts of named data: their weights, seeds and policies, and data that has none or others."""

from fractions import Fraction

import numpy as np
import pytest

from seqdata import TBPTT, Fixed, TokenBudget, Weighted
from seqdata.errors import ConfigError
from seqdata.index import SequenceIndex
from seqdata.planning.parts import (
    Part,
    as_part,
    check_part_policy,
    count_planned,
    derive_part_seed,
    match_parts,
)


def index_of(*lengths):
    return SequenceIndex({"time": np.array(lengths)})


@pytest.mark.parametrize("weight", [0, 2, 0.5, Fraction(1, 3), np.float32(2), np.int64(3)])
def test_a_part_may_be_its_weight_alone(weight):
    assert as_part("a", weight) == Part(weight)
    assert as_part("a", Part(weight, Fixed(2))) == Part(weight, Fixed(2))


@pytest.mark.parametrize(
    ("weight", "plain"),
    [
        (np.float64(0.7), 0.7),
        (np.float32(0.75), 0.75),
        (np.longdouble(0.5), 0.5),
        (np.int8(3), 3),
        (Fraction(1, 3), Fraction(1, 3)),
        (2, 2),
    ],
)
def test_a_weight_of_numpy_is_kept_as_a_plain_number(weight, plain):
    part = Part(weight)
    assert part.weight == plain
    assert type(part.weight) is type(plain)
    assert repr(part) == repr(Part(plain))


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf"), True, "1", None])
def test_a_weight_is_a_finite_number_of_at_least_0(weight):
    with pytest.raises(ConfigError, match="weight of part 'a' must be a finite number"):
        as_part("a", weight)
    with pytest.raises(ConfigError, match="a `weight` must be a finite number"):
        Part(weight)


def test_a_name_is_a_text():
    with pytest.raises(ConfigError, match="a part's name must be a string, but is 1"):
        as_part(1, 1)


def test_every_name_and_seed_has_a_seed_of_its_own():
    seeds = {derive_part_seed(seed, name) for seed in (0, 1) for name in ("a", "b", "ab")}
    assert len(seeds) == 6
    assert derive_part_seed(3, "a") == derive_part_seed(3, "a")


def test_sequences_and_timesteps_are_counted_without_a_plan():
    class Slow:
        """Plans like another, and counts nothing before."""

        axis = "time"

        def plan(self, index, *, seed, epoch):
            return TokenBudget(6, too_long="drop").plan(index, seed=seed, epoch=epoch)

    lengths = index_of(3, 9, 2, 1)
    policy = TokenBudget(6, too_long="drop")
    assert count_planned(policy, lengths) == count_planned(Slow(), lengths) == (3, 6)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("fixed", "the policy of part 'a' must be a policy, but is 'fixed'"),
        (Fixed, "the policy of part 'a' must be a policy"),
        (TBPTT(2, 4), "the batches of part 'a' must be independent"),
        (Weighted(TokenBudget(8), [1.0, 2.0]), "the epochs of part 'a' must all have the same"),
    ],
)
def test_policies_that_cannot_be_a_part(policy, said):
    with pytest.raises(ConfigError, match=said):
        check_part_policy("mix", "a", policy, "Advice.")


def test_parts_of_the_data_and_of_the_policy_are_the_same():
    index = SequenceIndex.from_parts({"a": index_of(3, 1), "b": index_of(2)})
    assert list(match_parts("mix", ["b", "a"], index, "a weight", "")) == ["a", "b"]
    with pytest.raises(ConfigError, match="'b' of the data must have a weight, but has none"):
        match_parts("mix", ["a"], index, "a weight", "")
    with pytest.raises(ConfigError, match="'c' must be in the data, but the data has 'a', 'b'"):
        match_parts("mix", ["a", "b", "c"], index, "a weight", "")
    with pytest.raises(ConfigError, match="the data must be several named stores, but is one"):
        match_parts("mix", ["a"], index_of(3), "a weight", "")
