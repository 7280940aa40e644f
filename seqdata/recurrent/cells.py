"""Adapters of torch's recurrent modules, and of any callable with their signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.optim.swa_utils import AveragedModel

from seqdata.errors import ConfigError, must_be
from seqdata.recurrent.trees import Tree

Recurrent = Callable[[Any, Any], tuple[Any, Any]]
"""``rnn(x, state) -> (out, state)``, ``x`` of (p, T, *shape); the initial state may be None."""


_INNER_NAMES = (
    "_orig_mod",  # torch.compile
    "_original_module",  # Fabric
    "_fsdp_wrapped_module",
    "_checkpoint_wrapped_module",
)
_WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel, AveragedModel)  # `module`
_CALLS = ("forward", "__call__", "_call_impl", "_wrapped_call_impl")
_TORCH_NAMES = ("LSTM", "GRU", "RNN")


@dataclass(frozen=True, slots=True)
class Cell:
    """A recurrent module or callable, called with rows first.

    Attributes:
        rnn: The module or callable.
        dim: The dimension of rows in its state.
        layer: The recurrent module of torch that ``rnn`` is or wraps; None: there is none.
    """

    rnn: Recurrent
    dim: int
    layer: nn.RNNBase | None = None

    @property
    def takes_packed(self) -> bool:
        """Whether packed sequences are taken."""
        return self.layer is not None

    def run_dense(self, x: Tensor, state: Tree | None) -> tuple[Tensor, Tree]:
        """Run rows of equal length.

        Args:
            x: Inputs (p, T, *shape).
            state: The state of p rows; None at the beginning.

        Returns:
            Outputs (p, T, *shape), and the state at the end of T.
        """
        is_time_first = self.layer is not None and not self.layer.batch_first
        out, end = self.rnn(x.transpose(0, 1) if is_time_first else x, state)
        if not isinstance(out, Tensor):
            raise ConfigError(
                "lanes: `rnn` must return a tensor (rows, timesteps, ...) and a state, but "
                f"returned {type(out).__name__} as output. Wrap it in a function that does"
            )
        return out.transpose(0, 1) if is_time_first else out, end

    def run_packed(self, x: Tensor, sizes: Tensor, state: Tree | None) -> tuple[Tensor, Tree]:
        """Run rows of decreasing length.

        Args:
            x: Inputs (N, *shape), timestep by timestep.
            sizes: int64 (T,), number of rows at each timestep, on the CPU.
            state: The state of the rows; None at the beginning.

        Returns:
            Outputs (N, *shape), and the state at the end of each row.
        """
        out, end = self.rnn(PackedSequence(x, sizes), state)
        return out.data, end


def unwrap_module(module: Any) -> Any:
    """Return the module within its wrappers; other objects are returned unchanged.

    Wrappers are ``torch.compile``, DistributedDataParallel, DataParallel, FSDP, activation
    checkpoints, averaged weights, Fabric's ``setup``, and a module's ``forward`` alone.

    Args:
        module: A module or callable.

    Examples:
        >>> layer = nn.Linear(2, 2)
        >>> unwrap_module(nn.DataParallel(layer)) is layer
        True
    """
    inner = module
    if isinstance(module, nn.Module):
        names = (*_INNER_NAMES, "module") if isinstance(module, _WRAPPERS) else _INNER_NAMES
        inner = next((module._modules[name] for name in names if name in module._modules), module)
    elif hasattr(module, "_torchdynamo_orig_callable"):  # a function that was compiled
        inner = inspect.unwrap(module, stop=inspect.ismethod)
    elif getattr(module, "__name__", "") in _CALLS:
        inner = getattr(module, "__self__", module)
    return module if inner is module else unwrap_module(inner)


def make_cell(rnn: Recurrent, dim: int) -> Cell:
    """Return the cell of a module or callable.

    Raises:
        ConfigError: If the module is bidirectional, if ``dim`` is not 1 for a module of torch, or
            if it cannot be determined whether the module takes rows first.
    """
    layer = unwrap_module(rnn)
    if not isinstance(layer, nn.RNNBase):
        _check_rows_first(layer)
        return Cell(rnn, dim)
    name = type(layer).__name__
    if layer.bidirectional:
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
    return Cell(rnn, dim, layer)


def to_features(cell: Cell, x: Tensor, name: str) -> Tensor:
    """Return a field as input of a recurrent module of torch: (r, T, size), in its weights' dtype.

    Args:
        cell: The cell; a callable that is not torch's takes any input.
        x: Values (r, T) or (r, T, size).
        name: Name of the field.

    Raises:
        ConfigError: If it has no feature dimension and the module needs more than one feature.
    """
    if cell.layer is None:
        return x
    if x.ndim == 2:
        if cell.layer.input_size != 1:
            raise ConfigError(
                f"lanes: field {name!r} must have {cell.layer.input_size} features per timestep "
                f"for {type(cell.layer).__name__}, but is {x.dtype} {tuple(x.shape)}. Embed it, "
                "and pass the tensor."
            )
        x = x.unsqueeze(-1)
    weight = next(cell.layer.parameters())
    return x.to(weight.dtype)


def _check_rows_first(module: Any) -> None:
    """Raise if a module may be a recurrent one that takes time first, or reads from both ends.

    Such are torch's own in another form (scripted, traced, exported, quantized), and a module that
    only wraps one of them: with equally many rows and timesteps it would mix them up silently.

    Raises:
        ConfigError: If the layout cannot be determined.
    """
    if not isinstance(module, nn.Module):
        return
    suspects = [module]
    own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    if not own and len(children := list(module.children())) == 1:
        suspects.append(unwrap_module(children[0]))
    if isinstance(module, torch.fx.GraphModule) or any(map(_is_opaque, suspects)):
        raise ConfigError(
            f"lanes: `rnn` must be an LSTM, GRU or RNN of torch, or take rows first, but is a "
            f"{type(module).__name__}, through which its layout and direction cannot be seen. Pass "
            "the recurrent layer itself or, if it takes (rows, timesteps, ...) and reads forward, "
            "a function: lambda x, state: rnn(x, state)"
        )


def _is_opaque(module: nn.Module) -> bool:
    if not hasattr(module, "bidirectional"):
        return getattr(module, "original_name", "") in _TORCH_NAMES  # traced
    return bool(module.bidirectional) or not getattr(module, "batch_first", True)
