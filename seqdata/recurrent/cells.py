"""Adapters of torch's recurrent modules, and of any callable with their signature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from seqdata.errors import ConfigError, must_be
from seqdata.recurrent.trees import Tree

Recurrent = Callable[[Any, Any], tuple[Any, Any]]
"""``rnn(x, state) -> (out, state)``, ``x`` of (p, T, *shape); the initial state may be None."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A recurrent module or callable, called with rows first.

    Attributes:
        rnn: The module or callable.
        dim: The dimension of rows in its state.
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
            state: The state of p rows; None at the beginning.

        Returns:
            Outputs (p, T, *shape), and the state at the end of T.
        """
        is_time_first = isinstance(self.rnn, nn.RNNBase) and not self.rnn.batch_first
        out, end = self.rnn(_to_rnn_layout(x, self.rnn) if self.takes_packed else x, state)
        if not isinstance(out, Tensor):
            raise ConfigError(
                "lanes: `rnn` must return a tensor (rows, timesteps, ...) and a state, but "
                f"returned {type(out).__name__} as output. Wrap it in a function that does"
            )
        return out.transpose(0, 1) if is_time_first else out, end

    def run_packed(self, x: Tensor, sizes: Tensor, state: Tree | None) -> tuple[Tensor, Tree]:
        """Run rows of decreasing length.

        Args:
            x: (N, *shape), timestep by timestep.
            sizes: int64 (T,), rows that reach each timestep, on the CPU.
            state: The state of the rows; None at the beginning.

        Returns:
            Outputs (N, *shape), and the state at the end of each row.
        """
        out, end = self.rnn(PackedSequence(x, sizes), state)
        return out.data, end


def make_cell(rnn: Recurrent, dim: int) -> Cell:
    """Return the cell of a module or callable.

    Raises:
        ConfigError: If it is bidirectional, or its rows are in another dimension.
    """
    if isinstance(rnn, nn.RNNBase):
        name = type(rnn).__name__
        if rnn.bidirectional:
            raise ConfigError(
                f"lanes: {name} must not be bidirectional: a lane's later chunks are not "
                "available yet. Pass bidirectional=False."
            )
        if dim != 1:
            raise ConfigError(
                must_be(
                    "lanes: `dim`",
                    f"1 for torch's {name}, whose state is (layers, rows, size)",
                    f"{dim}",
                    "Leave it out",
                )
            )
    return Cell(rnn, dim)


def to_features(rnn: Recurrent, x: Tensor, name: str) -> Tensor:
    """Return a field as input of a recurrent module of torch: (r, T, size), in its weights' dtype.

    Args:
        rnn: The module; a callable that is not torch's takes any input.
        x: (r, T) or (r, T, size).
        name: Name of the field.

    Raises:
        ConfigError: If it has no feature dimension and the module needs more than one feature.
    """
    if not isinstance(rnn, nn.RNNBase):
        return x
    if x.ndim == 2:
        if rnn.input_size != 1:
            raise ConfigError(
                f"lanes: field {name!r} must have {rnn.input_size} features per timestep for "
                f"{type(rnn).__name__}, but is {x.dtype} {tuple(x.shape)}. Embed it, and pass "
                "the tensor."
            )
        x = x.unsqueeze(-1)
    weight = next(rnn.parameters())
    return x.to(weight.dtype)


def _to_rnn_layout(x: Tensor, rnn: Any) -> Tensor:
    """Return inputs in torch's layout, always with the same strides.

    Torch adds the bias within the product if inputs are contiguous in time, and after it if not: a
    single timestep would be rounded differently than the same timestep among others.
    """
    if not rnn.batch_first:
        return x.transpose(0, 1).contiguous()
    if x.shape[1] == 1 and x.is_contiguous():
        return torch.cat([x, x], dim=1)[:, :1]
    return x
