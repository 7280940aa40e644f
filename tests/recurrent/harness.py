"""Sequences, modules, and what comes out of them chunk by chunk and whole."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seqdata.batch.batch import SequenceBatch
from seqdata.loading.loader import Loader
from seqdata.recurrent.lane_states import LaneStates

SIZE = 4

MODULES: dict[str, Callable[[], Any]] = {
    "lstm": lambda: nn.LSTM(SIZE, 8, 2, batch_first=True),
    "gru": lambda: nn.GRU(SIZE, 8, batch_first=True),
    "rnn": lambda: nn.RNN(SIZE, 8, batch_first=True),
    "time first": lambda: nn.LSTM(SIZE, 8),
    "projected": lambda: nn.LSTM(SIZE, 8, 2, proj_size=4, batch_first=True),
    "callable": lambda: Leaky(),
}


class Leaky(nn.Module):
    """A recurrence that is none of torch's: rows lie in dimension 0 of its state, a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(SIZE, 4)
        self.calls = 0

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        self.calls += 1
        kept = x.new_zeros(len(x), 4) if state is None else state["deep"][0]
        out = []
        for step in self.into(x).unbind(1):
            kept = torch.tanh(0.5 * kept + step)
            out.append(kept)
        return torch.stack(out, dim=1), {"deep": [kept]}


def module_of(kind: str, dtype: torch.dtype = torch.float64) -> Any:
    """Make a module, the same every time."""
    torch.manual_seed(1)
    return MODULES[kind]().to(dtype)


def states_for(module: Any, **options: Any) -> LaneStates:
    return LaneStates(dim=0 if isinstance(module, Leaky) else 1, **options)


def series(lengths: Iterable[int], dtype: type = np.float64) -> list[np.ndarray]:
    """Return sequences of ``SIZE`` features."""
    draw = np.random.default_rng(0)
    return [draw.standard_normal((length, SIZE)).astype(dtype) for length in lengths]


def whole(module: Any, sequences: Sequence[np.ndarray], state: Any = None) -> Tensor:
    """Return the outputs of sequences of equal length, run whole."""
    x = torch.stack([torch.from_numpy(one) for one in sequences])
    if isinstance(module, nn.RNNBase) and not module.batch_first:
        return module(x.transpose(0, 1).contiguous(), state)[0].transpose(0, 1)
    return module(x, state)[0]


def alone(module: Any, sequences: Sequence[np.ndarray]) -> list[Tensor]:
    """Return the outputs of each sequence, run by itself."""
    return [whole(module, [one])[0] for one in sequences]


def batches(
    sequences: Sequence[np.ndarray], policy: Any, **options: Any
) -> Iterator[SequenceBatch]:
    return iter(Loader(sequences, policy, **{"name": "train", "prefetch": 0, **options}))


def chunked(
    module: Any,
    sequences: Sequence[np.ndarray],
    policy: Any,
    states: LaneStates | None = None,
    **options: Any,
) -> list[Tensor]:
    """Return outputs of each sequence, run chunk by chunk; each timestep that is scored, once."""
    states = states_for(module) if states is None else states
    found: dict[int, list[Tensor]] = {number: [] for number in range(len(sequences))}
    for batch in batches(sequences, policy, **options):
        out, state = states.run(module, batch, "x", states.take(batch))
        states.put(batch, state)
        for sequence, part in outputs_of(batch, out):
            found[sequence].append(part)
    return [torch.cat(parts) if parts else torch.zeros(0) for parts in found.values()]


def outputs_of(batch: SequenceBatch, out: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield what a batch scores of each sequence, in the order of timesteps."""
    for row in range(len(batch)):
        spans = [(int(batch.ids[row]), int(batch.lengths[row]))]
        if batch.segments is not None:
            spans = [(s[1], s[3] - s[2]) for s in batch.segments.tolist() if s[0] == row]
        at = 0
        for sequence, length in spans:
            part = out[row, at : at + length][batch.score[row, at : at + length]]
            at += length
            if len(part):
                yield sequence, part


def batch_of(
    number=0, *, lengths=(4, 4), start=None, ids=(0, 1), reset=None, weight=None, **more
) -> SequenceBatch:
    """Make a batch of two lanes that goes on where batch ``number - 1`` stopped."""
    rows = len(lengths)
    start = [4 * number] * rows if start is None else start
    reset = [one == 0 for one in start] if reset is None else reset
    weight = [float(length > 0) for length in lengths] if weight is None else weight
    return SequenceBatch(
        data={"x": torch.randn(rows, max(1, *lengths), SIZE, dtype=torch.float64)},
        lengths=torch.tensor(lengths),
        ids=torch.tensor(ids),
        weight=torch.tensor(weight),
        start=torch.tensor(start),
        reset=torch.tensor(reset),
        number=number,
        padded_length=max(1, *lengths),
        **{"lanes": torch.arange(rows), "loader": "train", **more},
    )


def pair(value: float, rows: int = 2):
    return torch.full((1, rows, 3), value), torch.full((1, rows, 5), -value)
