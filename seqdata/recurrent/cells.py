"""What is run over time: torch's recurrent modules, and any callable of their form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from seqdata.errors import ConfigError
from seqdata.recurrent.trees import Tree

Recurrent = Callable[[Any, Any], tuple[Any, Any]]
"""``rnn(x, state) -> (out, state)``, ``x`` of (p, T, *shape); no state is given as None."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A recurrent module or callable, called with rows first.

    Attributes:
        rnn: What is called.
        dim: Where rows lie in its state.
    """

    rnn: Recurrent
    dim: int

    @property
    def takes_packed(self) -> bool:
        """Whether it takes packed sequences."""
        return isinstance(self.rnn, nn.RNNBase)

    def run_dense(self, x: Tensor, state: Tree | None) -> tuple[Tensor, Tree]:
        """Run rows of equal length.

        Args:
            x: (p, T, *shape).
            state: Of p rows; None: none yet.

        Returns:
            Outputs (p, T, *shape), and the state at the end of T.
        """
        is_time_first = isinstance(self.rnn, nn.RNNBase) and not self.rnn.batch_first
        out, end = self.rnn(_to_rnn_layout(x, self.rnn) if self.takes_packed else x, state)
        if not isinstance(out, Tensor):
            raise ConfigError(
                f"lanes: `rnn` gives {type(out).__name__} as output, must give a tensor (rows, "
                "timesteps, ...) and a state; wrap it in a function that does"
            )
        return out.transpose(0, 1) if is_time_first else out, end

    def run_packed(self, x: Tensor, sizes: Tensor, state: Tree | None) -> tuple[Tensor, Tree]:
        """Run rows of falling length.

        Args:
            x: (N, *shape), timestep by timestep.
            sizes: int64 (T,), rows that reach each timestep, on the CPU.
            state: Of the rows; None: none yet.

        Returns:
            Outputs (N, *shape), and the state at the end of each row.
        """
        out, end = self.rnn(PackedSequence(x, sizes), state)
        return out.data, end


def make_cell(rnn: Recurrent, dim: int) -> Cell:
    """Return what can be run in lanes.

    Raises:
        ConfigError: If it reads from both ends, or keeps its rows elsewhere.
    """
    if isinstance(rnn, nn.RNNBase):
        name = type(rnn).__name__
        if rnn.bidirectional:
            raise ConfigError(
                f"lanes: {name} is bidirectional, must read forward only: a lane's later chunks "
                "are not there yet; pass bidirectional=False"
            )
        if dim != 1:
            raise ConfigError(
                f"lanes: `dim` is {dim}, must be 1 for torch's {name}, whose state is (layers, "
                "rows, size); leave it out"
            )
    return Cell(rnn, dim)


def to_features(rnn: Recurrent, x: Tensor, name: str) -> Tensor:
    """Return a field as a recurrent module of torch takes it: (r, T, size), in its weights' dtype.

    Args:
        rnn: What takes it; what is none of torch's takes everything.
        x: (r, T) or (r, T, size).
        name: Of the field.

    Raises:
        ConfigError: If it has no feature dimension and the module wants more than one.
    """
    if not isinstance(rnn, nn.RNNBase):
        return x
    if x.ndim == 2:
        if rnn.input_size != 1:
            raise ConfigError(
                f"lanes: field {name!r} is {x.dtype} {tuple(x.shape)}, must have {rnn.input_size} "
                f"features per timestep for {type(rnn).__name__}; embed it, and pass the tensor"
            )
        x = x.unsqueeze(-1)
    weight = next(rnn.parameters())
    return x.to(weight.dtype)


def _to_rnn_layout(x: Tensor, rnn: Any) -> Tensor:
    """Return inputs in torch's layout, and always in strides that its kernels take one way.

    Torch adds the bias within the product where inputs are contiguous in time, and after it where
    not: a single timestep of rows would be rounded otherwise than the same one among others.
    """
    if not rnn.batch_first:
        return x.transpose(0, 1).contiguous()
    if x.shape[1] == 1 and x.is_contiguous():
        return torch.cat([x, x], dim=1)[:, :1]
    return x
