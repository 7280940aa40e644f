"""Wavefront: truncated backpropagation through time, with the layers on several processes.

Stage s has some of the layers. While it runs chunk t, the stage before it runs chunk t + 1. Between
chunks only recurrent states are passed on, which stay in their stage, and truncation ends the
backward pass at the edges of chunks. S stages need N + S - 1 slots for N = chunks x lane groups
items, so the speedup is N S / (N + S - 1). (Appleyard, Kocisky, Blunsom 2016, arXiv 1604.01946, use
the diagonal of layers and time on one GPU. Items are the micro-batches of GPipe, Huang et al. 2019,
arXiv 1811.06965.)
Place in the flow: above ``stack``. Reads: batches. Makes: gradients of its stage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from seqdata import SequenceBatch
from seqdata_models.parallel.engine import Engine, run_pipeline, sum_gradients
from seqdata_models.parallel.mesh import Mesh
from seqdata_models.parallel.stack import State, map_state
from seqdata_models.parallel.stage import Item, Stage, iter_items


class Wavefront(Engine):
    """Engine that spreads the layers of a recurrent stack over the stages of a mesh.

    Each process has the whole module, but updates only the layers of its stage. Its other layers
    are stale until ``synchronize``.

    Args:
        module: Module that names its parts (``SupportsStages``).
        mesh: Mesh of processes, with ``mesh.size`` stages.
        lane_groups: Number of groups of rows of a chunk that follow each other through the stages.
        seed: Seed of dropout masks.
        split_backward: Whether a stage sends the gradient of its inputs before it computes the
            gradients of its weights, in time that would be idle. The speedup is then at most
            N S / (N + (S - 1) / 3), with N items and S stages. It uses the recurrent cells of this
            package, which are slower than those of torch.

    Attributes:
        stages: Steps of each stage.
        placement: Position of the process that runs each stage.

    Raises:
        ConfigError: If the module cannot be split into so many stages, or ``lane_groups`` is not a
            positive integer.

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
        self,
        module: nn.Module,
        mesh: Mesh,
        lane_groups: int = 1,
        *,
        seed: int = 0,
        split_backward: bool = False,
    ) -> None:
        super().__init__(module, mesh, lane_groups, seed, split_backward=split_backward)
        self.placement = self.place_stages()
        self.stages = self.stack.cut(len(self.placement))
        self._own = self._make_stages()
        self._users = self._find_users()
        self._tables: set[str] = set()  # of lane states, whose batches were trained
        self._graphs: deque[tuple[int, Tensor | None, Tensor]] = deque()
        self._waiting: deque[Callable[[], None]] = deque()

    def place_stages(self) -> tuple[int, ...]:
        """Return the position of the process of each stage; each process has one, in order."""
        return tuple(range(self.mesh.size))

    @property
    def is_last(self) -> bool:
        """Whether this process has the last stage, which computes the loss."""
        return self.placement[-1] == self.mesh.position

    def owner_of(self, parameter: nn.Parameter) -> int:
        """Return the position of the first process that uses a parameter; 0 if none does."""
        return min(self._users.get(id(parameter), (0,)))

    def synchronize(self) -> None:
        """Make weights and lane states whole on every process; all processes call it."""
        if not self._is_stale:
            return
        with self.mesh.guard(), torch.no_grad():
            self.meet("bring the stages together")
            for parameter in self.module.parameters():
                value = parameter.detach().clone().contiguous()
                parameter.copy_(self.mesh.broadcast(value, self.owner_of(parameter)))
            if self.stack.lanes is not None:
                for table in sorted(self._tables):
                    self.stack.lanes.replace_states(table, self._gather_layers)
        self._is_stale = False

    def _make_stages(self) -> dict[int, Stage]:
        """Return index -> stage, for the stages of this process."""
        place = self.mesh.position
        return {place: Stage(self.stack, self.stages[place], self.stack.lanes)}

    def _run(self, batches: Sequence[SequenceBatch], scale: float) -> Tensor:
        self._begin(batches, scale)
        run_pipeline(
            iter_items(batches, self.lane_groups),
            self.mesh.position,
            self.mesh.size,
            self._forward,
            self._backward,
            None if self.weights is None else self._add_weights,
        )
        return self._total

    def _begin(self, batches: Sequence[SequenceBatch], scale: float) -> None:
        self._total = torch.zeros((), device=self.stack.weight.device, dtype=torch.float64)
        self._scale = scale
        self._tables.update(batch.loader for batch in batches)
        self._graphs.clear()
        self._waiting.clear()

    def _forward(self, item: Item) -> None:
        self.mesh.at(f"forward of {item.describe()}")
        stage = self._own[self.mesh.position]
        x = None
        if self.mesh.position > 0:
            x = self.mesh.receive(stage.make_input(item.part), self.mesh.position - 1, "outputs")
            x.requires_grad_()
        out = stage.forward(item, self.stack.inputs(item.part.batch) if x is None else x)
        if self.is_last:
            out = self._score(out, item)
        else:
            out = out.to(self.stack.weight.dtype)  # autocast computes in another one
            self.mesh.send(out, self.mesh.position + 1, "outputs")
        self._graphs.append((item.chunk, x, out))

    def _score(self, out: Tensor, item: Item) -> Tensor:
        """Add the loss of the last stage's outputs to the total; return it scaled for backward."""
        nll = self.stack.loss(out, item.part.batch)
        self._total += nll.detach()
        return nll * (item.batch.loss_scale * self._scale)

    def _backward(self) -> None:
        chunk, x, out = self._graphs.popleft()
        self.mesh.at(f"backward of chunk {chunk}")
        gradient = None
        if not self.is_last:
            received = torch.empty_like(out, memory_format=torch.contiguous_format)
            gradient = self.mesh.receive(received, self.mesh.position + 1, "gradients")
        if out.requires_grad:  # False if all layers so far are frozen
            torch.autograd.backward(out, gradient)
        if x is not None:
            sent = torch.zeros_like(x) if x.grad is None else x.grad
            self.mesh.send(sent, self.mesh.position - 1, "gradients")
        if self.weights is not None:
            self._waiting.append(self.weights.take())

    def _add_weights(self) -> None:
        self._waiting.popleft()()

    def _gather_layers(self, state: State) -> State:
        """Return states with the layers of every stage; all processes call it."""
        own = {
            number: map_state(lambda leaf, s=stage: leaf[slice(*s.layers)].cpu(), state)
            for number, stage in self._own.items()
        }
        gathered: dict[int, State] = {}
        for parts in self.mesh.gather(own):
            gathered.update(parts)
        return map_state(
            lambda old, *parts: torch.cat(parts).to(old.device, old.dtype),
            state, *(gathered[number] for number in sorted(gathered)),
        )  # fmt: skip

    def _reduce_gradients(self) -> None:
        """Sum the gradients of shared parameters over processes; average all over replicas."""
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        everywhere = range(self.mesh.size)
        shared = [p for p in parameters if len(self._users.get(id(p), everywhere)) > 1]
        if shared and self.mesh.size > 1:
            sum_gradients(shared, self.mesh, ["model"])
        used = [p for p in parameters if self.mesh.position in self._users.get(id(p), everywhere)]
        if self.mesh.data > 1:
            sum_gradients(used, self.mesh, ["data"])
        for parameter in parameters:
            if not any(parameter is used_parameter for used_parameter in used):
                parameter.grad = None

    def _find_users(self) -> dict[int, tuple[int, ...]]:
        """Return id of parameter -> positions of the processes that use the parameter."""
        users: dict[int, tuple[int, ...]] = {}
        for place, steps in zip(self.placement, self.stages, strict=True):
            for step in steps:
                for parameter in () if step.drop else step.module.parameters():
                    users[id(parameter)] = (*users.get(id(parameter), ()), place)
        return {key: tuple(dict.fromkeys(found)) for key, found in users.items()}
