"""Counts of a recurrent stack: by hand, and as torch keeps values for backward."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from seqdata.cli._doctor.stack_counts import StackCounts, count_model, sum_costs
from seqdata.errors import ConfigError


class Tagger(nn.Module):
    """A module whose parts run in the order in which they were made."""

    def __init__(self, rnn: nn.Module, outputs: int, tags: int = 5, drop: float = 0.0) -> None:
        super().__init__()
        self.rnn, self.drop, self.head = rnn, nn.Dropout(drop), nn.Linear(outputs, tags)

    def parallel_stages(self) -> list[nn.Module]:
        return [self.rnn, self.drop, self.head]


def count(model: nn.Module, *, is_cpu: bool = True) -> StackCounts:
    return count_model(model, "tagger", is_cpu=is_cpu)


def count_saved(model: Tagger, x: Tensor) -> int:
    """Return the bytes that torch keeps for backward, weights left out."""
    weights = {value.data_ptr() for value in model.parameters()}
    kept = {}

    def pack(value: Tensor) -> Tensor:
        if value.untyped_storage().data_ptr() not in weights:
            kept[value.untyped_storage().data_ptr()] = value  # held: an address is used once
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        out, _ = model.rnn(x)
        model.head(model.drop(out)).flatten(0, 1).log_softmax(-1)
    return sum(value.untyped_storage().nbytes() for value in kept.values())


def test_weights_of_an_lstm_are_as_by_hand():
    found = count(Tagger(nn.LSTM(3, 8, 2, batch_first=True), 8))
    lower, upper, head = found.parts
    assert lower.cost == 4 * 8 * (3 + 8) + 2 * 4 * 8  # gates x (inputs + state), two biases
    assert upper.cost == 4 * 8 * (8 + 8) + 2 * 4 * 8
    assert head.cost == 8 * 5 + 5
    assert (lower.state, head.state) == (16, 0)  # h and c
    assert found.parameters == sum_costs(found.parts) == lower.cost + upper.cost + head.cost
    assert (found.shared, found.itemsize, found.recurrent) == (0, 4, ("rnn",))
    assert found.names_parts
    assert not found.is_bidirectional


@pytest.mark.parametrize("names_parts", [True, False])
def test_parts_within_wrappers_are_counted_as_they_are(names_parts):
    def make(wrap):
        model = Tagger(wrap(nn.LSTM(3, 8, 2, dropout=0.5)), 8, drop=0.5)
        model.drop, model.head = wrap(model.drop), wrap(model.head)
        if not names_parts:
            model.parallel_stages = None
        return wrap(model)

    bare = count(make(lambda module: module))
    assert count(make(partial(torch.compile, backend="eager"))) == bare
    assert count(make(nn.DataParallel)) == bare


def test_weights_of_other_cells_are_as_by_hand():
    gru = count(Tagger(nn.GRU(3, 8, batch_first=True), 8)).layers[0]
    assert (gru.cell, gru.cost, gru.state) == ("gru", 3 * 8 * (3 + 8) + 2 * 3 * 8, 8)
    projected = count(Tagger(nn.LSTM(3, 8, batch_first=True, proj_size=2), 2)).layers[0]
    assert projected.cost == 4 * 8 * (3 + 2) + 2 * 4 * 8 + 2 * 8
    assert (projected.outputs, projected.state) == (2, 2 + 8)
    both = count(Tagger(nn.RNN(3, 8, bidirectional=True), 16))
    assert both.layers[0].cost == 2 * (8 * (3 + 8) + 2 * 8)
    assert (both.is_bidirectional, both.layers[0].outputs) == (True, 16)


@pytest.mark.parametrize(
    ("rnn", "dtype", "drop", "close"),
    [
        (nn.LSTM(6, 16, 3, batch_first=True), torch.float64, 0.0, 1e-12),
        (nn.LSTM(6, 16, 3, batch_first=True, dropout=0.2), torch.float64, 0.3, 1e-12),
        (nn.GRU(6, 16, 2, batch_first=True), torch.float64, 0.0, 1e-12),
        (nn.GRU(6, 16, 2, batch_first=True), torch.float32, 0.0, 1e-12),
        (nn.LSTM(6, 16, 2, bidirectional=True), torch.float64, 0.0, 1e-12),
        (nn.LSTM(6, 16, 2, batch_first=True, proj_size=4), torch.float64, 0.0, 1e-12),
        (nn.RNN(6, 16, 2, batch_first=True), torch.float64, 0.0, 0.05),  # and the first state
        (nn.LSTM(64, 128, 2, batch_first=True), torch.float32, 0.0, 0.05),  # oneDNN's workspace
    ],
    ids=["lstm", "dropout", "gru", "gru float32", "both", "projection", "rnn", "onednn"],
)
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported")
def test_values_kept_for_backward_are_those_of_torch(rnn, dtype, drop, close):
    outputs = (rnn.proj_size or rnn.hidden_size) * (2 if rnn.bidirectional else 1)
    model = Tagger(rnn, outputs, drop=drop).to(dtype)
    rows, timesteps = 8, 32
    x = torch.randn(rows, timesteps, rnn.input_size, dtype=dtype, requires_grad=True)
    found = count(model)
    expected = sum(part.kept for part in found.parts) * rows * timesteps * found.itemsize
    assert count_saved(model, x) == pytest.approx(expected, rel=close)


def test_a_checkpoint_is_counted_as_its_module_is():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(11, 8)
            self.rnn, self.head = nn.LSTM(8, 8, 2), nn.Linear(8, 11)
            self.head.weight = self.embedding.weight

    model = Model()
    of_module, of_weights = count(model), count_model(model.state_dict(), "x", is_cpu=True)
    assert of_weights.parts == of_module.parts
    assert of_weights.shared == of_module.shared == 88
    assert of_weights.parameters == sum(value.numel() for value in model.parameters())
    assert of_module.names_parts is False
    assert of_weights.names_parts is None


def test_stages_are_cut_where_the_most_expensive_is_cheapest():
    found = count(Tagger(nn.LSTM(4, 6, 4), 6, tags=400))
    names = [[part.name for part in stage] for stage in found.cut(2)]
    assert names == [["rnn.l0", "rnn.l1", "rnn.l2"], ["rnn.l3", "head"]]  # a head of 2,800 weights
    assert [len(stage) for stage in found.cut(4)] == [1, 1, 1, 2]


def test_a_model_without_a_recurrent_part_is_refused():
    with pytest.raises(ConfigError, match="must be a model with a recurrent part") as error:
        count(nn.Sequential(nn.Linear(2, 2)))
    assert "but is one without any. There is nothing to split" in str(error.value)
