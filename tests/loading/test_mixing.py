"""Mixtures through a Loader: parts by name, own ids and epochs, any world, workers and resume."""

import functools
import json
from collections import Counter

import numpy as np
import pytest
import torch

from seqdata import (
    Bucketed,
    ConfigError,
    Fixed,
    Loader,
    Mix,
    Packed,
    Part,
    ResumeError,
    Segments,
    TokenBudget,
    Weighted,
    Windows,
    World,
    open_store,
    write_store,
)
from tests.samples import add_noise

MIX = Mix(
    {
        "books": Part(0.6, TokenBudget(96)),
        "code": Part(0.3, Bucketed(4)),
        "talk": Part(0.1, Fixed(3)),
    },
    batches=61,
    balance_ranks=4,  # else the order follows the ranks with which the run begins
)


def rows(count, seed):
    rng = np.random.default_rng(seed)
    return [
        {"x": rng.integers(0, 9, size=rng.integers(1, 20)), "y": number} for number in range(count)
    ]


def data():
    return {"books": rows(90, 1), "code": rows(20, 2), "talk": rows(7, 3)}


def described(batch):
    return (
        batch.part, batch.part_epoch, batch.number, batch.ids.tolist(), batch["x"].tolist(),
        batch.weight.tolist(), batch.update_num_tokens,
    )  # fmt: skip


def play(loader):
    try:
        return [described(batch) for batch in loader]
    finally:
        loader.shutdown()


@functools.cache
def whole():
    """Three epochs in one process."""
    loader = Loader(data(), MIX, seed=5)
    return [play(loader) for _ in range(3)]


def test_ids_are_numbers_in_the_parts_own_store():
    loader = Loader(data(), MIX)
    assert len(loader) == 61
    for batch in loader:
        assert batch["y"].tolist() == batch.ids.tolist()
        store = loader.store.parts[batch.part]
        assert (
            store.keys(batch)
            == loader.store.keys(batch)
            == [str(number) for number in batch.ids.tolist()]
        )
        if batch.part == "code":
            assert (batch.positions >= 90).all()


def test_ids_of_views_are_those_of_their_base():
    base = open_store(rows(30, 4))
    parts = {"odd": base.take(range(1, 30, 2)), "even": base.take(range(0, 30, 2))}
    for batch in Loader(parts, Mix({"odd": 1, "even": 1}, Fixed(4))):
        assert batch["y"].tolist() == batch.ids.tolist()
        assert set((batch.ids % 2).tolist()) == {int(batch.part == "odd")}


def test_parts_continue_over_the_epochs_of_the_mixture():
    seen = {}
    for epoch in whole():
        for part, own_epoch, _, ids, *_ in epoch:
            seen.setdefault((part, own_epoch), []).extend(ids)
    last = {part: max(epoch for name, epoch in seen if name == part) for part, _ in seen}
    for (part, own_epoch), ids in seen.items():
        assert len(set(ids)) == len(ids)
        assert own_epoch == last[part] or len(ids) == {"books": 90, "code": 20, "talk": 7}[part]
    assert last["books"] > 4


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.slow
def test_workers_change_nothing(workers):
    assert play(Loader(data(), MIX, seed=5, num_workers=workers)) == whole()[0]


@pytest.mark.parametrize("size", [2, 3, 8])
def test_ranks_change_nothing(size):
    ranks = [play(Loader(data(), MIX, seed=5, world=World(rank, size))) for rank in range(size)]
    batches = [batch[:5] for step in zip(*ranks, strict=True) for batch in step if batch[5][0]]
    assert batches == [batch[:5] for batch in whole()[0]]


def test_the_ranks_of_a_step_have_the_same_part():
    ranks = [play(Loader(data(), MIX, seed=5, world=World(rank, 4))) for rank in range(4)]
    assert all(len({batch[0] for batch in step}) == 1 for step in zip(*ranks, strict=True))


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (2, 3))]
)
def test_a_run_that_stops_anywhere_continues_exactly_on_any_world(seed):
    rng = np.random.default_rng(seed)
    expected = [batch[:5] for epoch in whole()[:2] for batch in epoch]
    state, played = None, []
    while len(played) < len(expected):
        size = int(rng.integers(1, 9))
        loaders = [Loader(data(), MIX, seed=5, world=World(rank, size)) for rank in range(size)]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(json.loads(state))
        batches = [iter(loader) for loader in loaders]
        for _ in range(int(rng.integers(1, 12))):
            step = [next(iterator, None) for iterator in batches]
            if step[0] is None:
                break
            played += [described(batch)[:5] for batch in step if batch.weight[0]]
        states = {json.dumps(loader.state_dict()) for loader in loaders}
        assert len({json.loads(saved)["position"] for saved in states}) == 1
        state = states.pop()
        assert len(state) < 1024
    assert played == expected


def test_a_state_of_other_weights_or_parts_is_refused():
    state = Loader(data(), MIX, seed=5).state_dict()
    others = Mix({**MIX.parts, "talk": Part(0.2, Fixed(3))}, batches=61)
    with pytest.raises(ResumeError, match="`policy` was"):
        Loader(data(), others, seed=5).load_state_dict(state)
    changed = {**data(), "talk": rows(8, 3)}
    with pytest.raises(ResumeError, match=r"'talk' has other data or another policy\. Restore"):
        Loader(changed, MIX, seed=5).load_state_dict(state)


def test_augmentation_is_that_of_the_parts_own_epoch():
    """Another pass draws other numbers; how often others come does not matter."""
    mixes = [
        Mix({"a": 3, "b": 1}, Fixed(2), batches=40),
        Mix({"a": 1, "b": 1}, Fixed(2), batches=40),
    ]
    drawn = [{}, {}]
    for found, mix in zip(drawn, mixes, strict=True):
        for batch in Loader({"a": rows(6, 1), "b": rows(6, 2)}, mix, transform=add_noise):
            for number, value in zip(
                batch.ids.tolist(), batch["r"].flatten().tolist(), strict=True
            ):
                found[batch.part, batch.part_epoch, number] = value
    assert all(len(set(found.values())) == len(found) for found in drawn)
    common = drawn[0].keys() & drawn[1].keys()
    assert len(common) > 40
    assert all(drawn[0][key] == drawn[1][key] for key in common)


def test_random_crops_are_those_of_the_parts_own_epoch():
    mix = Mix({"a": 1, "b": 1}, Windows(3, batch_size=2, random=True, per_sequence=2), batches=30)
    long = [{"x": np.arange(40)} for _ in range(3)]
    starts = {}
    for batch in Loader({"a": long, "b": long}, mix, transform=add_noise):
        key = (batch.part, batch.part_epoch)
        starts.setdefault(key, []).extend(batch.start.tolist())
    assert len({tuple(sorted(found)) for found in starts.values() if len(found) == 6}) > 4


def test_random_crops_are_told_apart_beside_windows_that_are_not_random():
    crops = Windows(3, batch_size=2, random=True, per_sequence=2)
    mix = Mix({"a": Part(1, crops), "b": Part(1, Windows(3, batch_size=2))}, batches=48)
    long = [{"x": np.arange(40)} for _ in range(3)]
    numbers = [
        number
        for batch in Loader({"a": long, "b": long}, mix, transform=add_noise)
        if batch.part == "a"
        for number in batch["r"].flatten().tolist()
    ]
    assert len(set(numbers)) == len(numbers) > 30


CROPS = Windows(3, batch_size=2, random=True, per_sequence=2)
SKEWED = [1.0, 1.0, 1.0, 5.0]


@pytest.mark.parametrize(
    "parts",
    [
        {"a": Part(1, Weighted(CROPS, SKEWED, draws=8)), "b": Part(1, Fixed(2))},
        {"a": Part(1, CROPS), "b": Part(1, Weighted(Fixed(2), SKEWED, draws=8))},
        {"a": Part(2, CROPS), "b": Part(1, Weighted(CROPS, SKEWED, draws=8))},
    ],
    ids=["weighted crops", "crops and weights", "both"],
)
def test_each_window_of_each_draw_of_a_part_has_random_numbers_of_its_own(parts):
    mix = Mix(parts, batches=96, keep="batch")
    long = [{"x": np.arange(4_000)} for _ in range(4)]
    drawn, numbers = {}, []
    for batch in Loader({"a": long, "b": long}, mix, transform=add_noise):
        key = (batch.part, batch.part_epoch)
        drawn.setdefault(key, []).extend(batch.ids.tolist())
        numbers += batch["r"].flatten().tolist()
    assert len(set(numbers)) == len(numbers) == sum(map(len, drawn.values()))
    for name, part in parts.items():
        is_weighted = isinstance(part.policy, Weighted)
        windows = 2 if CROPS in (part.policy, part.policy.policy if is_weighted else None) else 1
        due = [windows, windows, windows, 5 * windows] if is_weighted else 4 * [windows]
        whole = [ids for key, ids in sorted(drawn.items()) if key[0] == name][:-1]
        assert len(whole) > 2
        assert all(np.bincount(ids, minlength=4).tolist() == due for ids in whole)


def test_rows_of_several_sequences_may_be_mixed_with_others():
    mix = Mix({"a": Part(1, Packed(2, 40)), "b": Part(1, Fixed(2))}, batches=40)
    parts = {"a": rows(30, 1), "b": rows(30, 2)}
    for batch in Loader(parts, mix):
        own = parts[batch.part]
        if batch.segments is None:
            assert batch.part == "b"
            assert [len(own[number]["x"]) for number in batch.ids] == batch.lengths.tolist()
            continue
        for _, number, start, stop in batch.segments.tolist():
            assert (start, stop) == (0, len(own[number]["x"]))


def test_a_shift_is_that_of_each_part():
    for batch in Loader(data(), MIX, shift={"x": 1}, fields=["x"]):
        real = batch.mask
        assert torch.equal(batch["targets"][:, :-1][real[:, 1:]], batch["x"][:, 1:][real[:, 1:]])


def test_the_part_can_be_handed_out_and_survives_a_copy():
    loader = Loader(data(), MIX, seed=5, as_dict=("x", "part", "part_epoch", "weight"))
    batch = next(iter(loader))
    assert (batch["part"], batch["part_epoch"]) == (whole()[0][0][0], 0)
    loader.shutdown()
    plain = next(iter(Loader(data(), MIX)))
    assert plain.to("cpu").part == plain.real().part == plain.part
    single = next(iter(Loader(data()["books"], Fixed(2))))
    assert (single.part, single.part_epoch) == (None, None)


def test_stores_on_disk_are_read_through(tmp_path):
    for name, part in data().items():
        write_store(tmp_path / name, part)
    paths = {name: tmp_path / name for name in data()}
    assert [batch[:5] for batch in play(Loader(paths, MIX, seed=5))] == [
        batch[:5] for batch in whole()[0]
    ]


def test_an_error_names_the_batch_and_the_parts_sequence():
    def broken(sequence, rng):
        if sequence["y"] == 3 and len(sequence["x"]) == len(rows(7, 3)[3]["x"]):
            raise ValueError("broken here")
        return sequence

    with pytest.raises(ValueError, match="broken here") as caught:
        play(Loader(data(), MIX, transform=broken))
    assert "epoch 0, batch" in "".join(caught.value.__notes__)


def test_a_mixture_needs_named_stores_and_named_stores_a_mixture():
    with pytest.raises(ConfigError, match="must be several named stores, but is one"):
        Loader(rows(3, 1), MIX)
    with pytest.raises(ConfigError, match="named stores need a policy that draws from them"):
        Loader(data(), Fixed(2))


def test_datasets_with_lengths_may_be_parts():
    class Items(torch.utils.data.Dataset):
        def __init__(self, part):
            self.part = part

        def __len__(self):
            return len(self.part)

        def __getitem__(self, number):
            return {"x": torch.tensor(self.part[number]["x"])}

    parts = {"a": Items(rows(8, 1)), "b": Items(rows(5, 2))}
    lengths = {name: [len(row["x"]) for row in part.part] for name, part in parts.items()}
    mix = Mix({"a": 1, "b": 1}, Fixed(2), batches=20)
    for of in (lengths, lambda item: len(item["x"])):
        counted = Counter(batch.part for batch in Loader(parts, mix, lengths=of))
        assert set(counted) == {"a", "b"}


@pytest.mark.parametrize("rows", [False, True])
def test_errors_are_listed_with_the_part_that_they_are_of(rows):
    def fails(sequence, rng):
        if sequence["x"][0] in (20, 103):
            raise ValueError("bad")
        return sequence

    stores = {
        "a": [{"x": np.full(n % 5 + 1, n)} for n in range(30)],
        "b": [{"x": np.full(n % 5 + 1, 100 + n)} for n in range(10)],
    }
    policy = Mix({"a": 3, "b": 1}, Bucketed(4), rows=rows)
    loader = Loader(stores, policy, transform=fails, on_error="mask")
    for _ in range(3):
        list(loader)
    found = {(line["part"], line["sequence"]) for line in loader.errors}
    assert found == {("a", 20), ("b", 30 + 3)}


# passes, parts, epochs and seeds are each shuffled by themselves


@pytest.mark.parametrize("batches", [24, 40])
def test_no_two_passes_parts_or_seeds_have_one_order(batches):
    """The parts hold the same data, of which the epochs of the mixture have several passes."""
    rows = [np.ones(1)] * 8
    orders = {}
    for seed in (0, 1):
        loader = Loader(
            {"a": rows, "b": rows}, Mix({"a": 1, "b": 1}, Fixed(1), batches=batches), seed=seed
        )
        for _ in range(3):
            for batch in loader:
                key = (seed, batch.part, batch.part_epoch)
                orders.setdefault(key, []).append(batch.ids.item())
    whole = [tuple(order) for order in orders.values() if len(order) == len(rows)]
    assert len(whole) >= 2 * 2 * 4
    assert all(sorted(order) == list(range(8)) for order in whole)
    assert len(set(whole)) == len(whole)


RESUMED = {
    "mix": lambda: Mix({"a": 2, "b": 1}, Fixed(2), batches=24),
    "rows": lambda: Mix({"a": 2, "b": 1}, Fixed(4), rows=True),
    "segments": lambda: Segments(Mix({"a": 2, "b": 1}, Fixed(2), batches=24), 3),
    "weighted": lambda: Mix({"a": 2, "b": 1}, Weighted(Fixed(2)), batches=24),
}


@pytest.mark.parametrize("make", RESUMED.values(), ids=RESUMED)
@pytest.mark.parametrize("earlier", [0, 3, 11])
def test_a_loader_that_is_resumed_again_forgets_where_it_was(make, earlier):
    """A state is loaded twice, and by a loader that has played something else before."""
    data = {"a": [np.ones(1)] * 7, "b": [np.ones(1)] * 12}

    def record(batch):
        return batch.number, batch.part, batch.part_epoch, batch.ids.tolist()

    loader = Loader(data, make(), seed=4, prefetch=0)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    if isinstance(make(), Segments):
        loader.set_weights({"a": 1, "b": 5})
    state = loader.state_dict()
    due = [record(batch) for batch in iterator]
    again = Loader(data, make(), seed=4, prefetch=0)
    for _ in range(2):
        other = iter(again)
        for _ in range(earlier):
            next(other, None)
        again.load_state_dict(state)
        assert [record(batch) for batch in again] == due
