"""What a policy, collator or store of somebody else can do is asked, never its class."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from seqdata import Bucketed, Fixed, Loader, Windows
from seqdata.collators.padded import Padded
from seqdata.errors import ConfigError, PlanError
from seqdata.loading.workers.worker import collect_fingerprints
from seqdata.storage.dataset import DatasetStore
from seqdata.storage.memory import MemoryStore

SEQUENCES = [{"x": np.arange(n, dtype=np.float32) + 100 * k} for k, n in enumerate((9, 4, 12, 7))]
STORE = MemoryStore.from_sequences(SEQUENCES)


def add_noise(sequence, rng):
    return {"x": sequence["x"] + rng.normal()}


@dataclass(frozen=True)
class OwnCrops:
    """Random crops of somebody else: no subclass of ``Windows``."""

    size: int
    random: bool = True
    axis: str = "time"

    @property
    def windows(self):
        per_sequence = 3 if self.random else 1
        return Windows(self.size, batch_size=4, random=self.random, per_sequence=per_sequence)

    def plan(self, index, *, seed, epoch):
        return self.windows.plan(index, seed=seed, epoch=epoch)

    def num_batches(self, index):
        return self.windows.num_batches(index)

    def crop_numbers(self, index, spans, *, seed, epoch):
        return self.windows.crop_numbers(index, spans, seed=seed, epoch=epoch)


def values(loader):
    return [batch["x"] for batch in loader]


@pytest.mark.parametrize("random", [False, True])
def test_the_crops_of_any_policy_draw_numbers_of_their_own(random):
    policy = OwnCrops(3, random)
    found = values(Loader(STORE, policy, seed=5, transform=add_noise, prefetch=0))
    due = values(Loader(STORE, policy.windows, seed=5, transform=add_noise, prefetch=0))
    assert len(found) == len(due)
    assert all(map(torch.equal, found, due))


def test_any_policy_of_crops_needs_exact_lengths_and_says_what_does_not_fit():
    def thin(sequence, rng):
        return {"x": sequence["x"][:: int(rng.integers(1, 3))]}

    thin.max_length = lambda lengths: lengths
    with pytest.raises(ConfigError, match="windows need exact lengths"):
        Loader(STORE, OwnCrops(3), transform=thin)
    with pytest.raises(PlanError, match="no window fits"):
        Loader(STORE, OwnCrops(50))


@dataclass(frozen=True)
class OwnPadded:
    """A collator of somebody else that makes views of one column, as ``Padded`` does."""

    joint_targets: bool = True
    allocate: object = np.empty
    seen: list = field(default_factory=list)

    def with_allocator(self, allocate):
        return replace(self, allocate=allocate)

    def __call__(self, columns, batch):
        self.seen.append((set(columns), self.allocate))
        return Padded(allocate=self.allocate)(columns, batch)


@pytest.mark.parametrize("joint", [False, True])
def test_any_collator_may_take_inputs_and_targets_as_one_column(joint):
    collator = OwnPadded(joint)
    found = list(Loader(STORE, Bucketed(2), shift=1, collator=collator, prefetch=0))
    due = list(Loader(STORE, Bucketed(2), shift=1, prefetch=0))
    for one, other in zip(found, due, strict=True):
        assert torch.equal(one["x"] * one.mask, other["x"] * other.mask)
        assert torch.equal(one["targets"] * one.mask, other["targets"] * other.mask)
    assert {frozenset(names) for names, _ in collator.seen} == {
        frozenset({"x"} if joint else {"x", "targets"})
    }
    assert all(allocate is not np.empty for _, allocate in collator.seen)


@dataclass(frozen=True)
class OwnSamples:
    """A collator of somebody else that hands out what it makes, of items as a Dataset gave them."""

    output_field: str = "made"
    form: object = None

    def with_item_form(self, form):
        return replace(self, form=form)

    def __call__(self, columns, batch):
        batch.data = {"made": (self.form, {name: len(column) for name, column in columns.items()})}
        return batch


class OwnStore:
    """A store of somebody else around a Dataset: no subclass of ``DatasetStore``."""

    is_copied_to_workers = True

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def keys(self, numbers):
        return self.inner.keys(numbers)

    def base_numbers(self, numbers):
        return numbers

    def read(self, spans, fields, *, axis="time"):
        return self.inner.read(spans, fields, axis=axis)

    fields = property(lambda self: self.inner.fields)
    lengths = property(lambda self: self.inner.lengths)
    lengths_of = property(lambda self: self.inner.lengths_of)
    shards = property(lambda self: self.inner.shards)
    fingerprint = property(lambda self: self.inner.fingerprint)
    item_form = property(lambda self: self.inner.item_form)


class Pairs:
    def __len__(self):
        return 8

    def __getitem__(self, item):
        return np.full(item + 2, item, dtype=np.float32), item


def as_they_are(samples):
    return samples


def test_any_store_of_items_hands_them_out_as_they_were():
    store = OwnStore(DatasetStore.from_dataset(Pairs(), range(2, 10)))
    for samples in Loader(store, Fixed(4), collator=as_they_are, prefetch=0):
        assert all(isinstance(sample, tuple) for sample in samples)
        assert all(len(sample[0]) == sample[1] + 2 for sample in samples)


def test_any_collator_may_get_items_as_they_were_and_hand_out_what_it_makes():
    store = OwnStore(DatasetStore.from_dataset(Pairs(), range(2, 10)))
    outputs = list(Loader(store, Fixed(4), collator=OwnSamples(), prefetch=0))
    assert [counts for _, counts in outputs] == [{"x": 4, "y": 4}] * 2
    assert all(form is not None for form, _ in outputs)


@pytest.mark.parametrize("is_copied", [False, True])
def test_the_fingerprint_of_a_copy_is_not_asked_in_workers(is_copied):
    store = OwnStore(DatasetStore.from_dataset(Pairs(), range(2, 10)))
    store.is_copied_to_workers = is_copied
    loader = Loader(store, Fixed(4), prefetch=0)
    found = collect_fingerprints(loader._engine._components.fetcher)
    assert found == ([] if is_copied else [store.fingerprint])
