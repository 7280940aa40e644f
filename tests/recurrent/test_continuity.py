"""E14: a chunk that is missed, comes again, late, or in another lane is an error."""

import re

import pytest
import torch

from seqdata.batch.batch import SequenceBatch
from seqdata.errors import PlanError, ResumeError
from seqdata.policies.tbptt import TBPTT
from seqdata.recurrent.continuity import state_positions
from seqdata.recurrent.lane_states import LaneStates
from tests.recurrent.harness import batches, module_of, series

SEQUENCES = series([30, 26, 9, 17, 12])
POLICIES = {
    "rows": TBPTT(2, 6),
    "overlapping": TBPTT(2, 6, advance=4),
    "segments": TBPTT(2, 6, segments=True),
    "stream": TBPTT(2, 6, continuous=True),
    "overlapping stream": TBPTT(2, 20, advance=3, continuous=True),
}
STATE = torch.zeros(1, 2, 3)


def played(policy, until):
    """Return states that have seen batches up to ``until``, and all batches."""
    states, given = LaneStates(), list(batches(SEQUENCES, policy))
    for batch in given[:until]:
        states.take(batch)
        states.put(batch, STATE)
    return states, given


def refuses(states, batch, text, error=PlanError):
    for call in (lambda: states.take(batch), lambda: states.put(batch, STATE)):
        with pytest.raises(error, match=re.escape(text)):
            call()


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_e14_chunks_in_order_are_taken(policy):
    for epoch in (0, 1):
        states, given = LaneStates(), list(batches(SEQUENCES, policy, epoch=epoch))
        for batch in given:
            states.take(batch)
            states.take(batch)  # looking twice is no harm
            states.put(batch, STATE)
        assert len(given) > 3


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_e14_a_missed_chunk_is_an_error(policy):
    states, given = played(policy, 3)
    refuses(states, given[4], "comes after batch 2: 1 between were missed")


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_e14_a_chunk_that_comes_again_is_an_error(policy):
    states, given = played(policy, 3)
    refuses(states, given[2], "batch 2 of epoch 0 is repeated, or late, after batch 2")
    refuses(states, given[1], "batch 1 of epoch 0 is repeated, or late, after batch 2")


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_e14_a_chunk_in_another_lane_is_an_error(policy):
    states, given = played(policy, 3)
    batch = given[3]
    assert (batch.start > 0).any()
    batch.lanes = batch.lanes.flip(0)
    refuses(states, batch, "batch 3 of epoch 0 belongs to other lanes or data; its lane")


def test_e14_a_chunk_of_another_epoch_is_an_error():
    states, _ = played(POLICIES["rows"], 3)
    *_, batch, _ = list(batches(SEQUENCES, POLICIES["rows"], epoch=1))[:5]
    refuses(states, batch, "batch 3 of epoch 1 comes after batch 2 of epoch 0; its lane")


def test_e14_the_error_names_lane_sequence_and_timesteps():
    states, given = played(TBPTT(2, 6, shuffle=False), 1)
    with pytest.raises(PlanError) as caught:
        states.take(given[2])
    one = given[2]
    assert str(caught.value) == (
        "lanes: table 'train': batch 2 of epoch 0 comes after batch 0: 1 between were missed; "
        f"its lane 0 begins in sequence {int(one.ids[0])} at timestep 12, and has seen sequence "
        f"{int(one.ids[0])} up to timestep 6. It must continue where its lane stopped. Call "
        "`take` and `put` once for each batch of a loader, in order, and use a table for each "
        "loader"
    )
    assert caught.value.details == {"epoch": 0, "batch": 2, "lane": 0, "sequence": int(one.ids[0])}


def test_e14_a_lane_that_has_read_nothing_is_told_so():
    states, given = played(TBPTT(2, 6, shuffle=False), 0)
    first = given[0]
    first.lengths, first.weight = torch.tensor([6, 0]), torch.tensor([1.0, 0.0])
    states.put(first, STATE)
    refuses(states, given[1], "its lane 1 begins in sequence 1 at timestep 6, and has seen nothing")


def test_e14_states_that_are_not_loaded_are_missed():
    _, given = played(POLICIES["rows"], 0)
    refuses(
        LaneStates(),
        given[3],
        (
            "lanes: table 'train' has no state, but batch 3 of epoch 0 continues from one. Load "
            "the states that were saved with the loader's"
        ),
        ResumeError,
    )


def test_e14_a_table_of_another_loader_does_not_go_on():
    states, given = played(POLICIES["rows"], 3)
    given[3].loader = "val"
    refuses(states, given[3], "lanes: table 'val' has no state", ResumeError)


def test_batches_without_a_row_are_counted_too():
    states, given = LaneStates(), list(batches(series([30, 4]), TBPTT(2, 6)))
    for batch in given:
        batch.lanes, batch.lengths = batch.lanes[1:], batch.lengths[1:]
        batch.ids, batch.start = batch.ids[1:], batch.start[1:]
        batch.weight, batch.reset = batch.weight[1:], batch.reset[1:]
        states.put(batch, STATE[:, :1])
    assert states.state_dict()["tables"]["train"]["number"] == 4
    refuses(states, given[2], "is repeated, or late, after batch 4")


def row_of(segments, overlap=0):
    """Return where the state of the one row of these spans is taken."""
    spans = torch.tensor([[0, *one] for one in segments])
    length = int((spans[:, 3] - spans[:, 2]).sum())
    batch = SequenceBatch(
        data={}, lengths=torch.tensor([length]), ids=spans[:1, 1], start=spans[:1, 2],
        weight=torch.ones(1), segments=spans, overlap=overlap,
    )  # fmt: skip
    return tuple(int(one) for one in state_positions(batch))


@pytest.mark.parametrize(
    ("overlap", "wanted"), [(0, (9, 4)), (1, (9, 3)), (4, (9, 0)), (5, (8, 1)), (6, (8, 0)),
                            (7, (7, 6)), (9, (7, 4)), (99, (7, 4))],
)  # fmt: skip
def test_the_state_is_taken_so_many_timesteps_before_the_end(overlap, wanted):
    assert row_of([(7, 4, 7), (8, 0, 2), (9, 0, 4)], overlap) == wanted


def test_states_go_on_across_a_module_in_order():
    module, states = module_of("lstm"), LaneStates()
    for batch in batches(SEQUENCES, POLICIES["segments"]):
        _, state = states.run(module, batch, "x", states.take(batch))
        states.put(batch, state)
    assert states.state_dict()["tables"]["train"]["lanes"].tolist() == [0, 1]


def test_e14_a_chunk_that_begins_elsewhere_in_its_sequence_is_an_error():
    states, given = played(POLICIES["rows"], 1)
    given[1].start = given[1].start + 1
    refuses(states, given[1], "batch 1 of epoch 0 belongs to other lanes or data; its lane 0")
