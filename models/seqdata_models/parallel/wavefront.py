"""Layers over processes, a wavefront over chunks: truncated backpropagation, exact.

Stage s holds some layers. While it runs chunk t, the stage before runs chunk t + 1: along time only
recurrent states flow, which stay in their stage, and truncation cuts the backward at chunk edges.
N = chunks x lane groups items take N + S - 1 slots of S stages: the speedup is N S / (N + S - 1).
(The diagonal of layers and time: Appleyard, Kocisky, Blunsom 2016, arXiv 1604.01946, on one GPU;
GPipe: Huang et al. 2019, arXiv 1811.06965, whose micro-batches are the items here.)
Place in the flow: above ``stack``. Reads: batches. Makes: gradients of its stage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seqdata import SequenceBatch
from seqdata_models.parallel.engine import Engine, run_pipeline, sum_gradients
from seqdata_models.parallel.mesh import Mesh
from seqdata_models.parallel.slices import BatchPart, padded_length, split_rows
from seqdata_models.parallel.stack import State, map_state


@dataclass(frozen=True, slots=True, eq=False)
class _Item:
    """A group of rows of a chunk."""

    chunk: int
    batch: SequenceBatch
    part: BatchPart
    is_first: bool
    is_last: bool


class Wavefront(Engine):
    """A recurrent stack whose layers are spread over the stages of a mesh.

    Each process keeps the whole module, but steps and updates its own layers only; the others are
    stale until ``synchronize``.

    Args:
        module: Names its parts (``SupportsStages``).
        mesh: Of processes; ``mesh.size`` stages.
        lane_groups: Groups of rows of each chunk that follow each other.
        seed: Of dropout masks.

    Attributes:
        stages: The steps of each stage.

    Examples:
        wave = Wavefront(model, Mesh(2))
        for batches in updates:  # 8 chunks each
            loss = wave.update(batches)
            wave.clip_gradients(1.0)
            optimizer.step()
        wave.synchronize()
    """

    splits_weights = True

    def __init__(
        self, module: nn.Module, mesh: Mesh, lane_groups: int = 1, *, seed: int = 0
    ) -> None:
        super().__init__(module, mesh, lane_groups, seed)
        self.stages = self.stack.cut(mesh.size)
        self._steps = self.stages[mesh.position]
        self._layers = [step.layer for step in self._steps if step.layer is not None]
        self._users = _find_users(self.stages)
        self._state: State = None
        self._tables: set[str] = set()  # of lane states, whose batches were trained
        self._graphs: deque[tuple[int, Tensor | None, Tensor]] = deque()

    @property
    def is_last(self) -> bool:
        """Whether this process has the last stage, where the loss is."""
        return self.mesh.position == self.mesh.size - 1

    def owner_of(self, parameter: nn.Parameter) -> int:
        """Return the first stage that uses a parameter; 0 if it is in none."""
        return min(self._users.get(id(parameter), (0,)))

    def synchronize(self) -> None:
        """Make weights and lane states whole on every process; all processes call it."""
        if not self._is_stale:
            return
        with self.mesh.guard(), torch.no_grad():
            for parameter in self.module.parameters():
                value = parameter.detach().clone().contiguous()
                parameter.copy_(self.mesh.broadcast(value, self.owner_of(parameter)))
            if self.stack.lanes is not None:
                for table in sorted(self._tables):
                    self.stack.lanes.replace_states(table, self._gather_layers)
        self._is_stale = False

    def _run(self, batches: Sequence[SequenceBatch], scale: float) -> Tensor:
        self._total = torch.zeros((), device=self.stack.weight.device, dtype=torch.float64)
        self._scale = scale
        self._graphs.clear()
        run_pipeline(
            self._iterate(batches),
            self.mesh.position,
            self.mesh.size,
            self._forward,
            self._backward,
        )
        return self._total

    def _iterate(self, batches: Sequence[SequenceBatch]) -> Iterator[_Item]:
        for chunk, batch in enumerate(batches):
            parts = split_rows(batch, self.lane_groups)
            for number, part in enumerate(parts):
                yield _Item(chunk, batch, part, number == 0, number == len(parts) - 1)

    def _forward(self, item: _Item) -> None:
        rows = slice(*item.part.rows)
        self.mesh.at(f"forward of chunk {item.chunk}, rows {rows.start} to {rows.stop - 1}")
        if item.is_first:
            self._state = self.stack.take(item.batch)
            self._tables.add(item.batch.loader)
            self._ends: list[State] = []
        given = map_state(lambda leaf: leaf[:, rows].contiguous(), self._state)
        x = self._receive(item.part)
        out, ends = self.stack.run(
            self._steps, item.part, self._inputs(item.part) if x is None else x,
            lambda layer: map_state(lambda leaf: leaf[layer : layer + 1], given),
        )  # fmt: skip
        if self.is_last:
            nll = self.stack.loss(out, item.part.batch)
            self._total += nll.detach()
            out = nll * (item.batch.loss_scale * self._scale)
        else:
            self.mesh.send(out, self.mesh.position + 1, "outputs")
        self._graphs.append((item.chunk, x, out))
        self._ends.append(self._with_own_layers(given, ends))
        if item.is_last:
            whole = map_state(lambda *leaves: torch.cat(leaves, dim=1), *self._ends)
            self.stack.put(item.batch, whole)

    def _backward(self) -> None:
        chunk, x, out = self._graphs.popleft()
        self.mesh.at(f"backward of chunk {chunk}")
        gradient = None
        if not self.is_last:
            received = torch.empty_like(out, memory_format=torch.contiguous_format)
            gradient = self.mesh.receive(received, self.mesh.position + 1, "gradients")
        torch.autograd.backward(out, gradient)
        if x is not None:
            sent = torch.zeros_like(x) if x.grad is None else x.grad
            self.mesh.send(sent, self.mesh.position - 1, "gradients")

    def _inputs(self, part: BatchPart) -> Tensor:
        return self.stack.inputs(part.batch)

    def _receive(self, part: BatchPart) -> Tensor | None:
        """Return what the stage before has sent, (r, T, size); None: this is the first stage."""
        if self.mesh.position == 0:
            return None
        layer: Any = self._steps[0].module
        shape = len(part.batch), padded_length(part.batch), layer.input_size
        x = torch.empty(shape, dtype=layer.weight_ih_l0.dtype, device=layer.weight_ih_l0.device)
        return self.mesh.receive(x, self.mesh.position - 1, "outputs").requires_grad_()

    def _with_own_layers(self, given: State, ends: dict[int, State]) -> State:
        """Return states of all layers: this stage's at the end, others as they were given."""
        first, stop = self._layers[0], self._layers[-1] + 1
        own = map_state(lambda *leaves: torch.cat(leaves), *(ends[n] for n in range(first, stop)))
        return map_state(
            lambda old, new: torch.cat([old[:first], new.detach().to(old.dtype), old[stop:]]),
            given, own,
        )  # fmt: skip

    def _gather_layers(self, state: State) -> State:
        """Return states with each stage's own layers; all processes call it."""
        first, stop = self._layers[0], self._layers[-1] + 1
        own = map_state(lambda leaf: leaf[first:stop].cpu(), state)
        gathered = self.mesh.gather(own)
        return map_state(
            lambda old, *parts: torch.cat(parts).to(old.device, old.dtype), state, *gathered
        )

    def _reduce_gradients(self) -> None:
        """Sum what several stages use over them, then take the mean over replicas."""
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        everywhere = range(self.mesh.size)
        shared = [p for p in parameters if len(self._users.get(id(p), everywhere)) > 1]
        if shared and self.mesh.size > 1:
            sum_gradients(shared, self.mesh, ["model"])
        used = [p for p in parameters if self.mesh.position in self._users.get(id(p), everywhere)]
        if self.mesh.data > 1:
            sum_gradients(used, self.mesh, ["data"])
        for parameter in parameters:
            if not any(parameter is one for one in used):
                parameter.grad = None


def _find_users(stages: Sequence[Sequence[Any]]) -> dict[int, tuple[int, ...]]:
    """Return for each parameter's id the stages that use it."""
    users: dict[int, tuple[int, ...]] = {}
    for stage, steps in enumerate(stages):
        for step in steps:
            for parameter in () if step.drop else step.module.parameters():
                users[id(parameter)] = (*users.get(id(parameter), ()), stage)
    return {key: tuple(dict.fromkeys(found)) for key, found in users.items()}
