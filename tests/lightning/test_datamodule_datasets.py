"""Torch Datasets and a `collate_fn` under the Trainer's DataModule."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from seqdata.errors import ConfigError
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.policies.fixed import Fixed

LENGTHS = {"train": [2, 3, 1], "val": [4, 1]}


class Squares(Dataset):
    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, number):
        return torch.arange(self.lengths[number]) ** 2, number


TRAIN, VAL = Squares(LENGTHS["train"]), Squares(LENGTHS["val"])


def length_of(item):
    return len(item[0])


def made(**options):
    return SequenceDataModule(**{"batching": Fixed(4, shuffle=False), **options})


def lengths(loader):
    return [batch.lengths.tolist() for batch in loader]


@pytest.mark.parametrize("given", [LENGTHS, length_of])
def test_lengths_go_by_what_a_dataset_is_passed_as(given):
    data = made(train=TRAIN, val=VAL, lengths=given)
    assert lengths(data.train_dataloader()) == [[2, 3, 1]]
    assert lengths(data.val_dataloader()) == [[4, 1]]


def test_an_array_is_of_the_training_data():
    data = made(train=TRAIN, val=[np.zeros(2)], lengths=np.array([2, 3, 1]))
    assert lengths(data.train_dataloader()) == [[2, 3, 1]]
    assert lengths(data.val_dataloader()) == [[2]]


def test_a_function_leaves_what_knows_its_lengths_alone():
    data = made(train=TRAIN, val=[np.zeros(2)], lengths=length_of)
    assert lengths(data.val_dataloader()) == [[2]]


def test_lengths_of_named_locations_go_by_name():
    named = {"a": VAL, "b": [np.zeros(2)]}
    data = made(val=named, lengths={"val": {"a": [4, 1]}})
    assert [lengths(loader) for loader in data.val_dataloader()] == [[[4, 1]], [[2]]]
    data = made(val=named, lengths={"val": [4, 1]})
    with pytest.raises(ConfigError, match=r"names of its locations \(a, b\), but is a list"):
        data.val_dataloader()


def test_lengths_by_unknown_names_are_refused():
    with pytest.raises(ConfigError, match=r"`lengths` must be train, val, .*, but are valid"):
        made(train=TRAIN, lengths={"valid": [1]})


def test_a_dataset_without_lengths_is_refused():
    with pytest.raises(ConfigError, match="a Squares has no lengths to plan with; pass `lengths`"):
        made(train=TRAIN).train_dataloader()


def test_what_a_collate_fn_makes_is_handed_out():
    data = made(train=TRAIN, lengths=length_of, collator=lambda samples: len(samples))
    assert list(data.train_dataloader()) == [3]


class Given(Dataset):
    """Items of a form, over arrays of 1, 2 and 3 timesteps."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 3

    def __getitem__(self, number):
        return self.make(np.arange(number + 1), number)


class Pair(NamedTuple):
    tokens: Any
    label: int


def pair(x, n):
    return Pair(torch.from_numpy(x), n)


def triple(x, n):
    return x, n, f"n{n}"


def lists(x, n):
    return x.tolist(), float(n), np.int64(n)


def mapping(x, n):
    return {"b": torch.from_numpy(x), "a": n, "c": b"n"}


def as_it_is(samples):
    return samples


def bare(x, n):
    return torch.from_numpy(x)


@pytest.mark.parametrize("make", [pair, triple, lists, mapping, bare])
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_collate_fn_gets_what_the_dataset_gave(make, workers):
    given = Given(make)
    data = made(
        train=given, lengths=[1, 2, 3], batching=Fixed(3, shuffle=False), collator=as_it_is,
        num_workers=workers,
    )  # fmt: skip
    (samples,) = data.train_dataloader()
    wanted = [given[number] for number in range(3)]
    assert repr(samples) == repr(wanted)
    assert [type(one) for one in samples] == [type(one) for one in wanted]
    data.teardown("fit")


def test_a_collate_fn_gets_the_chosen_parts_and_dicts_after_a_transform_or_shift():
    options = {"lengths": [1, 2, 3], "batching": Fixed(3, shuffle=False), "collator": as_it_is}
    (samples,) = made(train=Given(triple), fields=("y", "x"), **options).train_dataloader()
    assert [len(one) for one in samples] == [2, 2, 2]
    assert samples[2][0].tolist() == [0, 1, 2]
    assert samples[2][1] == 2
    named = {"fields": ("frames", "label", "name"), "transform": lambda sequence, rng: sequence}
    (samples,) = made(train=Given(triple), **named, **options).train_dataloader()
    assert [list(one) for one in samples] == [["frames", "label", "name"]] * 3
    (samples,) = made(train=Given(pair), shift=1, **options).train_dataloader()
    assert samples[1]["targets"].tolist() == [1, 2]


def test_fields_name_the_parts_of_a_tuple():
    data = made(train=TRAIN, lengths=length_of, fields=("squares", "number"))
    (batch,) = data.train_dataloader()
    assert batch["squares"].shape == (3, 3)
