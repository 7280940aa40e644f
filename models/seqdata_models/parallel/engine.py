"""Base of the engines: the order of work in a pipeline, gradients, norms and whole models.

Place in the flow: a training loop, or a Lightning strategy, calls ``update`` with the batches of
one optimizer update, then ``clip_gradients``, then steps its optimizer. Reads: batches.
Makes: the gradients of a single process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from seqdata import ConfigError, ResumeError, SequenceBatch
from seqdata_models.parallel.deferred import WeightGradients
from seqdata_models.parallel.mesh import Mesh
from seqdata_models.parallel.slices import find_whole_batch
from seqdata_models.parallel.stack import Stack

Item = TypeVar("Item")

_PATIENCE = 10.0  # seconds


def run_pipeline(
    items: Iterable[Item],
    position: int,
    size: int,
    forward: Callable[[Item], None],
    backward: Callable[[], None],
    add_weights: Callable[[], None] | None = None,
) -> None:
    """Run items forward and backward in the order 1F1B.

    A stage runs ``size - position`` items forward before its first backward pass, and then
    alternates, so that it never holds more graphs. (Narayanan et al. 2019, "PipeDream", without its
    stale weights, because all items belong to one update.) S stages need N + S - 1 slots for N
    items.

    Args:
        items: Items in order, the same on all stages.
        position: Position of this stage, from 0.
        size: Number of stages.
        forward: Function that runs an item forward.
        backward: Function that runs the oldest item backward that has not run backward yet.
        add_weights: Function that adds the weight gradients of the oldest item whose backward pass
            has deferred them; None: none are deferred. Later stages call it later (Qi et al. 2024,
            ZB-H1), so that S stages need 3 N + S - 1 slots for N items of three slots each.
    """
    waiting, deferred = 0, 0

    def run_backward() -> None:
        nonlocal waiting, deferred
        backward()
        waiting -= 1
        deferred += 1
        if add_weights is not None and deferred > position:
            add_weights()
            deferred -= 1

    for item in items:
        forward(item)
        waiting += 1
        if waiting >= size - position:
            run_backward()
    while waiting:
        run_backward()
    if add_weights is not None:
        for _ in range(deferred):
            add_weights()


class Engine(ABC):
    """Base of engines that train a module on the processes of a mesh, with equal results.

    Gradients equal those of a single process, up to rounding.

    Args:
        module: Module that names its parts (``SupportsStages``), with the same weights on every
            process.
        mesh: Mesh of processes.
        lane_groups: Number of groups of rows that follow each other through the pipeline.
        seed: Seed of dropout masks.
        split_backward: Whether to compute gradients of inputs first, and those of weights later.

    Attributes:
        module: The module.
        mesh: The mesh.
        lane_groups: Number of groups of rows.
        stack: Parts of the module.
        weights: Deferred weight gradients; None without ``split_backward``.
        splits_weights: Whether a process updates the weights of its own stage only.

    Raises:
        ConfigError: If the module cannot be split, or ``lane_groups`` is not a positive integer.
    """

    splits_weights = False

    def __init__(
        self, module: nn.Module, mesh: Mesh, lane_groups: int, seed: int, *, split_backward: bool
    ) -> None:
        if type(lane_groups) is not int or lane_groups < 1:
            raise ConfigError(
                f"parallel: `lane_groups` must be an integer of at least 1, but is {lane_groups!r}."
            )
        self.module, self.mesh, self.lane_groups = module, mesh, lane_groups
        self.weights = WeightGradients() if split_backward else None
        self.stack = Stack(module, seed, self.weights)
        self._is_stale = False
        self._hooks = (
            module.register_state_dict_pre_hook(  # type: ignore[no-untyped-call]
                partial(self._refuse_stale, "a checkpoint must hold")
            ),
            module.register_forward_pre_hook(
                partial(self._refuse_stale, "the module must have the weights of")
            ),
        )

    def update(self, batches: Sequence[SequenceBatch], scale: float = 1.0) -> Tensor:
        """Set the gradients of one optimizer update; all processes call it.

        Args:
            batches: Consecutive batches, all computed with the same weights.
            scale: Factor of the loss, in addition to the ``loss_scale`` of each batch.

        Returns:
            float64 (2,) on the CPU, the same on all processes: the sum of losses, and the number of
            scored timesteps, both over the batches of all replicas.

        Raises:
            ConfigError: If a batch is not a SequenceBatch.
            PeerFailedError: If another process is gone.
            BaseException: The error of another process.
        """
        with self.mesh.guard():
            _check_batches(batches)
            for parameter in self.module.parameters():
                parameter.grad = None
            nll = self._run(batches, scale).double()
            self.mesh.flush()
            whole_batches = map(find_whole_batch, batches)
            tokens = sum(b.num_tokens for b in whole_batches) if self.mesh.position == 0 else 0
            totals = torch.stack([nll, nll.new_tensor(tokens)])
            for axis in ("model", "data"):
                self.mesh.all_reduce(totals, axis)
            self._reduce_gradients()
            self.mesh.at("after an update")
        self._is_stale = self.splits_weights and self.mesh.size > 1
        return totals.cpu()

    @abstractmethod
    def _run(self, batches: Sequence[SequenceBatch], scale: float) -> Tensor:
        """Set the gradients of this process; return the sum of its losses, without ``scale``."""

    @abstractmethod
    def _reduce_gradients(self) -> None:
        """Combine the gradients of all processes, so that each has those of the whole update."""

    @abstractmethod
    def owner_of(self, parameter: nn.Parameter) -> int:
        """Return the position of the process that updates a parameter."""

    @abstractmethod
    def synchronize(self) -> None:
        """Make weights and lane states whole on every process; all processes call it."""

    def is_own(self, parameter: nn.Parameter) -> bool:
        """Return whether this process counts a parameter in sums that count each parameter once."""
        return self.owner_of(parameter) == self.mesh.position

    def gradient_norm(self, parameters: Iterable[nn.Parameter] | None = None) -> Tensor:
        """Return the 2-norm of gradients over all stages, () float64; all processes call it.

        Args:
            parameters: Parameters of the model, the same on all processes; None: all.
        """
        norms = [
            parameter.grad.detach().norm(dtype=torch.float64)
            for parameter in (self.module.parameters() if parameters is None else parameters)
            if parameter.grad is not None and self.is_own(parameter)
        ]
        device = self.stack.weight.device
        total = torch.zeros(1, dtype=torch.float64, device=device)
        if norms:
            total += torch.stack(norms).square().sum()
        with self.mesh.guard():
            return self._sum_over_stages(total).sqrt()[0]

    def clip_gradients(
        self, max_norm: float, parameters: Sequence[nn.Parameter] | None = None
    ) -> Tensor:
        """Scale gradients so that their norm over all stages is at most ``max_norm``.

        All processes call it. The result equals that of ``torch.nn.utils.clip_grad_norm_`` in a
        single process.

        Args:
            max_norm: Maximum norm, at least 0.
            parameters: Parameters of the model, the same on all processes; None: all.

        Returns:
            () float64, the norm before clipping.
        """
        clipped = list(self.module.parameters()) if parameters is None else parameters
        norm = self.gradient_norm(clipped)
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for parameter in clipped:
            if parameter.grad is not None:
                parameter.grad.mul_(factor.to(parameter.grad.dtype))
        return norm

    def gather_optimizer(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the state of an optimizer with the parts of all stages, on the CPU.

        All processes call it. ``optimizer.load_state_dict`` accepts the state on any number of
        processes.

        Raises:
            ResumeError: If the part of a stage is missing.
        """
        saved = optimizer.state_dict()
        numbered = [p for group in optimizer.param_groups for p in group["params"]]
        own = {
            number: state
            for number, state in saved["state"].items()
            if self.owner_of(numbered[number]) == self.mesh.position
        }
        with self.mesh.guard():
            self.meet("gather the optimizer's state")
            gathered = self.mesh.gather((self.mesh.position, _to_cpu(own)))
            if {position for position, _ in gathered} != set(range(self.mesh.size)):
                raise ResumeError(
                    "parallel: the checkpoint must hold all stages, but has those of "
                    f"{[position for position, _ in gathered]}. Save on all processes."
                )
        merged = {number: state for _, states in gathered for number, state in states.items()}
        return {**saved, "state": dict(sorted(merged.items()))}

    def close(self) -> None:
        """Remove the hooks of the engine from the module. The mesh stays open."""
        for hook in self._hooks:
            hook.remove()

    def meet(self, purpose: str) -> None:
        """Wait until all processes are here; after 10 seconds, a warning names a missing one.

        Args:
            purpose: Purpose of the meeting, for errors.

        Raises:
            PeerFailedError: If a process is gone, or does not come in time.
            BaseException: The error of another process, if one has failed.
        """
        self.mesh.at(purpose)
        self.mesh.barrier(
            f"{purpose} (as for a checkpoint), which all processes must do", _PATIENCE
        )

    def _sum_over_stages(self, value: Tensor) -> Tensor:
        return self.mesh.all_reduce(value, "model")

    def _refuse_stale(self, need: str, *_: Any) -> None:
        """Raise if weights are used that other stages have updated."""
        if self._is_stale:
            raise ResumeError(
                f"parallel: {need} all stages, but this process has updated only stage "
                f"{self.mesh.position} of {self.mesh.size} since they were last synchronized. "
                "Call `synchronize()` on all processes first; with a Trainer it is "
                "`trainer.strategy.engine.synchronize()`."
            )


def sum_gradients(parameters: Sequence[nn.Parameter], mesh: Mesh, axes: Sequence[str]) -> None:
    """Sum the gradients of parameters over axes of the mesh, and average them over ``data``.

    A parameter that has no gradient on any process still has none afterwards.

    Args:
        parameters: Parameters, the same on all processes of the axes.
        mesh: Mesh of processes.
        axes: Names of axes: ``data``, ``model`` or both.
    """
    by_dtype: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        by_dtype.setdefault(parameter.dtype, []).append(parameter)
    for members in by_dtype.values():
        has = [members[0].new_tensor([float(p.grad is not None) for p in members])]
        own = [torch.zeros_like(p) if p.grad is None else p.grad for p in members]
        flat = torch.cat([*(gradient.detach().reshape(-1) for gradient in own), *has])
        for axis in axes:
            mesh.all_reduce(flat, axis)
        if "data" in axes:
            flat /= mesh.data
        sizes = [*(p.numel() for p in members), len(members)]
        *sums, presence = torch.split(flat, sizes)
        for parameter, value, present in zip(members, sums, presence.tolist(), strict=True):
            parameter.grad = value.view_as(parameter).clone() if present else None


def _check_batches(batches: Sequence[Any]) -> None:
    for batch in batches:
        if not isinstance(batch, SequenceBatch):
            raise ConfigError(
                "parallel: the batches of an update must be SequenceBatch, but one is "
                f"{type(batch).__name__}. Use a `SequenceDataModule`, or a `Loader` of seqdata."
            )


def _to_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {name: _to_cpu(part) for name, part in value.items()}
    return value
