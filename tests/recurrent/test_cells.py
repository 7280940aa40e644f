"""Cells: torch's modules and callables, called with rows first, and what they take."""

import pytest
import torch
from torch import nn

from seqdata.errors import ConfigError
from seqdata.recurrent.cells import make_cell, to_features

X = torch.arange(24.0).reshape(2, 4, 3) / 24


@pytest.mark.parametrize("batch_first", [True, False])
def test_rows_come_first_whatever_the_module_takes(batch_first):
    torch.manual_seed(0)
    rnn = nn.GRU(3, 5, batch_first=batch_first)
    out, state = make_cell(rnn, 1).run_dense(X, None)
    expected = rnn(X if batch_first else X.transpose(0, 1).contiguous())
    torch.testing.assert_close(out, expected[0] if batch_first else expected[0].transpose(0, 1))
    torch.testing.assert_close(state, expected[1])


def test_a_single_timestep_is_as_among_others():
    torch.manual_seed(0)
    cell = make_cell(nn.LSTM(3, 5, batch_first=True), 1)
    whole, _ = cell.run_dense(X, None)
    state, steps = None, []
    for step in range(4):
        out, state = cell.run_dense(X[:, step : step + 1], state)
        steps.append(out)
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-6, atol=1e-7)


def test_packed_rows_are_run_timestep_by_timestep():
    torch.manual_seed(0)
    cell = make_cell(nn.GRU(3, 5), 1)
    assert cell.takes_packed
    flat = torch.cat([X[:, 0], X[:, 1], X[:1, 2]])
    out, state = cell.run_packed(flat, torch.tensor([2, 2, 1]), None)
    assert out.shape == (5, 5)
    torch.testing.assert_close(state[0, 0], out[4])
    torch.testing.assert_close(state[0, 1], out[3])


def test_a_callable_gets_rows_as_they_are():
    cell = make_cell(lambda x, state: (x * 2, x[:, -1]), 0)
    out, state = cell.run_dense(X, None)
    assert not cell.takes_packed
    assert torch.equal(out, X * 2)
    assert torch.equal(state, X[:, -1])
    with pytest.raises(ConfigError, match=r"`rnn` must return a tensor .* but returned list"):
        make_cell(lambda x, state: ([x], x), 0).run_dense(X, None)


def test_modules_that_have_no_later_chunks_or_other_rows_are_refused():
    with pytest.raises(ConfigError, match="GRU must not be bidirectional"):
        make_cell(nn.GRU(3, 5, bidirectional=True), 1)
    with pytest.raises(ConfigError, match=r"`dim` must be 1 for torch's GRU, .* but is 0"):
        make_cell(nn.GRU(3, 5), 0)


def features(rnn, x):
    return to_features(make_cell(rnn, 1), x, "x")


def test_a_field_becomes_features_in_the_weights_dtype():
    assert features(nn.GRU(1, 5), torch.arange(6).reshape(2, 3)).shape == (2, 3, 1)
    assert features(nn.GRU(3, 5).double(), X).dtype == torch.float64
    with pytest.raises(ConfigError, match="field 'x' must have 3 features per timestep for GRU"):
        features(nn.GRU(3, 5), X[..., 0])
