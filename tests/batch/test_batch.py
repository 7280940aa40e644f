"""The batch: masks, packing, cutting, moving; whatever lies in the padding."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest
import torch
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch.plugins.precision import HalfPrecision
from lightning.pytorch.utilities.data import extract_batch_size
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch.nn.utils.rnn import pad_packed_sequence

from seqdata import TBPTT, Fixed, Loader, Windows
from seqdata.batch.axes import Axes
from seqdata.batch.batch import SequenceBatch, batch_size_fn, length_fn
from seqdata.errors import ConfigError
from tests.batch.batches import make_batch


def test_the_mask_says_which_timesteps_are_real():
    assert make_batch().mask.tolist() == [[True] * 3, [True, False, False], [True, True, False]]


def test_the_score_leaves_out_dummy_rows_and_burn_in_and_the_mask_does_not():
    batch = make_batch((2, 2, 1), weight=[1.0, 0.0, 0.5], burn_in=torch.tensor([1, 0, 0]))
    assert batch.mask.tolist() == [[True, True], [True, True], [True, False]]
    assert batch.score.tolist() == [[False, True], [False, False], [True, False]]


@pytest.mark.parametrize("fill", [float("nan"), 1e9, float("inf")])
def test_what_lies_in_the_padding_changes_no_masked_sum(fill):
    plain, odd = make_batch(), make_batch(fill=fill)
    assert torch.equal(plain.score, odd.score)
    assert plain["x"][plain.score].sum() == odd["x"][odd.score].sum() == 2 * 6
    unpacked, lengths = pad_packed_sequence(odd.packed("x"), batch_first=True)
    assert torch.equal(unpacked, plain["x"])
    assert lengths.tolist() == [3, 1, 2]


def test_packing_takes_rows_in_any_order_and_hidden_states_come_back_in_it():
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(2, 4, batch_first=True)
    batch = make_batch((1, 3, 2), fill=float("nan"))
    _, (last, _) = lstm(batch.packed("x"))
    for row, length in enumerate(batch.lengths.tolist()):
        _, (alone, _) = lstm(batch["x"][row : row + 1, :length])
        torch.testing.assert_close(last[0, row], alone[0, 0])


def test_a_field_of_another_axis_is_packed_by_its_own_lengths():
    batch = make_batch((3, 1))
    batch.data["text"] = torch.ones(2, 4)
    batch.axes = Axes("time", {"x": "time", "text": "text"})
    batch.lengths_of = {"time": batch.lengths, "text": torch.tensor([2, 4])}
    assert batch.packed("text").data.shape == (6,)
    assert batch.packed("x").data.shape == (4, 2)


def test_rows_of_length_0_cannot_be_packed():
    with pytest.raises(
        ConfigError, match=r"rows \[1\] of length 0 cannot be packed.* `LaneStates`"
    ):
        make_batch((3, 0), number=7).packed("x")


@pytest.mark.parametrize("layout", ["padded", "packed", "jagged", "varlen"])
def test_a_field_without_an_axis_cannot_be_packed(layout):
    batch = make_batch().as_layout(layout)
    with pytest.raises(ConfigError, match="field 'y' has one value per sequence and cannot be"):
        batch.packed("y")
    with pytest.raises(ConfigError, match="field 'id' has one value per sequence"):
        batch.packed("id")


def test_fields_are_looked_up_and_rows_are_counted():
    batch = make_batch()
    assert "x" in batch
    assert "z" not in batch
    assert len(batch) == 3
    assert batch["y"] is batch.data["y"]
    assert repr(batch) == ("SequenceBatch(3 rows: x (3, 3, 2), y (3,), id (3,); epoch 0, batch 0)")


def test_a_field_can_be_set_and_goes_along():
    batch = make_batch()
    batch["x"] = doubled = batch["x"] * 2
    batch["label"] = labels = torch.tensor([4, 5, 6])
    assert batch["x"] is batch.data["x"] is doubled
    assert list(batch) == ["x", "y", "id", "label"]
    assert torch.equal(batch.to("cpu")["label"], labels)
    assert torch.equal(batch.real()["x"], doubled)
    with pytest.raises(ConfigError, match="the name of a field must be a str, but is 0"):
        batch[0] = labels


def test_real_cuts_all_that_has_a_row():
    batch = make_batch(
        (3, 1, 2),
        weight=[1.0, 0.0, 2.0],
        lanes=torch.tensor([4, 5, 6]),
        reset=torch.tensor([True, False, True]),
        burn_in=torch.tensor([0, 0, 1]),
        lengths_of={"time": torch.tensor([3, 1, 2])},
        positions=torch.tensor([7, 8, 9]),
        segments=torch.tensor([[0, 10, 0, 3], [1, 11, 0, 1], [2, 12, 0, 1], [2, 15, 0, 1]]),
    )
    real = batch.real()
    assert real.data["x"].shape == (2, 3, 2)
    assert real.data["id"] == ["s0", "s2"]
    assert real.ids.tolist() == [10, 12]
    assert real.positions.tolist() == [7, 9]
    assert real.lengths.tolist() == real.lengths_of["time"].tolist() == [3, 2]
    assert real.lanes.tolist() == [4, 6]
    assert real.reset.tolist() == [True, True]
    assert real.segments.tolist() == [[0, 10, 0, 3], [1, 12, 0, 1], [1, 15, 0, 1]]
    assert real.score.sum() == batch.score.sum() == batch.num_tokens
    assert len(batch) == 3
    real.validate()


def test_a_batch_of_real_rows_is_its_own_real_part():
    batch = make_batch()
    assert batch.real() is batch


def test_moving_leaves_lengths_ids_and_start_on_the_cpu():
    moved = make_batch(lanes=torch.tensor([0, 1, 2]), reset=torch.ones(3, dtype=torch.bool)).to(
        "meta"
    )
    on_device = (moved["x"], moved["y"], moved.weight, moved.lanes, moved.reset)
    assert all(value.device.type == "meta" for value in on_device)
    assert all(value.device.type == "cpu" for value in (moved.lengths, moved.ids, moved.start))
    assert moved["id"] == ["s0", "s1", "s2"]
    assert moved.score.device.type == "meta"


def test_lightning_moves_and_casts_it():
    batch = make_batch()
    moved = move_data_to_device(batch, torch.device("meta"))
    assert moved["x"].device.type == "meta"
    assert moved.lengths.device.type == "cpu"
    half = HalfPrecision("bf16-true").convert_input(batch)
    assert half["x"].dtype == half.weight.dtype == torch.bfloat16
    assert half["y"].dtype == half.lengths.dtype == torch.int64
    assert half.axes is batch.axes
    assert torch.equal(half.score, batch.score)
    assert batch["x"].dtype == torch.float32


def test_lightning_by_itself_wants_to_be_told_its_rows():
    with pytest.raises(MisconfigurationException, match=r"provide the batch_size as `self.log"):
        extract_batch_size(make_batch())  # under a DataModule it is told: test_batch_size


def test_it_can_be_copied_and_pickled():
    for again in (copy.deepcopy(make_batch()), pickle.loads(pickle.dumps(make_batch()))):
        assert torch.equal(again["x"], make_batch()["x"])
        assert again.axes.along("y") is None
        again.validate()


ROWS = {
    "lengths": np.array([3, 1, 2]),
    "ids": np.array([10, 11, 12]),
    "weight": np.ones(3, dtype=np.float32),
    "start": np.zeros(3, dtype=np.int64),
    "reset": np.array([True, False, True]),
}


def described():
    rows = copy.deepcopy(ROWS)
    batch = SequenceBatch.described(rows.pop("lengths"), (rows, slice(3)), Axes("frames", {}))
    batch.number = 5
    return batch


@pytest.mark.parametrize("way", [lambda batch: batch, copy.copy, copy.deepcopy, "pickle", "to"])
def test_what_is_said_of_rows_becomes_a_tensor_when_asked_for(way):
    batch = described()
    assert len(batch) == 3
    assert {"lengths", "reset", "lengths_of"} <= set(dir(batch))
    if way == "pickle":
        batch = pickle.loads(pickle.dumps(batch))
    else:
        batch = batch.to("cpu") if way == "to" else way(batch)
    assert len(batch) == 3
    for name, rows in ROWS.items():
        value = getattr(batch, name)
        assert value.tolist() == rows.tolist(), name
        assert getattr(batch, name) is value, name
    assert batch.lengths_of.keys() == {"frames"}
    assert batch.lengths_of["frames"] is batch.lengths
    assert (batch.lanes, batch.burn_in, batch.positions) == (None, None, None)
    assert (batch.data, batch.number, batch.epoch) == ({}, 5, 0)
    assert batch.segments is None


def test_a_copy_shares_what_nobody_has_asked_for_yet():
    batch = described()
    moved = batch.to("cpu")
    assert (moved.lengths is batch.lengths, moved.ids is batch.ids) == (True, True)
    assert moved.lengths_of is batch.lengths_of


@pytest.mark.parametrize("asked", [False, True])
def test_what_is_set_is_what_is_asked_for(asked):
    batch = described()
    if asked:
        assert batch.lengths.tolist() == [3, 1, 2]
    batch.lengths = torch.tensor([1, 2])
    batch.reset = None
    assert len(batch) == 2
    assert batch.reset is None
    assert batch.lengths.tolist() == [1, 2]
    assert batch.lengths_of["frames"].tolist() == [3, 1, 2]  # as it was made
    assert dataclasses.replace(batch, epoch=3).ids.tolist() == [10, 11, 12]
    assert dataclasses.asdict(batch)["ids"].tolist() == [10, 11, 12]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
def test_a_compiled_step_takes_batches_of_lanes():
    def loss(batch):
        sums = batch.lanes.sum() + batch.ids.sum() + batch.lengths_of["time"].sum()
        if batch.segments is not None:
            sums = sums + batch.segments[:, 1].sum()
        return (batch["x"] * batch.score).sum() * sums

    graphs = []

    def counting(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(loss, backend=counting, fullgraph=True)
    loader = Loader([np.arange(70.0)] * 9, TBPTT(3, 20, continuous=True), prefetch=0)
    for batch in loader:
        assert compiled(batch) == loss(batch.to("cpu"))
    assert 1 <= len(graphs) < len(loader) == 11


@pytest.mark.parametrize("batch", [described(), make_batch()])
def test_what_a_batch_does_not_have_is_no_attribute(batch):
    with pytest.raises(AttributeError, match="'SequenceBatch' object has no attribute 'length'"):
        _ = batch.length
    assert not hasattr(batch, "__dataclass_params")
    with pytest.raises(AttributeError, match="no attribute 'ids'"):
        _ = SequenceBatch.__new__(SequenceBatch).ids
    batch = copy.copy(batch)
    batch.weight = None
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'device'"):
        _ = batch.mask


@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinning needs an accelerator")
def test_pinning_pins_what_moves():
    pinned = make_batch().pin_memory()
    assert pinned["x"].is_pinned()
    assert pinned.weight.is_pinned()
    assert not pinned.lengths.is_pinned()


def test_the_throughput_functions_count_what_counts():
    batch = make_batch((3, 1, 2), weight=[1.0, 0.0, 1.0])
    assert batch_size_fn(batch) == 2
    assert length_fn(batch) == 5


def test_a_batch_without_rows_has_empty_masks():
    empty = make_batch((1,)).real()
    empty.weight = torch.zeros(1)
    cut = empty.real()
    assert cut.mask.shape == (0, 1)
    assert len(cut) == 0


def test_a_layout_says_what_it_knows():
    axes = Axes("frames", {"y": None}, {"x": 1})
    assert axes.along("x") == "frames"
    assert repr(axes) == "Axes('frames', {'y': None}, shift={'x': 1})"


def test_a_batch_is_iterated_like_a_dict():
    (batch,) = Loader([{"x": [1, 2], "y": 3, "note": "n"}], Fixed(1))
    assert list(batch) == list(batch.keys()) == ["id", "x", "y", "note"][1:]
    assert dict(batch.items()).keys() == batch.data.keys()
    assert {name: batch[name] for name in batch}["note"] == ["n"]
    assert "x" in batch
    assert len(batch) == 1  # rows


@pytest.mark.parametrize("collator", ["varlen", "jagged", "packed"])
def test_the_future_of_windows_is_not_packed(collator):
    rows, windows = [np.arange(10.0)], Windows(4, stride=2, batch_size=3, horizon=2, shuffle=False)
    (padded,), (other,) = Loader(rows, windows), Loader(rows, windows, collator=collator)
    assert torch.equal(other.packed("x").data, padded.packed("x").data)
    assert len(other.packed("x").data) == 12
