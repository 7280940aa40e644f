"""Seconds of a few timesteps of each part, measured where they would be trained.

A device that is not busy takes as long for few rows as for many: then fewer rows on each device, or
groups of rows, gain nothing, which counts cannot tell.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from seqdata.cli._doctor.stack_counts import PartCounts

if TYPE_CHECKING:
    import torch

_ROUNDS = 3  # of which the fastest counts


@dataclass(slots=True)
class StackTimer:
    """Measures parts of the counted sizes, each size once; what was measured is kept.

    Args:
        device: ``cpu`` or ``cuda``.
        dtype: Of the weights.
        timesteps: How many are measured.
    """

    device: str
    dtype: torch.dtype
    timesteps: int = 16
    _seconds: dict[tuple[Any, ...], float] = field(default_factory=dict)

    def __call__(self, part: PartCounts, rows: int) -> float:
        """Return the seconds of one timestep of a part, forward and backward.

        Args:
            part: Of a model; weights are random.
            rows: At a time.
        """
        if not part.cost:
            return 0.0
        key = (part.cell, part.inputs, part.hidden, part.outputs, part.directions, rows)
        if key not in self._seconds:
            self._seconds[key] = self._measure(part, rows) / self.timesteps
        return self._seconds[key]

    def _measure(self, part: PartCounts, rows: int) -> float:
        import torch

        module = _make_module(part).to(self.device, self.dtype)
        shape = (rows, self.timesteps, part.inputs)
        x = torch.zeros(shape, device=self.device, dtype=self.dtype, requires_grad=True)
        found = []
        for _ in range(_ROUNDS + 1):
            began = time.perf_counter()
            out = module(x)
            out = out[0] if isinstance(out, tuple) else out
            out.backward(torch.ones_like(out))
            if self.device == "cuda":
                torch.cuda.synchronize()
            found.append(time.perf_counter() - began)
        return min(found[1:])


def _make_module(part: PartCounts) -> Any:
    """Return a module of a part's sizes."""
    from torch import nn

    if not part.cell:
        return nn.Linear(part.inputs, part.outputs, part.has_bias)
    kind: Any = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[part.cell]
    hidden, outputs = part.hidden // part.directions, part.outputs // part.directions
    return kind(
        part.inputs,
        hidden,
        bias=part.has_bias,
        batch_first=True,
        bidirectional=part.directions == 2,
        **({"proj_size": outputs} if outputs != hidden else {}),
    )
