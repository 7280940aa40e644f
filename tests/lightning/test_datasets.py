"""Torch Datasets and a `collate_fn` under the Trainer's DataModule."""

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
    return SequenceDataModule(batching=Fixed(4, shuffle=False), **options)


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
    with pytest.raises(ConfigError, match=r"`lengths` of 'val' must be by name, .*\(a, b\)"):
        data.val_dataloader()


def test_lengths_by_unknown_names_are_refused():
    with pytest.raises(ConfigError, match="`lengths` has valid, must be by train, val, test"):
        made(train=TRAIN, lengths={"valid": [1]})


def test_a_dataset_without_lengths_is_refused():
    with pytest.raises(ConfigError, match="a Squares has no lengths to plan with; pass `lengths`"):
        made(train=TRAIN).train_dataloader()


def test_what_a_collate_fn_makes_is_handed_out():
    data = made(train=TRAIN, lengths=length_of, collator=lambda samples: len(samples))
    assert list(data.train_dataloader()) == [3]


def test_fields_name_the_parts_of_a_tuple():
    data = made(train=TRAIN, lengths=length_of, fields=("squares", "number"))
    (batch,) = data.train_dataloader()
    assert batch["squares"].shape == (3, 3)
