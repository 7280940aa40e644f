"""Lanes that read sequences in chunks: packed tightly, mixed anew, the same number of steps."""

import numpy as np
import pytest

from seqdata import TBPTT, Jitter
from seqdata.errors import ConfigError, PlanError
from seqdata.index import SequenceIndex
from seqdata.sharing import World, share
from seqdata_testing.lanes import check_lanes
from seqdata_testing.plans import check_covers, check_table
from seqdata_testing.sharing import check_shares


def index_of(count=1000, seed=0, mean=4.0):
    lengths = np.exp(np.random.default_rng(seed).normal(mean, 1.0, count))
    return SequenceIndex.from_lengths(lengths.astype(np.int64))


def idle_share(plan):
    return 1 - plan.totals(0, len(plan))[1] / (len(plan) * plan.lanes)


def lanes_of(plan):
    """Return the sequences of each lane in the order in which it reads them."""
    found = [[] for _ in range(plan.lanes)]
    for step in range(len(plan)):
        for lane, (number, start, stop) in enumerate(plan.batch(step).spans.tolist()):
            if start == 0 and stop:
                found[lane].append(number)
    return found


def test_sequences_are_read_whole_and_once_by_one_lane_each():
    index = index_of()
    plan = TBPTT(16, 8).plan(index, seed=1, epoch=2)
    check_table(plan)
    check_lanes(plan, index)
    check_covers(plan, index)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("chunk", [16, 64, 256])
def test_lanes_end_together(seed, chunk):
    plan = TBPTT(64, chunk).plan(index_of(10_000, seed, mean=5.0), seed=seed, epoch=seed)
    assert idle_share(plan) <= 0.02


def test_every_epoch_has_as_many_steps_and_as_many_idle_rows():
    index, policy = index_of(300), TBPTT(7, 16)
    plans = [policy.plan(index, seed=3, epoch=epoch) for epoch in range(5)]
    steps = {len(plan) for plan in plans}
    assert steps == {policy.num_batches(index)}
    assert len({plan.totals(0, len(plan)) for plan in plans}) == 1
    assert all(plan.totals(len(plan) - 1, len(plan))[1] for plan in plans)  # none ends in nothing


def test_an_epoch_mixes_which_sequences_share_a_lane_and_their_order():
    index, policy = index_of(400), TBPTT(8, 16)
    one, other = (lanes_of(policy.plan(index, seed=0, epoch=epoch)) for epoch in range(2))
    pairs = [
        {(a, b) for lane in lanes for a in lane for b in lane if a < b} for lanes in (one, other)
    ]
    expected = len(pairs[0]) / 8  # pairs that meet again where lanes are drawn freely
    assert len(pairs[0] & pairs[1]) < 1.3 * expected
    moved = sum(a[:1] != b[:1] for a, b in zip(one, other, strict=True))
    assert moved >= 7


def test_long_sequences_of_different_sizes_part_too():
    """Their sizes are unique, so that only an exchange between lanes can part them."""
    index = SequenceIndex.from_lengths([400, 390, 380, 370, *[10] * 200])
    policy = TBPTT(2, 10)
    together = [
        frozenset(number for number in lanes_of(plan)[0] if number < 4)
        for plan in (policy.plan(index, seed=0, epoch=epoch) for epoch in range(12))
    ]
    assert len(set(together)) > 3


def test_long_sequences_do_not_come_first():
    index = index_of(2000, mean=5.0)
    plan = TBPTT(8, 32).plan(index, seed=0, epoch=0)
    lengths, places = [], []
    for lane in lanes_of(plan):
        lengths += index.lengths[lane].tolist()
        places += np.linspace(0, 1, len(lane)).tolist()
    assert abs(np.corrcoef(lengths, places)[0, 1]) < 0.1


def test_unshuffled_lanes_read_in_the_datas_order_in_every_epoch():
    index, policy = index_of(200), TBPTT(8, 16, shuffle=False)
    first, later = (policy.plan(index, seed=s, epoch=e) for s, e in ((0, 0), (5, 3)))
    assert np.array_equal(first.spans, later.spans)
    assert all(lane == sorted(lane) for lane in lanes_of(first))


def test_lanes_without_a_sequence_are_idle():
    index = SequenceIndex.from_lengths([5, 3])
    plan = TBPTT(4, 2).plan(index, seed=0, epoch=0)
    check_lanes(plan, index)
    assert plan.totals(0, len(plan)) == (8, 5)
    assert plan.report.sequences == 2


def test_the_report_lists_what_is_empty():
    plan = TBPTT(2, 2).plan(SequenceIndex.from_lengths([3, 0, 1]), seed=0, epoch=0)
    assert plan.report.dropped.tolist() == [1]
    assert (plan.report.sequences, plan.report.timesteps) == (2, 4)
    with pytest.raises(PlanError, match="at least 1 timestep, but one has none: 1"):
        TBPTT(2, 2, empty="error").plan(SequenceIndex.from_lengths([3, 0, 1]), seed=0, epoch=0)


@pytest.mark.parametrize("lengths", [[], [0, 0]])
def test_without_a_timestep_there_is_no_step(lengths):
    index = SequenceIndex.from_lengths(lengths)
    assert len(TBPTT(3, 2).plan(index, seed=0, epoch=0)) == 0
    assert TBPTT(3, 2).num_batches(index) == 0


def test_overlapping_chunks_score_every_timestep_once():
    index = index_of(100)
    plan = TBPTT(8, 16, advance=6).plan(index, seed=0, epoch=0)
    assert plan.overlap == 10
    check_table(plan)
    check_lanes(plan, index)
    check_covers(plan, index)
    starts = plan.spans[plan.spans[:, 0] == 3, 1]
    assert sorted(set(starts.tolist())) == list(range(0, int(index.lengths[3]) - 10, 6))


def test_a_stream_is_cut_into_equal_columns():
    index = index_of(200)
    plan = TBPTT(8, 16, continuous=True).plan(index, seed=0, epoch=0)
    assert (plan.carry, plan.overlap) == (True, 0)
    check_table(plan)
    check_lanes(plan, index)
    check_covers(plan, index)
    total = int(index.lengths.sum())
    widths = row_lengths(plan).reshape(-1, 8).sum(axis=0)
    assert widths.tolist() == np.diff([lane * total // 8 for lane in range(9)]).tolist()
    assert len(plan) == -(-int(widths.max()) // 16)


def test_a_shifted_stream_has_fewer_timesteps_at_its_end_only():
    lengths = np.arange(1, 40)
    index = SequenceIndex.from_lengths(lengths).shifted("time", 3)
    policy = TBPTT(4, 7, continuous=True)
    plan = policy.plan(index, seed=0, epoch=1)
    assert plan.totals(0, len(plan))[0] == lengths.sum() - 3
    assert len(plan) == policy.num_batches(index)
    for number in range(len(plan)):
        spans, rows = plan.batch(number)[:2]
        wide = plan.extend(number, number + 1)
        for lane in range(4):
            mine = spans[rows[lane] : rows[lane + 1]]
            more = wide.spans[wide.rows[lane] : wide.rows[lane + 1]]
            extra = (more[:, 2] - more[:, 1]).sum() - (mine[:, 2] - mine[:, 1]).sum()
            assert extra == (3 if mine[0, 2] else 0)
            assert more[: len(mine), :2].tolist() == mine[:, :2].tolist()


def test_a_stream_of_overlapping_chunks_scores_every_timestep_once():
    index = index_of(60)
    plan = TBPTT(4, 10, advance=7, continuous=True).plan(index, seed=0, epoch=0)
    assert (plan.carry, plan.overlap) == (True, 3)
    check_table(plan)
    check_lanes(plan, index)
    check_covers(plan, index)
    assert plan.totals(0, len(plan))[0] == index.lengths.sum()


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))]
)
def test_rows_of_segments_leave_next_to_no_padding(seed):
    index = index_of(10_000, seed, mean=5.0)
    plan = TBPTT(64, 64, segments=True).plan(index, seed=seed, epoch=0)
    report = plan.report
    assert report.padded / report.timesteps < 1.002
    assert not plan.carry
    check_lanes(plan, index)
    check_covers(plan, index)


@pytest.mark.parametrize("epoch", [0, 1])
def test_every_schedule_scores_all_timesteps_of_an_epoch(epoch):
    """Fixed, growing, overlapping, jittered: the timesteps of an epoch are the same."""
    index = index_of(100)
    options = [
        {"chunk": 7},
        {"chunk": 64},
        {"chunk": lambda epoch: 8 << epoch},
        {"chunk": 16, "advance": 5},
        {"chunk": 16, "continuous": True},
        {"chunk": 16, "continuous": True, "advance": 5},
        {"chunk": 16, "continuous": True, "jitter": True},
        {"chunk": 16, "segments": True, "jitter": Jitter(spread=3)},
        {"chunk": lambda epoch: 20 - epoch, "segments": True},
    ]
    for some in options:
        plan = TBPTT(4, **some).plan(index, seed=0, epoch=epoch)
        assert plan.totals(0, len(plan))[0] == index.lengths.sum()


def test_chunks_that_grow_make_epochs_of_fewer_steps():
    index, policy = index_of(200), TBPTT(4, lambda epoch: 8 << epoch)
    plans = [policy.plan(index, seed=0, epoch=epoch) for epoch in range(3)]
    assert [len(plan) for plan in plans] == [
        policy.count_batches(index, seed=0, epoch=e) for e in range(3)
    ]
    assert len(plans[0]) > len(plans[1]) > len(plans[2])
    assert policy.varies
    assert not TBPTT(4, 8).varies
    assert len({plan.fingerprint for plan in plans}) == 3
    for plan, chunk in zip(plans, (8, 16, 32), strict=True):
        check_lanes(plan, index)
        assert row_lengths(plan).max() == chunk


@pytest.mark.parametrize("given", [0, -1, 2.0, True, None])
def test_a_function_that_gives_no_length_is_refused(given):
    with pytest.raises(
        ConfigError, match=f"`chunk` must return an integer of at least 1, but returned {given!r}"
    ):
        TBPTT(4, lambda epoch: given).plan(index_of(5), seed=0, epoch=3)


def test_a_function_of_chunks_that_raises_stop_iteration_is_named():
    def grow(epoch):
        return next(iter(()))

    with pytest.raises(
        ConfigError, match=r"'tbptt': `chunk` \(.*grow\) must return a value, but raised StopI"
    ):
        TBPTT(4, grow).num_batches(index_of(5))


def test_a_chunk_that_shrinks_below_its_advance_is_refused():
    policy = TBPTT(4, lambda epoch: 8 - epoch, advance=7)
    policy.plan(index_of(5), seed=0, epoch=1)
    with pytest.raises(ConfigError, match="`advance` must be at most `chunk=6`, but is 7"):
        policy.plan(index_of(5), seed=0, epoch=2)


def test_documents_of_a_stream_are_shuffled_whole():
    index, policy = index_of(300), TBPTT(4, 16, continuous=True)
    orders = [lane_order(policy.plan(index, seed=0, epoch=epoch)) for epoch in range(2)]
    kept = [number for number in range(300) if index.lengths[number]]
    assert sorted(orders[0]) == sorted(orders[1]) == kept
    assert orders[0] != orders[1]
    still = TBPTT(4, 16, continuous=True, shuffle=False).plan(index, seed=0, epoch=4)
    assert lane_order(still) == kept


def test_a_stream_shorter_than_its_shift_has_no_step():
    index = SequenceIndex.from_lengths([2, 1]).shifted("time", 3)
    policy = TBPTT(2, 4, continuous=True)
    assert policy.num_batches(index) == len(policy.plan(index, seed=0, epoch=0)) == 0


def row_lengths(plan):
    lengths = plan.spans[:, 2] - plan.spans[:, 1]
    return lengths if plan.rows is None else np.add.reduceat(lengths, plan.rows[:-1])


def lane_order(plan):
    """Return the sequences of a stream in its order."""
    lanes = [[] for _ in range(plan.lanes)]
    for number in range(len(plan)):
        spans, rows = plan.batch(number)[:2]
        for lane in range(plan.lanes):
            lanes[lane] += spans[rows[lane] : rows[lane + 1]].tolist()
    found = [number for lane in lanes for number, start, stop in lane if stop]
    return [number for place, number in enumerate(found) if found[place - 1 : place] != [number]]


def test_totals_are_those_of_the_spans():
    plan = TBPTT(8, 16).plan(index_of(3000), seed=0, epoch=0)
    lengths = (plan.spans[:, 2] - plan.spans[:, 1]).reshape(-1, 8)
    for first, stop in ((0, len(plan)), (3, 4), (2047, 2050), (len(plan) - 1, len(plan)), (7, 7)):
        part = lengths[first:stop]
        assert plan.totals(first, stop) == (part.sum(), (part > 0).sum())


def test_the_same_arguments_give_the_same_fingerprint_and_others_do_not():
    index = index_of(50)
    one = TBPTT(4, 8).plan(index, seed=0, epoch=0).fingerprint
    assert TBPTT(4, 8).plan(index, seed=0, epoch=0).fingerprint == one
    others = [TBPTT(5, 8), TBPTT(4, 9), TBPTT(4, 8, shuffle=False)]
    assert all(other.plan(index, seed=0, epoch=0).fingerprint != one for other in others)


@pytest.mark.parametrize(("lanes", "size"), [(4, 3), (3, 8)])
def test_lanes_are_shared_out_whatever_the_number_of_ranks(lanes, size):
    plan = TBPTT(lanes, 4).plan(index_of(30), seed=0, epoch=0)
    with pytest.warns(UserWarning, match=f"{lanes} lanes on {size} ranks: the load is uneven"):
        share(plan, World(0, size))
    check_shares(plan, size)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lanes": 0, "chunk": 8}, "`lanes` must be an integer of at least 1, but is 0"),
        ({"lanes": 1, "chunk": 0}, "`chunk` must be an integer of at least 1, but is 0"),
        ({"lanes": 1, "chunk": 2.5}, "`chunk` must be an integer of at least 1, but is 2.5"),
        (
            {"lanes": 1, "chunk": 8, "shuffle": "chunks"},
            "`shuffle` must be True or False, but is 'chunks'. Whole sequences are "
            "shuffled, never.",
        ),
        (
            {"lanes": 1, "chunk": 8, "advance": 0},
            "`advance` must be an integer of at least 1, but is 0",
        ),
        (
            {"lanes": 1, "chunk": 8, "advance": 9},
            "`advance` must be at most `chunk=8`, but is 9. The timesteps between two chunks "
            "would be dropped.",
        ),
        (
            {"lanes": 1, "chunk": 8, "advance": 4, "segments": True},
            "`advance` must be None, but is 4 with `segments=True`. A row of several "
            "sequences has no.",
        ),
        (
            {"lanes": 1, "chunk": 8, "continuous": True, "segments": True},
            "at most one of `segments` and `continuous` must be True, but both are: `continuous`",
        ),
        (
            {"lanes": 1, "chunk": 8, "jitter": True},
            "`jitter` must be False for lanes that begin a chunk with each sequence, but is True",
        ),
        (
            {"lanes": 1, "chunk": 8, "jitter": 0.1, "continuous": True},
            "`jitter` must be True, False or a Jitter, but is 0.1",
        ),
        (
            {"lanes": 1, "chunk": 8, "jitter": True, "continuous": True, "advance": 4},
            "`advance` must be None, but is 4 with `jitter`. Chunks of many lengths do not "
            "overlap.",
        ),
        (
            {"lanes": 1, "chunk": 8, "empty": "keep"},
            "`empty` must be 'drop' or 'error', but is 'keep'",
        ),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        TBPTT(**arguments)


def test_plans_never_change():
    """Golden: a change here needs another PLAN_VERSION, and refuses every older run's resume."""
    index = SequenceIndex.from_lengths((np.arange(14) * 7919 % 23 + 1).astype(np.uint32))
    found = {}
    for name, policy in KINDS.items():
        plan = policy.plan(index, seed=7, epoch=3)
        spans = plan.spans[plan.spans[:, 2] > 0, :2]
        found[name] = " ".join(f"{number}:{start}" for number, start in spans.tolist())
    assert found == GOLDEN


KINDS = {
    "sequences": TBPTT(3, 6),
    "overlap": TBPTT(2, 9, advance=5),
    "continuous": TBPTT(3, 12, continuous=True),
    "segments": TBPTT(3, 12, segments=True),
    "jitter": TBPTT(2, 20, segments=True, jitter=True),
}
GOLDEN = {
    "sequences": "7:0 1:0 4:0 0:0 1:6 9:0 11:0 2:0 9:6 11:6 2:6 9:12 5:0 2:12 12:0 5:6 3:0 "
    "12:6 5:12 3:6 12:12 6:0 3:12 13:0 6:6 3:18 13:6 6:12 8:0 13:12 6:18 8:6 "
    "13:18 10:0",
    "overlap": "4:0 5:0 10:0 5:5 1:0 11:0 6:0 9:0 6:5 9:5 6:10 9:10 6:15 8:0 12:0 8:5 "
    "12:5 2:0 12:10 2:5 0:0 2:10 13:0 3:0 13:5 3:5 13:10 3:10 13:15 3:15 7:0",
    "continuous": "0:0 6:0 9:12 3:0 12:9 2:0 6:11 13:0 3:6 2:5 10:0 13:3 3:18 1:0 7:0 5:0 "
    "13:15 9:0 8:0 12:0 5:8 4:0 11:0 9:4 12:1 11:1",
    "segments": "9:0 8:0 4:0 10:0 5:0 9:12 13:0 4:1 0:0 1:0 5:10 12:0 13:6 1:6 6:0 12:9 "
    "3:0 13:18 2:0 6:10 11:0 3:5 2:7 7:0 11:2 3:17",
    "jitter": "8:0 4:0 0:0 2:0 10:0 9:0 5:0 2:3 6:0 5:1 1:0 6:5 11:0 1:5 13:0 11:4 3:0 "
    "13:16 12:0 3:6 12:4 7:0",
}
