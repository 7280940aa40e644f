"""The helpers let nothing of the padding into a result or a gradient."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from seqdata_models import ByteLM, Forecaster, LSTMClassifier, LSTMTagger, Seq2SeqLSTM
from seqdata_models.functional import (
    last_valid,
    linear_exactly,
    masked_mean,
    masked_token_loss,
    reverse_valid,
    run_dense,
    token_nll,
)
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from seqdata import ConfigError, Fixed, Loader, Packed
from seqdata.storage.memory import MemoryStore

LENGTHS = [5, 1, 9, 9, 3]
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-15}


def rows_of(lengths: list[int], padding: float = 0.0, wider: int = 0, **kind: object) -> Tensor:
    """Rows that depend on their own length and number only, padded with ``padding``."""
    x = torch.full((len(lengths), max(lengths) + wider, 4), padding, dtype=kind.get("dtype"))
    for row, length in enumerate(lengths):
        x[row, :length] = torch.randn(
            length, 4, generator=torch.Generator().manual_seed(row), dtype=kind.get("dtype")
        )
    return x


def mask_of(lengths: list[int], width: int) -> Tensor:
    return torch.arange(width)[None, :] < torch.tensor(lengths)[:, None]


def lstm_of(bidirectional: bool, layers: int = 1, dtype: torch.dtype = torch.float32) -> nn.LSTM:
    torch.manual_seed(0)
    return nn.LSTM(4, 6, layers, batch_first=True, bidirectional=bidirectional).to(dtype)


# ---------------------------------------------------------------- last_valid


def test_last_valid_is_each_rows_own_last_step_where_minus_one_reads_padding():
    out = rows_of(LENGTHS)
    final = last_valid(out, torch.tensor(LENGTHS))
    for row, length in enumerate(LENGTHS):
        assert torch.equal(final[row], out[row, length - 1])
    assert not torch.equal(final, out[:, -1])


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_last_valid_of_a_packed_run_is_its_h_n(bidirectional, layers):
    lstm, lengths = lstm_of(bidirectional, layers), torch.tensor(LENGTHS)
    packed = pack_padded_sequence(rows_of(LENGTHS), lengths, batch_first=True, enforce_sorted=False)
    out, (h_n, _) = lstm(packed)
    directions = 2 if bidirectional else 1
    expected = torch.cat(list(h_n[-directions:]), dim=-1)
    assert torch.equal(last_valid(out, lengths, bidirectional=bidirectional), expected)


def test_last_valid_of_a_row_without_steps_is_zero_and_sends_no_gradient():
    out = torch.full((2, 3, 4), torch.nan, requires_grad=True)
    final = last_valid(out, torch.tensor([0, 0]))
    final.sum().backward()
    assert torch.equal(final, torch.zeros(2, 4))
    assert torch.equal(out.grad, torch.zeros(2, 3, 4))


# --------------------------------------------------------------- masked_mean


@pytest.mark.parametrize("padding", [torch.nan, torch.inf, 1e9])
def test_masked_mean_is_each_rows_own_mean_whatever_the_padding(padding):
    x = rows_of(LENGTHS, padding, wider=2).requires_grad_()
    mean = masked_mean(x, mask_of(LENGTHS, x.shape[1]))
    for row, length in enumerate(LENGTHS):
        torch.testing.assert_close(mean[row], x[row, :length].mean(dim=0))
    mean.sum().backward()
    assert torch.isfinite(x.grad).all()


def test_masked_mean_over_nothing_is_zero():
    x = torch.full((2, 3), torch.nan)
    assert torch.equal(masked_mean(x, torch.zeros(2, 3, dtype=torch.bool)), torch.zeros(2))


def test_masked_mean_takes_any_shape_of_a_timestep():
    x = torch.arange(24.0).view(1, 3, 2, 4)
    mean = masked_mean(x, torch.tensor([[True, True, False]]))
    assert torch.equal(mean, x[:, :2].mean(dim=1))


# --------------------------------------------------------- masked token loss


@given(st.lists(st.integers(0, 7), min_size=1, max_size=6), st.integers(0, 3))
@settings(deadline=None, max_examples=40)
def test_token_loss_is_the_sum_over_rows_alone(lengths, wider):
    width = max(lengths) + wider
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(len(lengths), width, 5, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 5, (len(lengths), width), generator=generator, dtype=torch.uint8)
    alone = sum(
        (-logits[row, :length].log_softmax(-1)).gather(1, targets[row, :length, None].long()).sum()
        for row, length in enumerate(lengths)
    )
    loss = masked_token_loss(logits, targets, mask_of(lengths, width))
    torch.testing.assert_close(loss, torch.as_tensor(alone, dtype=torch.float64))


@pytest.mark.parametrize("padding", [torch.nan, 1e9])
def test_padding_reaches_neither_the_token_loss_nor_its_gradient(padding):
    score = mask_of(LENGTHS, 9)
    targets = torch.randint(0, 4, (5, 9))
    clean, dirty = rows_of(LENGTHS), rows_of(LENGTHS, padding)
    found = []
    for logits, wrong in ((clean, 0), (dirty, -7)):
        logits.requires_grad_()
        loss = masked_token_loss(logits, torch.where(score, targets, wrong), score)
        loss.backward()
        found.append((loss.detach(), logits.grad))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert not found[0][1][~score].any()


def test_token_nll_is_zero_where_nothing_is_scored():
    nll = token_nll(torch.full((1, 2, 3), torch.nan), torch.zeros(1, 2), torch.zeros(1, 2).bool())
    assert torch.equal(nll, torch.zeros(1, 2))


# ------------------------------------------------------------------ run_dense


def test_reverse_valid_turns_valid_steps_round_and_leaves_padding():
    x = torch.tensor([[[1.0], [2.0], [3.0], [9.0]], [[4.0], [8.0], [9.0], [9.0]]])
    turned = reverse_valid(x, torch.tensor([3, 2]))
    assert turned[..., 0].tolist() == [[3, 2, 1, 9], [8, 4, 9, 9]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_dense_row_equals_the_row_run_alone(bidirectional, layers, dtype):
    lstm = lstm_of(bidirectional, layers, dtype)
    x = rows_of(LENGTHS, torch.nan, wider=3, dtype=dtype)
    out = run_dense(lstm, x, torch.tensor(LENGTHS))
    for row, length in enumerate(LENGTHS):
        alone, _ = lstm(x[row : row + 1, :length])
        assert (out[row, :length] - alone[0]).abs().max() <= TOLERANCE[dtype]


@pytest.mark.parametrize("bidirectional", [False, True])
def test_dense_gradients_equal_packed_gradients_whatever_the_padding(bidirectional):
    lengths = torch.tensor(LENGTHS)
    found = []
    for padding in (None, torch.nan, 1e9):
        lstm = lstm_of(bidirectional, 2, torch.float64)
        if padding is None:
            x = rows_of(LENGTHS, dtype=torch.float64)
            out, _ = lstm(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        else:
            x = rows_of(LENGTHS, padding, wider=4, dtype=torch.float64)
            out = run_dense(lstm, x, lengths)
        last_valid(out, lengths, bidirectional=bidirectional).square().sum().backward()
        found.append(torch.cat([weight.grad.flatten() for weight in lstm.parameters()]))
    assert found[0].abs().max() > 0
    assert (found[0] - found[1]).abs().max() <= 1e-13
    assert torch.equal(found[1], found[2])


@pytest.mark.parametrize("bidirectional", [False, True])
def test_layers_within_wrappers_are_run_as_they_are(bidirectional):
    lstm, head = lstm_of(bidirectional, 2, torch.float64), nn.Linear(4, 2)
    x, lengths = rows_of(LENGTHS, dtype=torch.float64), torch.tensor(LENGTHS)
    for wrap in (nn.DataParallel, partial(torch.compile, backend="eager")):
        torch.testing.assert_close(run_dense(wrap(lstm), x, lengths), run_dense(lstm, x, lengths))
        assert torch.equal(linear_exactly(wrap(head), x), linear_exactly(head, x))
    with pytest.raises(ConfigError, match="run_dense: `lstm` must have batch_first=True"):
        run_dense(nn.DataParallel(nn.LSTM(4, 6)), x, lengths)


@pytest.mark.parametrize(
    "kind", [{"batch_first": False}, {"bias": False}, {"proj_size": 2}], ids=str
)
def test_another_kind_of_lstm_is_refused(kind):
    lstm = nn.LSTM(4, 6, **{"batch_first": True, **kind})
    with pytest.raises(
        ConfigError, match=r"run_dense: `lstm` must have batch_first=True.* but is LSTM"
    ):
        run_dense(lstm, rows_of(LENGTHS), torch.tensor(LENGTHS))


def test_dropout_between_dense_layers_acts_in_training_only():
    torch.manual_seed(0)
    lstm = nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True, dropout=0.5)
    x, lengths = rows_of(LENGTHS), torch.tensor(LENGTHS)
    assert not torch.equal(run_dense(lstm, x, lengths), run_dense(lstm, x, lengths))
    lstm.eval()
    assert torch.equal(run_dense(lstm, x, lengths), run_dense(lstm, x, lengths))


DOCUMENTS = [{"x": np.full((3, 2), float(i), "float32"), "y": i} for i in range(4)]


@pytest.mark.parametrize(
    ("model", "name"),
    [(LSTMClassifier(2, 4, hidden=5), "classifier"), (LSTMTagger(2, 4, hidden=5), "tagger")],
)
def test_rows_of_several_sequences_are_refused(model, name):
    (batch,) = Loader(DOCUMENTS, Packed(rows=1, row_length=12))
    message = rf"{name}: each row must hold one sequence, but 1 rows hold 4\. Batch with Bucketed"
    with pytest.raises(ConfigError, match=message):
        model(batch)
    (batch,) = Loader(DOCUMENTS, Packed(rows=4, row_length=3))
    assert len(model(batch)) == 4  # a sequence in each row


def test_documents_in_rows_are_refused_by_language_models():
    rows = [{"bytes": np.arange(n, dtype=np.uint8)} for n in (4, 5, 6)]
    (batch,) = Loader(rows, Packed(rows=1, row_length=15), shift=1)
    with pytest.raises(ConfigError, match="byte lm: each row must hold one sequence, but 1 rows"):
        ByteLM(x="bytes").nll(batch)
    pairs = [{"source": np.arange(3), "target": np.arange(2)} for _ in range(3)]
    store = MemoryStore.from_sequences(pairs, axes={"source": "time", "target": "text"})
    (batch,) = Loader(store, Packed(rows=1, row_length=9))
    with pytest.raises(ConfigError, match="seq2seq: each row must hold one sequence, but 1 rows"):
        Seq2SeqLSTM(4, 4)(batch)


def test_a_forecast_does_not_go_on_from_padding():
    rows = [np.zeros((n, 2), "float32") for n in (9, 4)]
    (batch,) = Loader(rows, Fixed(2))
    model = Forecaster(2, 3, hidden=5).eval()
    with pytest.raises(ConfigError, match="forecaster: rows must have equal lengths, but"):
        model.predict_step(batch)
    rows[0][:] = np.nan
    (batch,) = Loader(rows, Fixed(2), check_values=True, on_error="mask")
    assert batch.weight.tolist().count(0.0) == 1
    with pytest.raises(ConfigError, match="must have equal lengths, but have 4 to 9 timesteps"):
        model.predict_step(batch)
