"""Selecting rows of a batch."""

import numpy as np
import pytest
import torch

from seqdata.batch.batch import SequenceBatch, select_rows
from seqdata.errors import UnknownNameError
from seqdata.loading.loader import Loader
from seqdata.policies.fixed import Fixed
from seqdata.storage.memory import MemoryStore


def test_what_is_left_keeps_the_width_of_the_data():
    def fails(sequence, rng):
        if len(sequence["t"]) == 4:
            raise ValueError("the longest")
        return sequence

    rows = [{"x": np.ones(3), "t": np.arange(n)} for n in (4, 2, 3)]
    store = MemoryStore.from_sequences(rows, axes={"x": "time", "t": "text"})
    loader = Loader(store, Fixed(3, shuffle=False), transform=fails, on_error="mask", prefetch=0)
    batch = next(iter(loader)).real().validate()
    assert batch["t"].tolist() == [[0, 1, 0], [0, 1, 2]]
    assert batch.as_layout("varlen").as_layout("padded").validate()["t"].shape == (2, 3)


def test_rows_of_a_batch_by_hand_keep_its_width():
    batch = SequenceBatch(
        data={"x": torch.arange(14).view(2, 7)}, lengths=torch.tensor([5, 2]),
        ids=torch.tensor([0, 1]), weight=torch.tensor([0.0, 1.0]), start=torch.zeros(2).long(),
        num_tokens=2, horizon=2,
    ).validate()  # fmt: skip
    left = batch.real().validate()
    assert left.future["x"].tolist() == batch.future["x"][1:].tolist() == [[9, 10]]
    assert left.mask.shape == (1, 5)


def test_rows_of_all_parts_are_selected():
    batch = SequenceBatch(
        data={"x": torch.arange(3.0)[:, None], "name": ["a", "b", "c"]},
        lengths=torch.ones(3, dtype=torch.int64),
        ids=torch.tensor([7, 8, 9]),
        weight=torch.tensor([1.0, 0.0, 1.0]),
        start=torch.zeros(3, dtype=torch.int64),
        segments=torch.tensor([[0, 7, 0, 1], [1, 8, 0, 1], [2, 9, 0, 1]]),
        lengths_of={"time": torch.ones(3, dtype=torch.int64)},
        epoch=0, number=0, num_tokens=2, global_num_tokens=2, update_num_tokens=2,
        loss_scale=1.0, sequence_scale=1.0,
    )  # fmt: skip
    rows = select_rows(batch, batch.weight > 0)
    assert rows["data"]["x"].tolist() == [[0.0], [2.0]]
    assert rows["data"]["name"] == ["a", "c"]
    assert rows["ids"].tolist() == [7, 9]
    assert rows["lanes"] is None
    assert rows["lengths_of"]["time"].tolist() == [1, 1]
    with pytest.raises(UnknownNameError, match=r"no axis 'frame'.*Choose one of time"):
        rows["lengths_of"]["frame"]
    assert rows["segments"].tolist() == [[0, 7, 0, 1], [1, 9, 0, 1]]
    assert len(batch) == 3
