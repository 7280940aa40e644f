"""What all policies promise; what one of them does is in the test named after it."""

import dataclasses
import hashlib
import inspect

import numpy as np
import pytest

from seqdata.errors import ConfigError, PlanError
from seqdata.index import SequenceIndex
from seqdata.loading.loader import Loader
from seqdata.planning.build import describe_policy
from seqdata.policies.curriculum import Curriculum
from seqdata.policies.fixed import Bucketed, Fixed, Sorted
from seqdata.policies.mix import Mix, Part
from seqdata.policies.packed import Packed
from seqdata.policies.segments import Segments
from seqdata.policies.tbptt import TBPTT
from seqdata.policies.token_budget import TokenBudget
from seqdata.policies.weighted import Weighted, balanced
from seqdata.policies.windows import Windows
from seqdata.policies.zip import Zip
from seqdata_testing.blocks import SmallBlocks
from seqdata_testing.plans import check_policy

POLICIES = [Fixed(8), Sorted(8), Bucketed(8), TokenBudget(256)]
SHUFFLED_BY_BLOCK = 300_000  # above 2^18: two blocks


def index_of(count=1000, seed=0, most=100):
    return SequenceIndex.from_lengths(np.random.default_rng(seed).integers(1, most, count))


@pytest.fixture(params=POLICIES, ids=lambda policy: type(policy).__name__)
def policy(request):
    return request.param


def batches(plan):
    return [plan.batch(k).spans.tolist() for k in range(len(plan))]


def test_every_sequence_is_planned_once(policy):
    plan = policy.plan(index_of(), seed=0, epoch=0)
    assert sorted(plan.spans[:, 0].tolist()) == list(range(1000))


def test_a_plan_is_a_pure_function(policy):
    one, same = (policy.plan(index_of(), seed=3, epoch=2) for _ in range(2))
    assert batches(one) == batches(same)
    assert one.fingerprint == same.fingerprint


def test_epochs_and_seeds_differ(policy):
    plans = [policy.plan(index_of(), seed=s, epoch=e) for s, e in ((0, 1), (0, 2), (1, 1))]
    assert len({str(batches(plan)) for plan in plans}) == 3
    assert len({plan.fingerprint for plan in plans}) == 3


def test_unshuffled_epochs_are_alike(policy):
    still = dataclasses.replace(policy, shuffle=False)
    first, later = (still.plan(index_of(), seed=s, epoch=s) for s in (0, 5))
    assert batches(first) == batches(later)


def test_the_count_is_known_before_and_constant(policy):
    index = index_of(777)
    for epoch in range(4):
        assert len(policy.plan(index, seed=epoch, epoch=epoch)) == policy.num_batches(index)


def test_other_blocks_keep_all_of_it(policy):
    index = index_of(SHUFFLED_BY_BLOCK)
    plan = policy.plan(index, seed=0, epoch=0)
    assert len(plan) == policy.num_batches(index)
    assert np.array_equal(np.sort(plan.spans[:, 0]), np.arange(SHUFFLED_BY_BLOCK))
    number = len(plan) // 2
    offsets = plan.offsets
    assert np.array_equal(
        plan.batch(number).spans, plan.spans[offsets[number] : offsets[number + 1]]
    )
    timesteps = int(plan.spans[:, 2].sum())
    assert plan.totals(0, len(plan)) == (timesteps, SHUFFLED_BY_BLOCK)


def test_the_next_block_is_known(policy):
    plan = policy.plan(index_of(SHUFFLED_BY_BLOCK), seed=0, epoch=1)
    edges, number = [], 0
    while number < len(plan):
        number = plan.prepare(number)
        edges.append(number)
    assert edges[-1] == len(plan)
    assert len(edges) >= 2


def test_an_empty_index_gives_an_empty_plan(policy):
    plan = policy.plan(SequenceIndex.from_lengths([]), seed=0, epoch=0)
    assert (len(plan), policy.num_batches(SequenceIndex.from_lengths([]))) == (0, 0)


def test_only_empty_sequences_give_an_empty_plan_and_are_reported(policy):
    plan = policy.plan(SequenceIndex.from_lengths([0, 0]), seed=0, epoch=0)
    assert len(plan) == 0
    assert plan.report.dropped.tolist() == [0, 1]


def test_splitting_keeps_every_timestep(policy):
    split = dataclasses.replace(policy, too_long="split", max_length=7)
    plan = split.plan(index_of(), seed=0, epoch=0)
    covered = {}
    for sequence, start, stop in plan.spans.tolist():
        covered.setdefault(sequence, set()).update(range(start, stop))
    lengths = index_of().lengths
    assert all(covered[k] == set(range(lengths[k])) for k in range(1000))
    assert plan.report.split.tolist() == np.flatnonzero(lengths > 7).tolist()


def test_truncating_and_dropping_are_reported(policy):
    lengths = index_of().lengths
    truncated = dataclasses.replace(policy, too_long="truncate", max_length=7)
    report = truncated.plan(index_of(), seed=0, epoch=0).report
    assert report.truncated.tolist() == np.flatnonzero(lengths > 7).tolist()
    assert report.timesteps == int(np.minimum(lengths, 7).sum())
    dropping = dataclasses.replace(policy, too_long="drop", max_length=7)
    report = dropping.plan(index_of(), seed=0, epoch=0).report
    assert report.dropped.tolist() == np.flatnonzero(lengths > 7).tolist()
    assert report.sequences == int((lengths <= 7).sum())


def test_the_last_timesteps_of_a_truncated_sequence_may_be_kept(policy):
    lengths = index_of().lengths
    first = dataclasses.replace(policy, too_long="truncate", max_length=7)
    last = dataclasses.replace(first, keep="last")
    plan = last.plan(index_of(), seed=0, epoch=0)
    for sequence, start, stop in plan.spans.tolist():
        assert (start, stop) == (max(0, lengths[sequence] - 7), lengths[sequence])
    firsts = first.plan(index_of(), seed=0, epoch=0)
    assert plan.spans[:, 0].tolist() == firsts.spans[:, 0].tolist()
    assert plan.report.truncated.tolist() == firsts.report.truncated.tolist()
    assert plan.fingerprint != firsts.fingerprint
    check_policy(last, index_of())


def test_packed_rows_may_keep_the_last_timesteps():
    policy = Packed(2, 8, max_length=7, too_long="truncate", keep="last")
    lengths = index_of().lengths
    plan = policy.plan(index_of(), seed=0, epoch=0)
    assert sorted(plan.spans.tolist()) == [
        [number, max(0, length - 7), length] for number, length in enumerate(lengths)
    ]
    check_policy(policy, index_of())


def test_what_is_kept_is_told(policy):
    kept = dataclasses.replace(policy, max_length=7, too_long="truncate", keep="last")
    assert "keep='first'" in describe_policy(policy)
    assert "keep='last'" in describe_policy(kept)


def test_shuffle_is_one_of_three(policy):
    for shuffle in (True, False, "blocks"):
        assert dataclasses.replace(policy, shuffle=shuffle).shuffle == shuffle
    for wrong in ("block", "false", None, 1):
        text = f"`shuffle` must be True, False or 'blocks', but is {wrong!r}"
        with pytest.raises(ConfigError, match=text):
            dataclasses.replace(policy, shuffle=wrong)


def test_up_to_one_block_shuffled_by_blocks_is_shuffled(policy):
    by_blocks = dataclasses.replace(policy, shuffle="blocks")
    plans = [one.plan(index_of(), seed=1, epoch=2) for one in (policy, by_blocks)]
    assert batches(plans[0]) == batches(plans[1])


@pytest.mark.parametrize("shuffle", [True, "blocks"])
def test_the_number_of_batches_follows_neither_epoch_nor_ranks(policy, shuffle):
    """Over 20 epochs and for steps of 1 to 8 ranks, each sequence once."""
    small = SmallBlocks(dataclasses.replace(policy, shuffle=shuffle), 300)
    index = index_of(1_700)
    count = small.num_batches(index)
    for epoch in range(20):
        made = small.for_ranks(1 + epoch % 8)
        plan = made.plan(index, seed=3, epoch=epoch)
        assert len(plan) == made.num_batches(index) == count
        assert sorted(plan.spans[:, 0].tolist()) == list(range(1_700))


@pytest.mark.parametrize("kind", [Sorted, Bucketed, TokenBudget])
def test_ranks_are_counted(kind):
    for wrong in (0, -1, 2.5, "2"):
        with pytest.raises(ConfigError, match=r"`balance_ranks` must be an integer of at least 1"):
            kind(64, balance_ranks=wrong)
    assert kind(64).for_ranks(3).balance_ranks == 3
    assert kind(64, balance_ranks=1).for_ranks(3).balance_ranks == 1


def test_keep_needs_truncation(policy):
    with pytest.raises(
        ConfigError, match=r"`keep='last'` needs `too_long='truncate'`, but .*'error"
    ):
        dataclasses.replace(policy, keep="last")
    with pytest.raises(ConfigError, match="`keep` must be 'first' or 'last', but is 'end'"):
        dataclasses.replace(policy, max_length=7, too_long="truncate", keep="end")


def test_a_sequence_that_is_too_long_is_an_error_at_plan_time(policy):
    strict = dataclasses.replace(policy, max_length=99)
    with pytest.raises(PlanError, match="sequence 3 has 100 timesteps, more than `max_length=99`"):
        strict.plan(SequenceIndex.from_lengths([1, 2, 3, 100]), seed=0, epoch=0)


def test_another_axis_is_planned_on_by_its_name(policy):
    index = SequenceIndex({"time": np.array([1, 2]), "text": np.array([5, 6])})
    plan = dataclasses.replace(policy, axis="text").plan(index, seed=0, epoch=0)
    assert sorted(plan.spans[:, 2].tolist()) == [5, 6]


@pytest.mark.parametrize(
    "policy",
    [
        *POLICIES,
        Packed(2, 64),
        TBPTT(2, 8),
        Windows(8, batch_size=2),
        Weighted(Fixed(4)),
        Segments(Weighted(Fixed(4)), batches=3),
        Curriculum(Fixed(4), max_length=[(0, 8), (2, None)]),
        Mix({"a": 1, "b": 2}, Fixed(4)),
        Zip({"a": Fixed(4), "b": Sorted(4)}),
        Part(2, Fixed(4)),
        balanced("label"),
    ],
    ids=lambda policy: type(policy).__name__,
)
def test_a_policy_is_a_value_that_does_not_change(policy):
    assert policy == dataclasses.replace(policy)
    assert hash(policy) == hash(dataclasses.replace(policy))
    for name in (field.name for field in dataclasses.fields(policy)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(policy, name, getattr(policy, name))


def test_a_seed_that_cannot_be_meant_is_refused(policy):
    with pytest.raises(ConfigError, match=r"`seed` must be in .*, but is -1"):
        policy.plan(index_of(), seed=-1, epoch=0)


@pytest.mark.parametrize("kind", [Sorted, Bucketed])
@pytest.mark.parametrize("count", [1000, SHUFFLED_BY_BLOCK])
def test_the_most_expensive_batch_leads_epoch_0_only_when_asked(kind, count):
    index = index_of(count, most=1000)
    leading = kind(8).plan(index, seed=0, epoch=0)
    assert leading.report.worst == 0
    assert leading.batch(0).spans[:, 2].max() == index.lengths.max()
    others = [
        kind(8).plan(index, seed=0, epoch=1),
        kind(8, worst_first=False).plan(index, seed=0, epoch=0),
    ]
    assert [plan.report.worst == 0 for plan in others] == [False, False]


def test_the_most_expensive_batch_leads_from_the_short_block_too():
    lengths = np.full(SHUFFLED_BY_BLOCK, 10)
    lengths[-1] = 5000
    for policy in (Bucketed(8), TokenBudget(20_000)):
        plan = policy.plan(SequenceIndex.from_lengths(lengths), seed=0, epoch=0)
        assert SHUFFLED_BY_BLOCK - 1 in plan.batch(0).spans[:, 0].tolist() or plan.report.worst == 0
        assert np.array_equal(np.sort(plan.spans[:, 0]), np.arange(SHUFFLED_BY_BLOCK))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Fixed(0),
            "policy 'fixed': `batch_size` must be an integer of at least 1, but is 0",
        ),
        (
            lambda: Sorted(2.5),
            "policy 'sorted': `batch_size` must be an integer of at least 1, but is 2.5",
        ),
        (
            lambda: Bucketed(True),
            "policy 'bucketed': `batch_size` must be an integer of at least 1, but is True",
        ),
        (
            lambda: TokenBudget(0),
            "policy 'token-budget': `max_tokens` must be an integer of at least 1, but is 0",
        ),
        (
            lambda: TokenBudget(8, max_rows="3"),
            "`max_rows` must be an integer of at least 1, but is '3'",
        ),
        (
            lambda: TokenBudget(8, min_batches=0),
            "`min_batches` must be an integer of at least 1, but is 0",
        ),
        (
            lambda: TokenBudget(8, max_length=9),
            "`max_length` must be at most `max_tokens=8`, but is 9",
        ),
        (
            lambda: Fixed(2, too_long="cut"),
            "`too_long` must be 'error', 'split', 'truncate' or 'drop', but is 'cut'",
        ),
        (lambda: Bucketed(2, empty="keep"), "`empty` must be 'drop' or 'error', but is 'keep'"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_plans_never_change():
    """Golden: a change here needs another PLAN_VERSION, and refuses every older run's resume."""
    index = SequenceIndex.from_lengths((np.arange(40) * 7919 % 97 + 1).astype(np.uint32))
    orders = {
        type(policy).__name__: " ".join(map(str, policy.plan(index, seed=7, epoch=3).spans[:, 0]))
        for policy in (Fixed(4), Sorted(4), Bucketed(4), TokenBudget(128))
    }
    assert orders == GOLDEN


def test_plans_of_many_blocks_for_several_ranks_never_change():
    """Golden, too: the block of each item, and how groups of blocks follow each other."""
    index = SequenceIndex.from_lengths((np.arange(2_000) * 7919 % 97 + 1).astype(np.uint32))
    digests = {}
    for policy in (
        Fixed(4),
        *(one.for_ranks(6) for one in (Sorted(4), Bucketed(4), TokenBudget(256))),
    ):
        plan = SmallBlocks(policy, 300).plan(index, seed=7, epoch=3)
        order = " ".join(map(str, plan.spans[:, 0]))
        digests[type(policy).__name__] = hashlib.sha256(order.encode()).hexdigest()[:16]
    assert digests == GOLDEN_OF_BLOCKS


GOLDEN = {
    "Fixed": "0 6 13 37 32 35 29 36 15 30 25 9 27 39 18 28 22 3 1 14 34 8 23 1"
    "2 20 33 38 19 21 26 2 24 10 7 16 31 17 5 4 11",
    "Sorted": "25 14 39 3 2 27 16 5 20 9 34 23 35 24 13 38 15 4 29 18 7 32 21 1"
    "0 22 11 36 0 12 37 1 26 30 19 8 33 28 17 6 31",
    "Bucketed": "25 14 39 3 2 27 16 5 20 9 34 23 35 24 13 38 15 4 29 18 7 32 21 1"
    "0 22 11 36 0 12 37 1 26 30 19 8 33 28 17 6 31",
    "TokenBudget": "19 27 2 5 22 36 0 11 25 6 3 31 17 29 32 28 18 7 12 37 33 30 8 16"
    " 21 38 24 34 20 39 13 35 10 1 26 4 15 23 9 14",
}
GOLDEN_OF_BLOCKS = {
    "Fixed": "ecac3afada95e792",
    "Sorted": "e561ff1a35093158",
    "Bucketed": "fb7f5a0b20b3fa4e",
    "TokenBudget": "241bdefe3905ee35",
}


ARGUMENTS = {
    Fixed: {"batch_size": 4},
    Sorted: {"batch_size": 4},
    Bucketed: {"batch_size": 4},
    TokenBudget: {"max_tokens": 64},
    Packed: {"rows": 2, "row_length": 64},
    Windows: {"size": 8},
    TBPTT: {"lanes": 2, "chunk": 8},
}


@pytest.mark.parametrize(("made", "arguments"), ARGUMENTS.items())
def test_options_of_another_type_are_refused_and_those_of_numpy_are_plain(made, arguments):
    names = inspect.signature(made).parameters
    flags = {"shuffle", "worst_first", "random", "continuous", "segments", "jitter"} & set(names)
    for name in sorted(flags):
        with pytest.raises(ConfigError, match=f"`{name}` must be True"):
            made(**arguments, **{name: "false"})
    if "max_length" in names:
        with pytest.raises(ConfigError, match=r"`max_length` must be an integer .*, but is '512'"):
            made(**arguments, max_length="512")
    for axis in (["time"], None):
        with pytest.raises(ConfigError, match="the policy plans on axis"):
            Loader([[1, 2]], made(**arguments, axis=axis))
    plain = made(**arguments)
    assert repr(made(**{name: np.int64(value) for name, value in arguments.items()})) == repr(plain)


class OwnPlans:
    """What policies of a user's share that are dataclasses without a hash."""

    axis = "time"

    def plan(self, index, *, seed, epoch):
        return self._within().plan(index, seed=seed, epoch=epoch)

    def num_batches(self, index):
        return self._within().num_batches(index)

    def count_items(self, lengths):
        return self._within().count_items(lengths)

    @property
    def items_per_sequence(self):
        return self._within().items_per_sequence

    def _within(self):
        return Fixed(self.sizes[0], max_length=self.max_length, too_long=self.too_long)


@dataclasses.dataclass(frozen=True)
class WithAList(OwnPlans):
    sizes: list[int] = dataclasses.field(default_factory=lambda: [4])
    max_length: int | None = None
    too_long: str = "error"


@dataclasses.dataclass
class NotFrozen(OwnPlans):
    sizes: tuple[int, ...] = (4,)
    max_length: int | None = None
    too_long: str = "error"


@pytest.mark.parametrize("kind", [WithAList, NotFrozen])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda policy: Weighted(policy, np.arange(1000) % 7, draws=90),
        lambda policy: Segments(Weighted(policy, draws=90), 6),
        lambda policy: Curriculum(policy, [(0, 20), (1, None)]),
        lambda policy: Curriculum(policy, [(0, 20), (3, None)], segment=9),
        lambda policy: Mix({"a": 3, "b": 1}, policy, rows=True),
        lambda policy: Segments(Mix({"a": 3, "b": 1}, policy, rows=True), 8),
        lambda policy: Segments(Mix({"a": 3, "b": 1}, policy, batches=40), 8),
    ],
    ids=["weighted", "segments", "curriculum", "stages", "rows", "rows in segments", "mix"],
)
def test_a_policy_without_a_hash_may_be_within_another(wrap, kind):
    def make_index():
        halves = {name: index_of(500, seed) for seed, name in enumerate("ab")}
        return SequenceIndex.from_parts(halves)

    policy, same = wrap(kind()), wrap(Fixed(4))
    index, other = make_index(), make_index()
    for epoch in range(2):
        plan, expected = (
            one.plan(over, seed=3, epoch=epoch) for one, over in ((policy, index), (same, other))
        )
        assert len(plan) == len(expected)
        assert batches(plan) == batches(expected)
    assert policy.num_batches(index) == same.num_batches(other)
