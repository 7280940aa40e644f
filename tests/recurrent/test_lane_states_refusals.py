"""What LaneStates refuses, in which words."""

import re

import pytest
import torch
from torch import nn

from seqdata.errors import ConfigError
from seqdata.policies.fixed import Fixed
from seqdata.recurrent.lane_states import LaneStates
from tests.recurrent.harness import SIZE, batch_of, batches, module_of, pair, series


def refuses(text):
    return pytest.raises(ConfigError, match=re.escape(text))


def test_a_batch_without_lanes_is_refused():
    states, module = LaneStates(), module_of("lstm")
    (batch, *_) = batches(series([20, 7]), Fixed(2))
    with refuses(
        "batch: `lanes` must come from a batch with lanes, but is None. Plan with a policy"
    ):
        states.take(batch)
    with refuses(
        "batch: `lanes` must come from a batch with lanes, but is None. Plan with a policy"
    ):
        states.put(batch, pair(1.0))
    del module


def test_a_module_that_reads_from_both_ends_is_refused():
    with refuses("lanes: GRU must not be bidirectional: a lane's later chunks"):
        LaneStates().run(nn.GRU(SIZE, 2, bidirectional=True), batch_of(), "x", None)


def test_a_module_of_torch_with_rows_elsewhere_is_refused():
    with refuses(
        "lanes: `dim` must be 1 for torch's LSTM, whose state is (layers, rows, size), but is 0"
    ):
        LaneStates(dim=0).run(module_of("lstm"), batch_of(), "x", None)


@pytest.mark.parametrize("dim", [-1, "1", True])
def test_a_dimension_that_is_none_is_refused(dim):
    with refuses(f"lanes: `dim` must be a dimension from 0, but is {dim!r}"):
        LaneStates(dim=dim)


def test_a_field_that_needs_embedding_is_refused():
    batch = batch_of()
    batch.data["x"] = torch.zeros(2, 4, dtype=torch.int64)
    with refuses("lanes: field 'x' must have 4 features per timestep for"):
        LaneStates().run(module_of("lstm"), batch, "x", None)


def test_inputs_of_another_length_are_refused():
    x = torch.zeros(2, 3, SIZE)
    with refuses(
        "lanes: the first dimensions of `x` must be the 2 rows and 4 timesteps of the batch"
    ):
        LaneStates().run(module_of("lstm"), batch_of(), x, None)


def test_an_output_that_is_no_tensor_is_refused():
    with refuses(
        "lanes: `rnn` must return a tensor (rows, timesteps, ...) and a state, but returned tuple"
    ):
        LaneStates().run(lambda x, state: ((x, x), state), batch_of(), "x", None)


def test_a_state_of_other_rows_is_refused():
    with refuses(
        "lanes: a state must have the 2 rows of the batch in dimension 1, but has shape (1, 3, 3)"
    ):
        LaneStates().put(batch_of(), torch.zeros(1, 3, 3))


@pytest.mark.parametrize("state", [None, (torch.zeros(1, 2, 3), 5), nn.LSTM(1, 1)])
def test_a_state_that_is_no_tree_of_tensors_is_refused(state):
    with refuses("must be a tensor, or a tuple, list or dict of tensors"):
        LaneStates().put(batch_of(), state)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (
            torch.zeros(1, 2, 3),
            ("lanes: the states of a table must have one form, but are a tuple of 2 and a tensor"),
        ),
        (
            [torch.zeros(1, 2, 3)] * 2,
            "must have one form, but are a tuple of 2 and a list of 2. Put",
        ),
        ({"h": torch.zeros(1, 2, 3)}, "must have one form, but are a tuple of 2 and a dict of 'h'"),
    ],
)
def test_a_state_of_another_form_is_refused(other, text):
    states = LaneStates()
    states.put(batch_of(), pair(1.0))
    with refuses(text):
        states.put(batch_of(1, lengths=[4, 0]), other)
