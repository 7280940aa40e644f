"""States of lanes between batches: found by lane, saved with a digest, merged from all ranks."""

import re

import pytest
import torch

from seqdata.errors import ConfigError, ResumeError
from seqdata.recurrent.continuity import LaneProgress
from seqdata.recurrent.lane_table import NO_BATCH, LaneTable, detach_state, merge_tables
from seqdata.recurrent.trees import map_leaves

CPU = torch.device("cpu")


def table_of(lanes, batch_numbers=None, number=4, value=0.0):
    lanes = tuple(lanes)
    state = torch.tensor([[10.0 * lane + value, 1.0] for lane in lanes])
    ids = torch.tensor([100 + lane for lane in lanes])
    progress = LaneProgress(2, number, lanes, ids, ids * 0 + 7)
    numbers = (number,) * len(lanes) if batch_numbers is None else tuple(batch_numbers)
    return LaneTable(progress, numbers, (state, state.clone()), 0)


def test_rows_are_found_by_their_lane():
    (state, _), numbers = table_of([3, 1, 2]).select_rows((2, 5, 3), CPU)
    assert state[[0, 2], 0].tolist() == [20.0, 30.0]
    assert numbers == (4, NO_BATCH, 4)


def test_a_saved_table_is_what_it_was():
    saved = table_of([3, 1]).as_dict()
    found = LaneTable.from_dict(saved, 0, "train")
    assert found.progress.lanes == (3, 1)
    assert (found.progress.epoch, found.progress.number) == (2, 4)
    assert torch.equal(found.state[0], table_of([3, 1]).state[0])


@pytest.mark.parametrize("key", ["epoch", "number", "lanes", "ids", "offsets", "put", "state"])
def test_a_change_of_any_part_is_noticed(key):
    saved = table_of([3, 1]).as_dict()
    changed = table_of([3, 2], number=5, value=1.0).as_dict()
    changed["epoch"], changed["offsets"] = 3, changed["offsets"] + 1
    with pytest.raises(ResumeError, match="'train' does not have the digest"):
        LaneTable.from_dict({**saved, key: changed[key]}, 0, "train")


@pytest.mark.parametrize("key", ["lanes", "ids", "offsets", "put", "state"])
def test_tensors_without_values_are_refused(key):
    saved = table_of([3, 1]).as_dict()
    wanted = (
        "lanes: the tensors of a saved table must have values, but one is on the device 'meta'. "
        "Load the checkpoint with map_location='cpu'."
    )
    saved[key] = map_leaves(lambda leaf: leaf.to("meta"), saved[key])
    with pytest.raises(ResumeError, match=f"^{re.escape(wanted)}$"):
        LaneTable.from_dict(saved, 0, "train")


def test_what_is_not_a_table_or_has_other_rows_is_refused():
    with pytest.raises(ResumeError, match="the saved table 'train' must have epoch, number"):
        LaneTable.from_dict({"epoch": 1}, 0, "train")
    with pytest.raises(ResumeError, match="must have its 3 lanes in dimension 1, but has states"):
        LaneTable.from_dict(table_of([3, 1, 0]).as_dict(), 1, "train")


def test_of_a_lane_that_several_ranks_have_the_last_state_counts():
    ranks = [
        table_of([0, 1], batch_numbers=[4, 2]).as_dict(),
        table_of([1, 2], batch_numbers=[4, NO_BATCH], value=5.0).as_dict(),
    ]
    merged = LaneTable.from_dict(merge_tables(ranks, 0), 0, "train")
    state, numbers = merged.select_rows((0, 1, 2), CPU)
    assert state[0][:, 0].tolist() == [0.0, 15.0, 25.0]
    assert numbers == (4, 4, NO_BATCH)


def test_tables_of_other_batches_cannot_be_merged():
    ranks = [table_of([0], number=4).as_dict(), table_of([1], number=5).as_dict()]
    with pytest.raises(ResumeError, match=r"the same on all ranks, but is \[\(2, 4\), \(2, 5\)\]"):
        merge_tables(ranks, 0)


def test_a_state_is_detached_and_does_not_hold_what_is_larger():
    large = torch.zeros(100, 2, requires_grad=True)
    found = detach_state(large[:3], 3, 0)
    assert not found.requires_grad
    assert found.untyped_storage().nbytes() == found.nbytes
    with pytest.raises(ConfigError, match="must have the 2 rows of the batch in dimension 0"):
        detach_state(large[:3], 2, 0)
