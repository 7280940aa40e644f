"""Batches of worker processes are those of none, bit by bit, whatever else is asked for (I3, I4).

``tests/table`` shows the same for every store, policy and layout.
"""

import functools
import json
import time
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqdata import Bucketed, Fixed, Loader, Ragged, Windows, World, columnar, measure_lengths
from seqdata.batch.batch import SequenceBatch
from seqdata.errors import LimitError, SeqDataWarning
from seqdata.plan import Plan
from seqdata.storage.dataset import DatasetStore
from seqdata.storage.memory import MemoryStore
from tests.loading.workers.parts import (
    SQUARES_LENGTHS,
    STORE,
    Squares,
    Twice,
    TwiceByLambda,
    noisy,
    playing,
    same,
    words,
)
from tests.properties.counts import examples

CASES = examples(1 / 12, here=5)  # real processes


@columnar
def shifted_values(columns, seeds):
    x = columns["x"]
    return {"x": Ragged(x.values + np.repeat(seeds % 7, x.lengths).astype(np.float32), x.lengths)}


def gathered(samples):
    return {"x": torch.cat([sample["x"] for sample in samples]), "n": [len(samples), "texts"]}


@functools.cache
def measured():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeqDataWarning)
        return measure_lengths(STORE, words, cache=False, progress=False)


WAYS = {
    "plain": {},
    "noise per sequence": {"transform": noisy},
    "columnar": {"transform": shifted_values, "fields": ("x",)},
    "longer": {"transform": Twice()},
    "longer, by a lambda": {"transform": TwiceByLambda()},
    "measured": {"store": measured},
    "view with repeats": {"store": STORE.take([5, 3, 3, 9, 3, 20, 5, 41]), "transform": noisy},
    "crops": {
        "transform": noisy,
        "policy": Windows(size=2, batch_size=3, random=True, per_sequence=3),
    },
    "forecast": {"transform": noisy, "policy": Windows(size=2, batch_size=4, horizon=1)},
    "shift": {"fields": ("x",), "shift": 1},
    "shift of a transform": {"transform": Twice(), "shift": 1},
    "shift, packed": {"fields": ("x",), "shift": 1, "collator": "packed"},
    "a list of samples": {"collator": gathered, "fields": ("x",)},
    "a tuple": {"as_tuple": ("x", "lengths", "weight")},
    "dataset": {"store": Squares(), "lengths": SQUARES_LENGTHS, "fields": ("x",)},
}
WAYS["view of a dataset"] = {
    "store": DatasetStore.from_dataset(Squares(), SQUARES_LENGTHS).take([4, 4, 2, 30, 9]),
    "fields": ("x",),
}


def loader_of(way, **more):
    options = {"policy": Bucketed(4), "store": STORE, **WAYS[way], **more}
    store, policy = options.pop("store"), options.pop("policy")
    if callable(store):
        store = store()
    return Loader(store, policy, **options)


def parts(batch):
    """Return what can be compared, of whatever is handed out."""
    return batch.__getstate__() if isinstance(batch, SequenceBatch) else {"all": batch}


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return repr(one) == repr(other)


def check(way, **options):
    """Play two epochs with and without workers."""
    alone = {key: value for key, value in options.items() if key != "num_workers"}
    one = loader_of(way, **alone)
    other = loader_of(way, start_method="fork", **options)
    try:
        for _ in range(2):
            for left, right in zip(one, other, strict=True):
                assert equal(parts(left), parts(right))
    finally:
        other.shutdown()


@pytest.mark.shows("I3", by="processes")
@pytest.mark.parametrize("way", WAYS)
def test_batches_are_the_same_as_without_workers(way):
    check(way, num_workers=2, seed=3)


@pytest.mark.shows("I3", by="processes")
@CASES
@given(
    way=st.sampled_from(sorted(WAYS)),
    num_workers=st.integers(1, 3),
    prefetch=st.sampled_from([0, 1, 2]),
    seed=st.integers(0, (1 << 64) - 1),
    rank=st.integers(0, 1),
)
@pytest.mark.slow
def test_the_number_of_workers_and_what_is_read_ahead_change_nothing(
    way, num_workers, prefetch, seed, rank
):
    world = World(rank, 2)
    more = {"as_tuple": ("x", "lengths", "weight")} if way == "a tuple" else {}
    if way == "a list of samples":
        world = World()  # its output cannot tell padding rows
    check(way, num_workers=num_workers, prefetch=prefetch, seed=seed, world=world, **more)


@pytest.mark.shows("I4", by="processes")
@CASES
@given(
    way=st.sampled_from(["plain", "noise per sequence", "longer", "crops", "dataset"]),
    cuts=st.lists(st.integers(0, 6), min_size=1, max_size=2),
    workers=st.lists(st.integers(0, 2), min_size=3, max_size=3),
)
@pytest.mark.slow
def test_an_epoch_goes_on_where_it_was_left_with_another_number_of_workers(way, cuts, workers):
    due = list(loader_of(way, seed=1))
    found, state = [], None
    for number, cut in enumerate([*cuts, len(due)]):
        loader = loader_of(way, seed=1, num_workers=workers[number], start_method="fork")
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        if len(found) == len(due):
            break
        batches = iter(loader)
        found += [next(batches) for _ in range(min(cut, len(due) - len(found)))]
        state = loader.state_dict()
        batches.close()
        loader.shutdown()
    assert len(found) == len(due)
    for one, other in zip(due, found, strict=True):
        assert equal(parts(one), parts(other))


def test_two_ranks_with_workers_deal_out_one_epoch():
    store = STORE.take(range(25))  # seven batches: the last step has padding rows
    ranks = [
        Loader(
            store, Bucketed(4), world=World(rank, 2), transform=noisy, num_workers=1,
            start_method="fork",
        )
        for rank in range(2)
    ]  # fmt: skip
    seen = [
        int(number)
        for loader in ranks
        for batch in loader
        for number, weight in zip(batch.ids, batch.weight, strict=True)
        if weight > 0
    ]
    assert sorted(seen) == list(range(25))
    for loader in ranks:
        loader.shutdown()


def test_answers_are_taken_in_the_order_of_the_plan_not_of_their_coming():
    store = MemoryStore.from_sequences([np.arange(1 + number % 3) for number in range(40)])

    def earlier_ones_take_longer(sequence, rng):
        time.sleep(0.03 if int(rng.integers(0, 4)) == 0 else 0)
        return sequence

    with playing(
        earlier_ones_take_longer, store=store, num_workers=3, policy=Fixed(1, shuffle=False)
    ) as loader:
        assert [int(batch.ids[0]) for batch in loader] == list(range(40))


def test_every_batch_of_an_epoch_may_be_kept():
    kept, copies = [], []
    with playing(noisy, num_workers=2, prefetch=0) as loader:
        for batch in loader:
            kept.append(batch)
            copies.append({name: batch[name].clone() for name in ("x", "half", "even", "y")})
        slices = [batch["x"][1:, :1] for batch in kept]
        alone = [batch["x"].detach().numpy()[0] for batch in kept]
        list(loader)  # another epoch over the same slots
        for batch, copy, part, row in zip(kept, copies, slices, alone, strict=True):
            assert all(torch.equal(batch[name], copy[name]) for name in copy)
            assert torch.equal(part, copy["x"][1:, :1])
            assert np.array_equal(row, copy["x"].numpy()[0])
    assert all(torch.equal(one["x"], two["x"]) for one, two in zip(kept, copies, strict=True))


def test_an_answer_larger_than_a_slot_takes_another_way(monkeypatch):
    monkeypatch.setattr("seqdata.loading.workers.pool.SLOT_BYTES", 4096)
    monkeypatch.setattr("seqdata.loading.workers.session.SLOT_BYTES", 4096)
    store = MemoryStore.from_sequences(
        [np.arange(200 * (number % 4) + 1.0) for number in range(24)]
    )
    options = {"store": store, "num_workers": 2, "policy": Fixed(2)}
    with playing(**options) as loader:
        for _ in range(2):
            assert same(loader, Loader(store, Fixed(2), epoch=loader.epoch))


def test_requests_that_fill_a_slot_go_on_in_the_next_task(monkeypatch):
    """Two or three requests fit into a slot, whatever the workers could do at once."""
    monkeypatch.setattr("seqdata.loading.workers.pool.SLOT_BYTES", 4096)
    monkeypatch.setattr("seqdata.loading.workers.session.SLOT_BYTES", 4096)
    store = MemoryStore.from_sequences([np.ones(1)] * 2400)
    with playing(store=store, num_workers=2, policy=Fixed(40)) as loader:
        for _ in range(3):
            assert same(loader, Loader(store, Fixed(40), epoch=loader.epoch))


def test_a_batch_of_too_many_sequences_is_refused_after_those_before_it(monkeypatch):
    monkeypatch.setattr("seqdata.loading.workers.pool.SLOT_BYTES", 4096)
    monkeypatch.setattr("seqdata.loading.workers.session.SLOT_BYTES", 4096)
    seen = []
    few = playing(store=MemoryStore.from_sequences([[1]] * 300), policy=Ends())
    message = "200 spans of a batch take"
    with few as loader, pytest.raises(LimitError, match=message) as caught:
        seen.extend(len(batch) for batch in loader)
    assert seen == [2, 2]
    assert caught.value.details["batch"] == 2


class Ends:
    """Two batches of two, then one of two hundred, and two of two."""

    axis = "time"

    def plan(self, index, *, seed, epoch):
        spans = np.zeros((208, 3), dtype=np.int64)
        spans[:, 0], spans[:, 2] = np.arange(208), 1
        return Plan(spans, offsets=np.array([0, 2, 4, 204, 206, 208]))

    def num_batches(self, index):
        return 5


def conjugate(samples):
    return torch.fft.rfft(torch.stack([sample["x"] for sample in samples])).conj()


def nested(samples):
    return torch.nested.nested_tensor([sample["x"] for sample in samples])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("collate", [conjugate, nested])
def test_whatever_a_collate_fn_returns_comes_from_a_worker_too(collate):
    rows = [np.arange(4, dtype="f4") + row for row in range(4)]
    found = []
    for workers in (0, 1):
        loader = Loader(rows, Fixed(2, shuffle=False), collator=collate, num_workers=workers)
        found.append([[row.tolist() for row in batch.unbind()] for batch in loader])
        loader.shutdown()
    assert found[0] == found[1]
