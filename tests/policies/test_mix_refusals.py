"""What policy ``mix`` refuses: each message names the part and what to do."""

from dataclasses import dataclass

import pytest

from seqdata import TBPTT, ConfigError, Fixed, Mix, Part, PlanError, SequenceIndex, Windows
from tests.policies.mix_samples import ForeignPolicy, make_index


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (({"a": -1}, Fixed(2)), r"weight of part 'a' must be a finite number .*, but is -1"),
        (
            ({"a": float("nan")}, Fixed(2)),
            r"weight of part 'a' must be .* but is nan. Pass 0",
        ),
        (({"a": float("inf")}, Fixed(2)), r"weight of part 'a' must be .* but is inf"),
        (({"a": "0.5"}, Fixed(2)), r"weight of part 'a' must be .* but is '0.5'"),
        (({"a": True}, Fixed(2)), r"weight of part 'a' must be .* but is True"),
        (({"a": 0, "b": 0.0}, Fixed(2)), r"at least one `weight` must be above 0, but all are 0"),
        (({}, Fixed(2)), r"`parts` must be a mapping of names to weights, but is \{\}"),
        (([0.5, 0.5], Fixed(2)), r"`parts` must be a mapping of names"),
        (({1: 0.5}, Fixed(2)), r"a part's name must be a string, but is 1"),
        (({"a": 1},), r"part 'a' must have a policy, but has none. Write Part\(weight, policy\)"),
        (({"a": 1}, "fixed"), r"the policy of part 'a' must be a policy, but is 'fixed'"),
        (({"a": 1}, Fixed), r"the policy of part 'a' must be a policy"),
        (
            ({"a": Part(1, Fixed(2)), "b": Part(1, Fixed(2, axis="text"))},),
            r"parts must be planned on one axis, but are on \{'a': 'time', 'b': 'text'\}",
        ),
    ],
)
def test_what_cannot_be_mixed_is_refused(arguments, said):
    with pytest.raises(ConfigError, match=said):
        Mix(*arguments)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"by": "rows"}, r"`by` must be one of 'batches', 'timesteps', 'sequences', but is 'rows'"),
        ({"keep": "step"}, r"`keep` must be one of 'update', 'batch', but is 'step'"),
        ({"batches": 0}, r"`batches` must be an integer of at least 1, but is 0"),
        ({"batches_per_update": 0}, r"`batches_per_update` must be an integer of at least 1"),
        ({"temperature": 0}, r"`temperature` must be at least 0.01, or None, but is 0"),
        ({"temperature": 1e-11}, r"`temperature` must be at least 0.01, or None, but is 1e-11"),
        ({"temperature": float("nan")}, r"`temperature` must be at least 0.01, or None, but is n"),
    ],
)
def test_an_invalid_option_is_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        Mix({"a": 1}, Fixed(2), **options)


def test_parts_and_data_have_the_same_names():
    with pytest.raises(
        ConfigError, match=r"part 'cod' must be in the data, .* did you mean 'code'"
    ):
        Mix({"books": 1, "cod": 1}, Fixed(2)).num_batches(make_index(books=2, code=2))
    with pytest.raises(ConfigError, match=r"'code' of the data must have a weight, but has none"):
        Mix({"books": 1}, Fixed(2)).num_batches(make_index(books=2, code=2))


def test_one_store_cannot_be_mixed():
    with pytest.raises(
        ConfigError, match=r"must be several named stores, but is one. .*'a': \.\.\."
    ):
        Mix({"a": 1}, Fixed(2)).num_batches(SequenceIndex.from_lengths([1, 2]))


def test_an_empty_part_is_named():
    index = SequenceIndex.from_parts(
        {"full": SequenceIndex.from_lengths([1]), "void": SequenceIndex.from_lengths([0, 0])}
    )
    with pytest.raises(
        PlanError, match=r"part 'void' must have a sequence to draw, .* 2 sequences"
    ):
        Mix({"full": 1, "void": 1}, Fixed(2)).num_batches(index)


def test_windows_of_all_parts_have_one_horizon():
    mix = Mix({"books": Part(1, Windows(4, horizon=2)), "code": Part(1, Fixed(2))})
    with pytest.raises(
        ConfigError, match=r"must have the same `horizon`, but have \{'books': 2, 'code': 0"
    ):
        mix.plan(make_index(books=30, code=20), seed=0, epoch=0)


@dataclass(frozen=True)
class Wrong(ForeignPolicy):
    """A policy that does not keep what it says."""

    lookahead: int = 0
    lanes_of_plan: int = 0

    def plan(self, index, *, seed, epoch):
        if self.lanes_of_plan:
            return TBPTT(2, 4).plan(index, seed=seed, epoch=epoch)
        return Fixed(3 + epoch).plan(index, seed=seed, epoch=epoch).with_lookahead(self.lookahead)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (
            Wrong(),
            r"epoch 1 of part 'a' must have \(batches, lookahead\) \(10, 0\), .* has \(8, 0\)",
        ),
        (Wrong(lookahead=2), r"epoch 0 of part 'a' must have .* \(10, 0\), .* but has \(10, 2\)"),
        (Wrong(lanes_of_plan=2), r"part 'a' must be independent, but have 2 lanes"),
    ],
)
def test_a_policy_that_breaks_its_word_is_named(policy, said):
    plan = Mix({"a": 1}, policy, batches=40).plan(make_index(a=30), seed=0, epoch=0)
    with pytest.raises(PlanError, match=said):
        _ = plan.spans


def test_epochs_of_a_part_do_not_vary():
    @dataclass(frozen=True)
    class Varying(ForeignPolicy):
        varies: bool = True

        def num_batches_of(self, index, epoch):
            return 3 + epoch

    with pytest.raises(
        ConfigError, match=r"part 'a' must all have the same number of batches, .*Varying vary"
    ):
        Mix({"a": 1}, Varying())
