"""Recurrent stack that can be split: layers of an ``nn.LSTM`` run one by one with its weights.

Place in the flow: an engine splits the parts of a module, and runs its stage on parts of batches.
Reads: the parts that ``parallel_stages`` names. Makes: the outputs and states of the whole module.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from seqdata import ConfigError, LaneStates, SequenceBatch, unwrap_module
from seqdata_models.parallel.deferred import DeferredLayer, DeferredLinear, WeightGradients
from seqdata_models.parallel.slices import BatchPart

State = Any
"""State of an LSTM (h, c) or a GRU h; each (layers, rows, size)."""

_WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
_KINDS: dict[str, Callable[..., nn.RNNBase]] = {
    "LSTM": nn.LSTM, "GRU": nn.GRU, "RNN_TANH": nn.RNN, "RNN_RELU": nn.RNN,
}  # fmt: skip


@runtime_checkable
class SupportsStages(Protocol):
    """Protocol of modules that the parallel engines can train."""

    def parallel_stages(self) -> Sequence[nn.Module]:
        """Return the parts in the order in which they run; exactly one of them is recurrent.

        The recurrent part is an LSTM, GRU or RNN of torch. An ``nn.Dropout`` has seeded masks. Any
        other part must process each timestep independently.
        """
        ...

    def parallel_inputs(self, batch: SequenceBatch) -> Tensor:
        """Return the input of the first part, (r, T, ...)."""
        ...

    def parallel_nll(self, outputs: Tensor, batch: SequenceBatch) -> Tensor:
        """Return the loss of each timestep, (r, T) float; 0 if it is not scored.

        Args:
            outputs: Outputs of the last part, (r, T, ...).
            batch: Batch of the same rows and timesteps.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One part of a stack, or one layer of its recurrent part.

    Attributes:
        module: Module to run. A recurrent layer shares its weights with the recurrent part. For a
            dropout, the module whose training mode applies.
        number: Index of the step in the stack.
        layer: Index of the layer in the recurrent part; None for a step of another part.
        drop: Fraction of activations dropped; 0: the step is not a dropout.
        deferred: Callable with deferred weight gradients that replaces the module; None: none.
    """

    module: nn.Module
    number: int
    layer: int | None = None
    drop: float = 0.0
    deferred: Callable[..., Any] | None = None

    @property
    def run(self) -> Callable[..., Any]:
        """Callable of the inputs and, for a recurrent layer, of a state."""
        return self.module if self.deferred is None else self.deferred


class Stack:
    """Parts of a module as steps that can be split into stages.

    Args:
        module: Module that names its parts (``SupportsStages``).
        seed: Seed of dropout masks. Each mask is drawn for (seed, epoch, batch, step, lane or row),
            so it does not depend on the split of the stack, rows and timesteps.
        weights: Object that keeps deferred weight gradients; None: they are not deferred.

    Attributes:
        module: The module.
        seed: Seed of dropout masks.
        steps: Steps in the order in which they run.
        rnn: Recurrent part.
        lanes: Lane states of the module; None: each batch begins with zeros.

    Raises:
        ConfigError: If the module does not name its parts, if it has not exactly one recurrent part
            or more than one LaneStates, or if a part cannot be split.
    """

    def __init__(
        self, module: nn.Module, seed: int = 0, weights: WeightGradients | None = None
    ) -> None:
        if not isinstance(module, SupportsStages):
            names = ("parallel_stages", "parallel_inputs", "parallel_nll")
            missing = ", ".join(f"`{name}`" for name in names if not hasattr(module, name))
            raise ConfigError(
                f"parallel: {type(module).__name__} must have `parallel_stages`, `parallel_inputs` "
                f"and `parallel_nll`, but lacks {missing}. Name its parts as `StatefulLM` does."
            )
        self.module, self.seed = module, seed
        parts = list(_iter_parts(module.parallel_stages()))
        recurrent = [part for part in parts if isinstance(part, nn.RNNBase)]
        name = type(module).__name__
        if len(recurrent) != 1:
            raise ConfigError(
                f"parallel: `parallel_stages` of {name} must have one recurrent part, but has "
                f"{len(recurrent)}. Use one LSTM or GRU with `num_layers`."
            )
        (self.rnn,) = recurrent
        _check_recurrent(self.rnn, name)
        for part in parts:
            _check_part(part, name)
        self.steps = _make_steps(parts)
        if weights is not None:
            self.steps = [_defer(step, weights) for step in self.steps]
        self.lanes = _find_lanes(module)
        self._runner = LaneStates()

    @property
    def is_lstm(self) -> bool:
        """Whether a state is a pair (h, c)."""
        return self.rnn.mode == "LSTM"

    @property
    def weight(self) -> Tensor:
        """Weight of the recurrent part, for its dtype and device."""
        weight: Tensor = self.rnn.weight_ih_l0  # type: ignore[assignment]
        return weight

    def make_zeros(self, rows: int, layers: int | None = None) -> State:
        """Return a zero state, (layers, rows, size), or a pair of states (h, c) for an LSTM.

        Args:
            rows: Number of rows.
            layers: Number of layers; None: all.
        """
        layers = self.rnn.num_layers if layers is None else layers
        weight = self.weight
        output = self.rnn.proj_size or self.rnn.hidden_size
        h = torch.zeros(layers, rows, output, dtype=weight.dtype, device=weight.device)
        return (h, h.new_zeros(layers, rows, self.rnn.hidden_size)) if self.is_lstm else h

    def cut(self, stages: int) -> list[tuple[Step, ...]]:
        """Return contiguous stages of about equal cost; each begins with a recurrent layer.

        The first stage also has the steps before the first recurrent layer. The cost of a step is
        its number of parameters; embeddings and dropouts have no cost.

        Args:
            stages: Number of stages.

        Raises:
            ConfigError: If there are fewer recurrent layers than stages.
        """
        places = [n for n, step in enumerate(self.steps) if step.layer is not None][1:]
        if stages - 1 > len(places):
            raise ConfigError(
                f"parallel: `stages` must be at most {len(places) + 1}, the number of recurrent "
                f"layers, but is {stages}. Use fewer stages, or split time with `RingStrategy`."
            )
        costs = [0, *itertools.accumulate(_cost(step) for step in self.steps)]

        def dearest(cuts: tuple[int, ...]) -> int:
            bounds = [0, *cuts, len(self.steps)]
            return max(costs[b] - costs[a] for a, b in itertools.pairwise(bounds))

        cuts = min(itertools.combinations(places, stages - 1), key=dearest)
        bounds = [0, *cuts, len(self.steps)]
        return [tuple(self.steps[a:b]) for a, b in itertools.pairwise(bounds)]

    def run(
        self, steps: Sequence[Step], part: BatchPart, x: Tensor, states: Callable[[int], State]
    ) -> tuple[Tensor, dict[int, State]]:
        """Run steps on a part of a batch.

        Args:
            steps: Consecutive steps.
            part: Rows and timesteps.
            x: Input of the first step, (r, T, ...).
            states: Function that returns the state of a layer, (1, r, size), at the first timestep
                of the part; None for zeros.

        Returns:
            Outputs, (r, T, ...), and layer -> state at the end of each row, (1, r, size).
        """
        ends = {}
        for step in steps:
            if step.layer is not None:
                state = states(step.layer)
                x, ends[step.layer] = self._runner.run(step.run, part.batch, x, state)
            elif step.drop:
                x = self._drop(x, part, step)
            else:
                x = step.run(x)
        return x, ends

    def inputs(self, batch: SequenceBatch) -> Tensor:
        """Return the input of the first step, (r, T, ...)."""
        x: Tensor = self.module.parallel_inputs(batch)
        return x

    def loss(self, outputs: Tensor, batch: SequenceBatch) -> Tensor:
        """Return the sum of losses of the outputs of the last step, () float."""
        nll: Tensor = self.module.parallel_nll(outputs, batch)
        return nll.sum()

    def take(self, batch: SequenceBatch, lanes: LaneStates | None, rows: tuple[int, int]) -> State:
        """Return the states of all layers at the beginning of some rows: those of lanes, or zeros.

        Each group of rows takes its own states, so that a learned initial state has the gradient of
        each row once.

        Args:
            batch: The whole batch.
            lanes: States of the lanes; None: zeros.
            rows: Range [first, stop) of rows.

        Returns:
            State, (layers, rows, size), or a pair of states for an LSTM.

        Raises:
            ConfigError: If sequences begin within a row, and the lanes have an initial state.
            PlanError: If the batch does not follow the previous one of its lanes.
            ResumeError: If the batch continues sequences whose states are not known.
        """
        if lanes is None or batch.lanes is None:
            return self.make_zeros(rows[1] - rows[0])
        if lanes.has_initial and batch.segments is not None and not batch.carry:
            raise ConfigError(
                "parallel: sequences that begin within a row must begin with zeros, but `initial` "
                "of the module's LaneStates is given. Plan with segments=False."
            )
        state = lanes.take(batch)
        if state is None:
            return self.make_zeros(rows[1] - rows[0])
        return map_state(lambda leaf: leaf[:, slice(*rows)].contiguous(), state)

    def _drop(self, x: Tensor, part: BatchPart, step: Step) -> Tensor:
        if not step.module.training:
            return x
        mask = dropout_mask(part, tuple(x.shape), step.drop, (self.seed, step.number))
        return x * mask.to(x.device, x.dtype)


def map_state(change: Callable[..., Tensor], state: State, *others: State) -> State:
    """Return a state with each tensor changed.

    Args:
        change: Function of a tensor of ``state`` and of the corresponding tensors of ``others``.
        state: Tensor, or a tuple of tensors.
        others: States of the same form.
    """
    if isinstance(state, tuple):
        return tuple(change(*leaves) for leaves in zip(state, *others, strict=True))
    return change(state, *others)


def dropout_mask(
    part: BatchPart, shape: tuple[int, ...], drop: float, key: tuple[int, int]
) -> Tensor:
    """Return factors 0 or 1 / (1 - drop), which do not depend on the split of the batch.

    Each lane, or without lanes each row of the whole batch, has its own random stream (Philox
    counters; Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), which is read from
    the first timestep of the part.

    Args:
        part: Part of a batch.
        shape: Shape of the activations, (r, T, ...).
        drop: Fraction of activations to drop, in [0, 1].
        key: Seed, and index of the step in the stack.

    Returns:
        Factors of the given shape, float64 on the CPU.
    """
    rows, width, features = shape[0], shape[1], int(np.prod(shape[2:], dtype=np.int64))
    draws = -(-features // 4)  # a Philox block has four numbers
    batch, (seed, step) = part.batch, key
    streams = range(*part.rows) if batch.lanes is None else batch.on_cpu("lanes").tolist()
    factors = np.zeros((rows, width, 4 * draws))
    for row, (identity, offset) in enumerate(zip(streams, part.offsets.tolist(), strict=True)):
        counter = np.array([offset * draws, identity % 2**64, step, batch.number], np.uint64)
        chosen = np.array([seed % 2**64, batch.epoch], np.uint64)
        stream = np.random.Generator(np.random.Philox(counter=counter, key=chosen))
        factors[row] = stream.random((width, 4 * draws)) >= drop
    scaled = factors[:, :, :features] / (1 - drop if drop < 1 else 1)
    return torch.from_numpy(scaled.reshape(shape))


def _iter_parts(parts: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """Yield parts, and the parts of each ``nn.Sequential``, so that dropouts are found.

    Recurrent parts and dropouts are yielded without wrappers, because the stack runs them itself.
    """
    for part in parts:
        if any(isinstance(inner, DistributedDataParallel) for inner in part.modules()):
            raise ConfigError(
                "parallel: a part of `parallel_stages` must not contain DistributedDataParallel, "
                f"but a {type(part).__name__} does: its gradients would be summed twice. "
                "Name the module within it; `Mesh` splits data."
            )
        inner = unwrap_module(part)
        if type(inner) is nn.Sequential:
            yield from _iter_parts(inner)
        else:
            yield inner if isinstance(inner, nn.RNNBase | nn.Dropout) else part


def _check_part(part: nn.Module, name: str) -> None:
    """Raise if the result of a part for some rows would differ from that for the whole batch."""
    for inner in part.modules():
        if isinstance(inner, nn.modules.batchnorm._BatchNorm):
            raise ConfigError(
                f"parallel: each part of `parallel_stages` of {name} must treat each timestep by "
                f"itself, but there is a {type(inner).__name__}. Use nn.LayerNorm."
            )
        if inner is not part and isinstance(inner, nn.Dropout) and inner.p:
            raise ConfigError(
                f"parallel: every dropout must be a part of `parallel_stages` of {name} itself, so "
                f"that its masks can be seeded, but one is inside a {type(part).__name__}. Split "
                "that part in three (before the dropout, the dropout, after it), or return them in "
                "an nn.Sequential."
            )


def _check_recurrent(rnn: nn.RNNBase, name: str) -> None:
    for weight in rnn._flat_weights_names:
        if weight not in rnn._parameters:
            raise ConfigError(
                f"parallel: the weights of the recurrent part of {name} must be its parameters, "
                f"but `{weight}` is computed (weight_norm, parametrize). Split the data only (DDP)."
            )
    if rnn.bidirectional:
        raise ConfigError(
            f"parallel: the recurrent part of {name} must read forward only, but is bidirectional: "
            "its backward direction begins where the sequence ends, so no layer and no part of the "
            "time can begin before the others have ended. Split the data only (DDP)."
        )


def _find_lanes(module: nn.Module) -> LaneStates | None:
    """Return the lane states of a module or of one of its submodules."""
    found = LaneStates.find_in(module)
    if len(found) > 1:
        raise ConfigError(
            f"parallel: {type(module).__name__} must have one LaneStates, for its recurrent part, "
            f"but has {len(found)}. Use one."
        )
    return next(iter(found.values()), None)


def _make_steps(parts: Sequence[nn.Module]) -> list[Step]:
    steps: list[Step] = []
    for part in parts:
        if isinstance(part, nn.Dropout):
            steps.append(Step(part, len(steps), drop=part.p))
        elif not isinstance(part, nn.RNNBase):
            steps.append(Step(part, len(steps)))
        else:
            for layer in range(part.num_layers):
                steps.append(Step(_view_layer(part, layer), len(steps), layer))
                if part.dropout and layer + 1 < part.num_layers:
                    steps.append(Step(part, len(steps), drop=part.dropout))
    return steps


def _defer(step: Step, weights: WeightGradients) -> Step:
    """Return a step with deferred weight gradients; unchanged if they cannot be deferred."""
    if step.layer is not None and isinstance(step.module, nn.RNNBase):
        return replace(step, deferred=DeferredLayer(step.module, weights))
    if type(linear := unwrap_module(step.module)) is nn.Linear:
        return replace(step, deferred=DeferredLinear(linear, weights))
    return step


def _view_layer(rnn: nn.RNNBase, layer: int) -> nn.RNNBase:
    """Return one layer as a separate module that shares the parameters of the recurrent part."""
    size = rnn.input_size if layer == 0 else rnn.proj_size or rnn.hidden_size
    options: dict[str, Any] = {"bias": rnn.bias, "batch_first": True, "device": "meta"}
    if rnn.proj_size:
        options["proj_size"] = rnn.proj_size
    if rnn.mode.startswith("RNN"):
        options["nonlinearity"] = rnn.mode.partition("_")[2].lower()
    view = _KINDS[rnn.mode](size, rnn.hidden_size, 1, **options)
    for name in _WEIGHTS:
        if hasattr(rnn, f"{name}_l{layer}"):
            setattr(view, f"{name}_l0", getattr(rnn, f"{name}_l{layer}"))
    return view


def _cost(step: Step) -> int:
    if step.drop or isinstance(unwrap_module(step.module), nn.Embedding):
        return 0
    return sum(value.numel() for value in step.module.parameters())
