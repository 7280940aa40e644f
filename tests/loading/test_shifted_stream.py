"""A stream that is shifted as a whole: targets go on over the ends of sequences."""

import numpy as np
import pytest
import torch

from seqdata import TBPTT, Loader, Ragged, World, columnar
from seqdata.errors import ConfigError, CorruptSampleError
from seqdata.loading.shifted_stream import RowColumn
from seqdata.storage.array_column import ArrayColumn
from seqdata.storage.memory import MemoryStore

LENGTHS = (4, 9, 3, 12, 7, 5, 11, 6, 3, 8, 40)
POLICIES = {
    "stream": TBPTT(4, 6, continuous=True),
    "overlapping": TBPTT(4, 6, continuous=True, advance=4),
    "uneven": TBPTT(3, 10, continuous=True, jitter=True),
    "long chunks": TBPTT(2, 200, continuous=True),
}


def rows():
    return [
        {"id": f"s{k}", "x": np.arange(n) + 1000 * k, "z": np.arange(n) + 1000.0 * k, "y": k}
        for k, n in enumerate(LENGTHS)
    ]


STORE = MemoryStore.from_sequences(rows())


def lanes_of(batches, lanes):
    """Return what each lane scored, inputs and targets one behind another."""
    found = [[] for _ in range(lanes)]
    for batch in batches:
        batch.validate()
        padded = batch.as_layout("padded")
        score = padded.score
        for row, lane in enumerate(batch.lanes.tolist()):
            x, z, then = (padded[name][row][score[row]] for name in ("x", "z", "targets"))
            assert torch.equal(x.double(), z)
            found[lane].append(torch.stack([x, then]))
    return torch.cat([torch.cat(parts, dim=1) for parts in found if parts], dim=1)


@pytest.mark.parametrize("layout", ["padded", "varlen", "jagged"])
@pytest.mark.parametrize("shift", [1, 3])
@pytest.mark.parametrize("name", POLICIES)
def test_targets_are_what_follows_in_the_stream(name, shift, layout):
    policy = POLICIES[name]
    loader = Loader(STORE, policy, shift={"x": shift}, collator=layout, prefetch=0)
    x, then = lanes_of(loader, policy.lanes)
    assert torch.equal(x[shift:], then[:-shift])
    assert len(x) == sum(LENGTHS) - shift
    whole = torch.cat([x, then[-shift:]])
    ends = [whole.tolist().index(1000 * k) for k in range(len(LENGTHS))]
    for k, n in enumerate(LENGTHS):
        assert whole[ends[k] : ends[k] + n].tolist() == (np.arange(n) + 1000 * k).tolist()


def twice(sequence, _rng):
    return {**sequence, "x": 2 * sequence["x"], "z": 2 * sequence["z"]}


@columnar
def thrice(columns, _seeds):
    return {name: Ragged(3 * columns[name].values, columns[name].lengths) for name in ("x", "z")}


@pytest.mark.parametrize("layout", ["padded", "varlen"])
@pytest.mark.parametrize(("transform", "times"), [(twice, 2), (thrice, 3)])
def test_a_transform_sees_sequences_and_targets_are_of_what_it_gives(transform, times, layout):
    policy = POLICIES["stream"]
    plain, changed = (
        lanes_of(
            Loader(
                STORE, policy, shift={"x": 1}, fields=("x", "z"), transform=one, collator=layout,
                prefetch=0,
            ),
            policy.lanes,
        )
        for one in (None, transform)
    )  # fmt: skip
    assert torch.equal(times * plain, changed)


@pytest.mark.filterwarnings("ignore:share. 4 lanes on 8 ranks:seqdata.errors.SeqDataWarning")
def test_ranks_and_workers_make_the_same_rows():
    policy = POLICIES["overlapping"]
    alone = lanes_of(Loader(STORE, policy, shift={"x": 1}, prefetch=0), policy.lanes)
    for size in (2, 4, 8):
        ranks = [
            Loader(STORE, policy, shift={"x": 1}, prefetch=0, world=World(rank, size))
            for rank in range(size)
        ]
        steps = zip(*ranks, strict=True)
        batches = [one.real() for step in steps for one in step]
        assert torch.equal(lanes_of(batches, policy.lanes), alone)
    with_workers = Loader(STORE, policy, shift={"x": 1}, num_workers=1, start_method="fork")
    assert torch.equal(lanes_of(with_workers, policy.lanes), alone)
    with_workers.shutdown()


def test_a_row_inside_one_sequence_is_no_segment():
    """The common case of long documents costs what any other batch costs."""
    store = MemoryStore.from_sequences([np.arange(10_000)])
    for batch in Loader(store, TBPTT(4, 64, continuous=True), shift=1, prefetch=0):
        assert batch.segments is None
        assert torch.equal((batch["x"] + 1)[batch.mask], batch["targets"][batch.mask])
        assert batch["targets"].untyped_storage().data_ptr() == (
            batch["x"].untyped_storage().data_ptr()
        )


def test_inputs_and_targets_are_one_tensor_over_the_ends_of_sequences_too():
    batch = next(iter(Loader(STORE, POLICIES["stream"], shift={"x": 1}, prefetch=0)))
    assert batch.segments is not None
    assert batch["targets"].untyped_storage().data_ptr() == (
        batch["x"].untyped_storage().data_ptr()
    )


def broken(sequence, _rng):
    if sequence["y"] == 4:
        raise CorruptSampleError("it is broken")
    return sequence


@pytest.mark.parametrize("layout", ["padded", "varlen"])
def test_a_row_with_a_broken_sequence_is_masked(layout):
    policy = POLICIES["stream"]
    options = {"shift": {"x": 1}, "collator": layout, "prefetch": 0}
    good = list(Loader(STORE, policy, **options))
    bad = list(Loader(STORE, policy, transform=broken, on_error="mask", **options))
    masked = 0
    for one, other in zip(good, bad, strict=True):
        one, other = one.as_layout("padded"), other.as_layout("padded")
        for row in range(len(one)):
            if float(other.weight[row]):
                length = int(one.lengths[row])
                assert torch.equal(one["x"][row, :length], other["x"][row, :length])
                assert torch.equal(one["targets"][row, :length], other["targets"][row, :length])
            else:
                masked += 1
                needed = {*one["x"][row].tolist(), *one["targets"][row].tolist()}
                assert needed & set(range(4000, 4000 + LENGTHS[4])) or not int(one.lengths[row])
    assert masked


def test_samples_are_refused_where_a_row_holds_several_sequences():
    loader = Loader(
        STORE, POLICIES["stream"], shift={"x": 1}, collator=lambda samples: samples, prefetch=0
    )
    with pytest.raises(ConfigError, match="takes one sequence per row, but rows of this policy"):
        list(loader)


def test_a_joined_column_is_a_column():
    parts = [np.arange(3), np.arange(10, 12), np.arange(0), np.arange(20, 24)]
    joined = RowColumn(ArrayColumn(np.dtype(int), (), parts), np.array([0, 2, 3, 4]))
    assert (len(joined), joined.dtype, joined.shape) == (3, np.dtype(int), ())
    assert joined.lengths.tolist() == [5, 0, 4]
    assert [joined[row].tolist() for row in range(3)] == [[0, 1, 2, 10, 11], [], [20, 21, 22, 23]]
    out = np.full(18, -1)
    joined.fill(out, np.array([0, 6, 12, 18]), None)
    assert out.tolist() == [0, 1, 2, 10, 11, 0, *[0] * 6, 20, 21, 22, 23, 0, 0]
