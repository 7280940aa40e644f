"""Counts of a model's recurrent stack: weights, operations, and values kept for backward.

They follow from the shapes of weights; nothing is run. A part whose weights multiply each timestep
has two operations per weight and timestep forward, and twice that backward.

On request the time of a few timesteps of each part is measured on the device of training. A device
that is not busy takes as long for few rows as for many: then fewer rows on each device, or groups
of rows, gain nothing, which counts cannot show.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from seqdata.errors import ConfigError, must_be

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    Weights = Mapping[str, Tensor]

_CELLS = {1: "rnn", 3: "gru", 4: "lstm"}  # by number of gates
_KEPT_PER_HIDDEN = {"lstm": 7.0, "gru": 7.0, "rnn": 1.0}
"""Values that torch keeps for backward, per value of a state and timestep."""
_KEPT_BY_ONEDNN = 16.5
"""The same for float32 LSTMs on CPUs, which oneDNN runs with a workspace (measured)."""
_WEIGHT = re.compile(r"(?:(?P<owner>.+)\.)?(?P<kind>(?:weight|bias)_(?:ih|hh|hr))_l(?P<layer>\d+)"
                     r"(?P<reverse>_reverse)?")  # fmt: skip
_ROUNDS = 3  # measured rounds, of which the fastest counts


@dataclass(slots=True)
class StackTimer:
    """Measures the time of parts by their sizes, each size once.

    Args:
        device: ``cpu`` or ``cuda``.
        dtype: Dtype of the weights.
        timesteps: Number of timesteps that are measured.
    """

    device: str
    dtype: torch.dtype
    timesteps: int = 16
    _seconds: dict[tuple[Any, ...], float] = field(default_factory=dict)

    def __call__(self, part: PartCounts, rows: int) -> float:
        """Return the seconds of one timestep of a part, forward and backward.

        Args:
            part: Part of a model, measured with random weights.
            rows: Number of rows.
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
    """Return a module with the sizes of a part."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCounts:
    """Counts of one recurrent layer, or of another part of a model that runs at each timestep.

    Attributes:
        name: Name of its weights: ``rnn.l0``, ``head``.
        cell: ``lstm``, ``gru``, ``rnn``; empty for another part.
        inputs: Size of its input, per timestep.
        hidden: Size of its state; 0 without a state.
        outputs: Size of its output, per timestep.
        parameters: Number of weights.
        cost: Number of weights that each timestep is multiplied by; 0 for an embedding.
        kept: Number of values kept for backward, per row and timestep.
        directions: Number of directions; ``hidden`` and ``outputs`` are of all directions.
        has_bias: Whether it has a bias.
    """

    name: str
    cell: str = ""
    inputs: int = 0
    hidden: int = 0
    outputs: int = 0
    parameters: int = 0
    cost: int = 0
    kept: float = 0.0
    directions: int = 1
    has_bias: bool = True

    @property
    def state(self) -> int:
        """Number of values of the state, per row; for an LSTM of h and c."""
        return self.outputs * bool(self.cell) + self.hidden * (self.cell == "lstm")


@dataclass(frozen=True, slots=True, kw_only=True)
class StackCounts:
    """Counts of a model.

    Attributes:
        name: Name of the model.
        parts: Parts in the order in which they run.
        parameters: Number of weights of the whole model; shared ones are counted once.
        shared: Number of weights that several parts share.
        itemsize: Bytes of a weight.
        recurrent: Names of recurrent modules.
        is_bidirectional: Whether a recurrent module is bidirectional.
        names_parts: Whether the model has ``parallel_stages``; None: unknown, for a checkpoint.
    """

    name: str
    parts: tuple[PartCounts, ...]
    parameters: int
    shared: int
    itemsize: int
    recurrent: tuple[str, ...]
    is_bidirectional: bool
    names_parts: bool | None

    @property
    def layers(self) -> list[PartCounts]:
        """Recurrent layers."""
        return [part for part in self.parts if part.cell]

    def cut(self, stages: int) -> list[tuple[PartCounts, ...]]:
        """Return contiguous stages of about equal cost; each begins with a recurrent layer.

        The first stage also has the parts before the first layer, as in a wavefront.

        Args:
            stages: Number of stages, at most that of layers.
        """
        starts = [index for index, part in enumerate(self.parts) if part.cell][1:]
        costs = [0, *itertools.accumulate(part.cost for part in self.parts)]

        def most(cuts: tuple[int, ...]) -> int:
            bounds = [0, *cuts, len(self.parts)]
            return max(costs[b] - costs[a] for a, b in itertools.pairwise(bounds))

        best = min(itertools.combinations(starts, stages - 1), key=most)
        bounds = [0, *best, len(self.parts)]
        return [self.parts[a:b] for a, b in itertools.pairwise(bounds)]


def count_model(model: nn.Module | Weights, name: str, *, is_cpu: bool) -> StackCounts:
    """Return the counts of a module, or of a checkpoint's weights.

    Args:
        model: A module, or tensors by name.
        name: Name for messages and reports.
        is_cpu: Whether it is trained on CPUs.

    Raises:
        ConfigError: If it has no recurrent part.
    """
    from seqdata.recurrent.cells import unwrap_module

    model = unwrap_module(model)
    named = list(_split_weights(model) if isinstance(model, Mapping) else _split_module(model))
    parts: list[PartCounts] = []
    for part in named:
        parts += _count_part(part, parts[-1].outputs if parts else 0, is_cpu=is_cpu)
    recurrent = {part.name.rpartition(".")[0]: None for part in parts if part.cell}
    if not recurrent:
        raise ConfigError(
            must_be(
                f"doctor: {name}", "a model with a recurrent part (nn.LSTM, nn.GRU or nn.RNN)",
                "one without any", "There is nothing to split along layers or time",
            )
        )  # fmt: skip
    if not parts[-1].cell:  # a loss keeps the output of the last part
        parts[-1] = replace(parts[-1], kept=parts[-1].kept + parts[-1].outputs)
    tensors = [value for part in named for value in part.weights.values()]
    parameters = sum({value.data_ptr(): value.numel() for value in tensors}.values())
    return StackCounts(
        name=name,
        parts=tuple(parts),
        parameters=parameters,
        shared=sum(value.numel() for value in tensors) - parameters,
        itemsize=tensors[0].element_size(),
        recurrent=tuple(recurrent),
        is_bidirectional=any(key.endswith("_reverse") for part in named for key in part.weights),
        names_parts=None if isinstance(model, Mapping) else hasattr(model, "parallel_stages"),
    )


@dataclass(frozen=True, slots=True)
class _NamedPart:
    """A part with its weights, by name."""

    name: str
    weights: Weights
    is_embedding: bool = False
    drop: bool = False


def _split_module(module: nn.Module) -> Iterator[_NamedPart]:
    """Yield the parts that a module names, or all that have weights."""
    from torch import nn

    from seqdata.recurrent.cells import unwrap_module

    names: dict[int, str] = {}  # a wrapped module has the name of its wrapper
    for name, child in module.named_modules():
        names.setdefault(id(unwrap_module(child)), name)
    parallel = getattr(module, "parallel_stages", None)
    children = map(unwrap_module, parallel()) if callable(parallel) else module.modules()
    for child in children:
        weights = dict(child.named_parameters(recurse=callable(parallel)))
        drop = isinstance(child, nn.Dropout | nn.RNNBase) and _drops(child)
        if weights or drop:
            name = names.get(id(child), "") or type(child).__name__
            yield _NamedPart(name, weights, isinstance(child, nn.Embedding), drop)


def _drops(child: nn.Module) -> bool:
    return bool(getattr(child, "p", 0) or getattr(child, "dropout", 0))


def _split_weights(weights: Weights) -> Iterator[_NamedPart]:
    """Yield the parts of a checkpoint, by owner; a matrix without a bias is an embedding."""
    by_owner: dict[str, dict[str, Tensor]] = {}
    for name, value in weights.items():
        if value.is_floating_point():
            owner, _, key = name.rpartition(".")
            by_owner.setdefault(owner, {})[key] = value
    for owner, members in by_owner.items():
        yield _NamedPart(owner, members, list(members) == ["weight"])


def _count_part(part: _NamedPart, width: int, *, is_cpu: bool) -> Iterator[PartCounts]:
    """Yield the counts of a part, or of each of its layers.

    Args:
        part: The part.
        width: Size of the output of the part before.
        is_cpu: Whether it is trained on CPUs.
    """
    layers: dict[int, dict[str, Tensor]] = {}
    for key, value in part.weights.items():
        if found := _WEIGHT.fullmatch(key):
            layers.setdefault(int(found["layer"]), {})[key] = value
    for number, members in sorted(layers.items()):
        drop = part.drop and number + 1 < len(layers)
        yield _count_layer(f"{part.name}.l{number}", members, drop=drop, is_cpu=is_cpu)
    if layers:
        return
    sizes = {key: value.numel() for key, value in part.weights.items()}
    parameters = sum(sizes.values())
    matrices = [value for value in part.weights.values() if value.ndim > 1]
    inputs = int(matrices[0].shape[1]) if matrices and not part.is_embedding else width
    outputs = int(matrices[-1].shape[1 if part.is_embedding else 0]) if matrices else width
    yield PartCounts(
        name=part.name,
        inputs=inputs,
        outputs=outputs,
        parameters=parameters,
        cost=0 if part.is_embedding else parameters,
        kept=0.0 if part.is_embedding else float(inputs),
        has_bias="bias" in part.weights,
    )


def _count_layer(
    name: str, weights: Mapping[str, Tensor], *, drop: bool, is_cpu: bool
) -> PartCounts:
    number = name.rpartition(".l")[2]
    from_inputs, from_state = (weights[f"weight_{kind}_l{number}"] for kind in ("ih", "hh"))
    projection = weights.get(f"weight_hr_l{number}")
    directions = 2 if f"weight_ih_l{number}_reverse" in weights else 1
    hidden = int(from_state.shape[1] if projection is None else projection.shape[1])
    outputs = int(from_state.shape[1])
    cell = _CELLS[from_state.shape[0] // hidden]
    per_hidden = _KEPT_PER_HIDDEN[cell]
    if is_cpu and cell == "lstm" and projection is None and from_state.element_size() == 4:
        per_hidden = _KEPT_BY_ONEDNN
    activations = from_inputs.shape[1] + directions * (per_hidden * hidden)
    extra = outputs * (projection is not None) + outputs * drop
    parameters = sum(value.numel() for value in weights.values())
    return PartCounts(
        name=name,
        cell=cell,
        inputs=int(from_inputs.shape[1]),
        hidden=hidden * directions,
        outputs=outputs * directions,
        parameters=parameters,
        cost=parameters,
        kept=float(activations + directions * extra),
        directions=directions,
        has_bias=f"bias_ih_l{number}" in weights,
    )


def sum_costs(parts: Sequence[PartCounts]) -> int:
    """Return the number of weights that each timestep is multiplied by, in all parts."""
    return sum(part.cost for part in parts)
