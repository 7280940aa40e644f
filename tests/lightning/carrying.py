"""A model that carries its state from chunk to chunk, and what it did, step by step."""

from dataclasses import dataclass, field
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch

from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.policies.tbptt import TBPTT
from seqdata.recurrent.lane_states import LaneStates


def series(count: int, seed: int = 0, longest: int = 40) -> list[np.ndarray]:
    """Return sequences of two features, float64, of 1 to ``longest`` timesteps."""
    draw = np.random.default_rng(seed)
    return [draw.standard_normal((int(n), 2)) for n in draw.integers(1, longest + 1, count)]


@dataclass
class Did:
    """What a run did, in order."""

    losses: list[tuple[int, int, float]] = field(default_factory=list)  # epoch, number, loss
    lanes: dict[tuple[int, int, int], float] = field(default_factory=dict)  # epoch, number, lane
    val: list[tuple[int, int, float]] = field(default_factory=list)


class Carrying(pl.LightningModule):
    """An LSTM that predicts the next timestep.

    Args:
        fail_at: ``(epoch, number)`` of the batch after whose ``put`` the step raises; None: none.
        learned: Whether sequences begin with a learned state.
        dtype: Of the parameters.
    """

    def __init__(
        self,
        fail_at: tuple[int, int] | None = None,
        learned: bool = False,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.lstm = torch.nn.LSTM(2, 4, batch_first=True).to(dtype)
        self.head = torch.nn.Linear(4, 2).to(dtype)
        if learned:
            self.h0 = torch.nn.Parameter(torch.randn(1, 4).to(dtype))
            self.c0 = torch.nn.Parameter(torch.randn(1, 4).to(dtype))
        self.lanes = LaneStates(initial=self.start if learned else None)
        self.fail_at = fail_at
        self.did = Did()

    def start(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.h0, self.c0

    def errors(self, batch):
        state = self.lanes.take(batch)
        out, state = self.lanes.run(self.lstm, batch, "x", state)
        self.lanes.put(batch, state)
        return ((self.head(out) - batch["targets"]) ** 2).sum(-1) * batch.score

    def training_step(self, batch, batch_idx):
        errors = self.errors(batch)
        if self.fail_at == (batch.epoch, batch.number):
            raise OSError("told to fail")
        for lane, weight, value in zip(
            batch.lanes, batch.weight, errors.detach().sum(1), strict=True
        ):
            if weight:
                self.did.lanes[batch.epoch, batch.number, int(lane)] = float(value)
        self.did.losses.append((batch.epoch, batch.number, float(errors.detach().sum())))
        return errors.sum() * batch.loss_scale

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        value = float(self.errors(batch).sum())
        self.did.val.append((dataloader_idx, batch.number, value))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)

    def parameters_of(self) -> list[float]:
        return [value for one in self.parameters() for value in one.detach().flatten().tolist()]


class Stacked(Carrying):
    """Two recurrent layers with something between them, whose states are kept in several ways.

    Args:
        kept: ``list``, ``dict`` or ``tuple``: states of a layer each; ``table``: a table each.
    """

    def __init__(self, kept: str) -> None:
        super().__init__()
        self.upper = torch.nn.GRU(4, 4, batch_first=True).double()
        first, second = LaneStates(), LaneStates()
        self.lanes: Any = {
            "list": [first, second], "dict": {"lower": first, 1: second},
            "tuple": (("lower", first), ("upper", second)), "table": first,
        }[kept]  # fmt: skip

    def layers(self, loader: str) -> list[tuple[LaneStates, str | None]]:
        """Return the states of both layers, and the names of their tables."""
        if isinstance(self.lanes, LaneStates):
            return [(self.lanes, f"{loader}/{layer}") for layer in range(2)]
        held = list(self.lanes.values()) if isinstance(self.lanes, dict) else self.lanes
        return [(one[1] if isinstance(one, tuple) else one, None) for one in held]

    def errors(self, batch):
        x = batch["x"]
        layers = zip((self.lstm, self.upper), self.layers(batch.loader), strict=True)
        for rnn, (lanes, table) in layers:
            x, state = lanes.run(rnn, batch, x.tanh(), lanes.take(batch, table))
            lanes.put(batch, state, table)
        return ((self.head(x) - batch["targets"]) ** 2).sum(-1) * batch.score


def lanes_of(count: int = 17, *, lanes: int = 4, chunk: int = 8, val: Any = 3, **options: Any):
    """Make a DataModule that deals series to lanes."""
    given = series(val, 1) if isinstance(val, int) else val
    options.setdefault("batching", TBPTT(lanes, chunk))
    return SequenceDataModule(
        train=series(count), val=given, fields=("x",), shift=1, seed=3, **options
    )
