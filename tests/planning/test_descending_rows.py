"""With `sort_within_batch` rows of a batch are in descending length, and nothing else changes."""

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

from seqdata.errors import ConfigError
from seqdata.index import SequenceIndex
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.loading.loader import Loader
from seqdata.planning.batch_order import sort_within_batches
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.mix import Mix
from seqdata.policies.packed import Packed
from seqdata.policies.tbptt import TBPTT
from seqdata.policies.token_budget import TokenBudget
from seqdata.policies.weighted import Weighted
from seqdata.policies.windows import Windows
from seqdata.sharing import World

RNG = np.random.default_rng(0)
LENGTHS = RNG.integers(1, 40, 90).tolist()
ROWS = [{"x": np.full((n, 2), i, "float32"), "y": i} for i, n in enumerate(LENGTHS)]
POLICIES = [
    Fixed(7), Fixed(7, shuffle=False), Bucketed(7), TokenBudget(120), Packed(4, 60),
    Windows((2, 9), batch_size=5), Weighted(Bucketed(7), "y"),
    Fixed(7, max_length=9, too_long="split"),
]  # fmt: skip


def rows_of(plan, number):
    batch = plan.batch(number)
    bounds = range(len(batch.spans) + 1) if batch.rows is None else batch.rows.tolist()
    return [batch.spans[a:b].tolist() for a, b in zip(bounds, list(bounds)[1:], strict=False)]


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("seed", range(3))
def test_a_plan_keeps_its_batches_and_sorts_their_rows(policy, seed):
    lengths = np.random.default_rng(seed).integers(1, 60, 130)
    index = SequenceIndex.from_lengths(lengths)
    if isinstance(policy, Weighted):
        policy = Weighted(Bucketed(7), np.arange(130.0) + 1)
    plan = policy.plan(index, seed=seed, epoch=1)
    found = sort_within_batches(plan)
    assert found.fingerprint == plan.fingerprint
    assert found.lookahead == plan.lookahead
    for number in range(len(plan)):
        assert sorted(rows_of(found, number)) == sorted(rows_of(plan, number))
        own = found.batch(number).lengths
        assert (np.diff(own) <= 0).all()
        assert found.totals(number, number + 1) == plan.totals(number, number + 1)
        stop = min(found.prepare(number), number + 3)
        table = found.slice(number, stop)
        for at in range(number, stop):
            assert table.batch(at - number).spans.tolist() == found.batch(at).spans.tolist()
        drawn = found.drawn_batch(number)
        if drawn is not None:
            bases = drawn.sequences.bases(drawn.spans[:, 0])
            assert bases.tolist() == found.batch(number).spans[:, 0].tolist()
    assert found.as_arrays().spans.tolist() == [
        span for number in range(len(found)) for span in found.batch(number).spans.tolist()
    ]


def test_the_report_still_names_the_sequences_that_are_not_planned_whole():
    plan = Fixed(2, max_length=3, too_long="drop").plan(
        SequenceIndex.from_lengths([1, 9, 2, 3]), seed=0, epoch=0
    )
    assert sort_within_batches(plan).report.dropped.tolist() == [1]


@pytest.mark.parametrize("policy", POLICIES[:5] + POLICIES[-1:], ids=repr)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_pack_padded_sequence_takes_every_batch(policy, prefetch):
    for rank in range(2):
        loader = Loader(
            ROWS, policy, sort_within_batch=True, world=World(rank, 2), prefetch=prefetch
        )
        for batch in loader:
            assert (batch.lengths.diff() <= 0).all()
            pack_padded_sequence(batch["x"], batch.lengths, batch_first=True, enforce_sorted=True)
            if batch.segments is None:
                assert batch["x"][:, 0, 0].tolist() == batch["y"].tolist() == batch.ids.tolist()


def test_rows_of_several_parts_keep_their_part_and_weights():
    parts = {"a": ROWS[:40], "b": [{"x": row["x"], "y": row["y"] + 1000} for row in ROWS[:30]]}
    mix = Mix({"a": 1, "b": 2}, Bucketed(6), rows=True)
    for batch in Loader(parts, mix, sort_within_batch=True):
        assert (batch.lengths.diff() <= 0).all()
        assert batch.part == ["b" if y >= 1000 else "a" for y in batch["y"].tolist()]
    index = SequenceIndex.from_lengths(LENGTHS)
    weights = np.arange(90.0) % 7 + 1
    plan = Weighted(Fixed(8), weights, importance=True).plan(index, seed=0, epoch=0)
    found = sort_within_batches(plan)
    for number in range(len(plan)):
        own = dict(
            zip(plan.batch(number).spans[:, 0].tolist(), plan.row_weights([number]), strict=True)
        )
        spans = found.batch(number).spans[:, 0].tolist()
        assert found.row_weights([number]).tolist() == [own[n] for n in spans]


def test_a_datamodule_sorts_its_evaluations_too():
    data = SequenceDataModule(
        train=ROWS, val=ROWS, batching=Fixed(8, shuffle=False), sort_within_batch=True
    )
    for loader in (data.train_dataloader(), data.val_dataloader()):
        assert all((batch.lengths.diff() <= 0).all() for batch in loader)


def test_lanes_keep_their_places():
    plain, found = (
        list(Loader(ROWS, TBPTT(4, 8), sort_within_batch=sort)) for sort in (False, True)
    )
    assert all(torch.equal(a["x"], b["x"]) for a, b in zip(plain, found, strict=True))


def test_lengths_that_are_only_bounds_are_refused():
    def crop(sequence, rng):
        return {"x": sequence["x"][: int(rng.integers(1, 3))]}

    crop.max_length = lambda lengths: lengths
    with pytest.raises(ConfigError, match="`sort_within_batch=True` needs exact lengths"):
        Loader([row["x"] for row in ROWS], Fixed(4), transform=crop, sort_within_batch=True)
    with pytest.raises(ConfigError, match="`sort_within_batch` must be True or False, but is 1"):
        Loader(ROWS, Fixed(4), sort_within_batch=1)
