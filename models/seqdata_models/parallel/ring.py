"""Ring: full backpropagation through time, with the timesteps of each row on several processes.

Part d of D runs timesteps [d n / D, (d + 1) n / D) of a row of n timesteps. States are sent to the
next part, and their gradients to the previous part. All parameters are on every process, and their
gradients are summed. M groups of rows follow each other, so the speedup is M D / (M + D - 1). Each
process has 1 / D of the activations. (LASP, Sun et al. 2024, arXiv 2404.02882, splits time for
linear attention, whose states need no order. The ring supports any recurrent cell of torch, but
parts are idle at the beginning and end.)
Place in the flow: above ``stack``. Reads: batches. Makes: gradients of all parameters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from seqdata import SequenceBatch
from seqdata_models.parallel.engine import Engine, run_pipeline, sum_gradients
from seqdata_models.parallel.mesh import Mesh
from seqdata_models.parallel.slices import BatchPart, find_whole_batch, split_rows, split_time
from seqdata_models.parallel.stack import State, map_state


class Ring(Engine):
    """Engine that runs the timesteps of each row on several processes.

    Every process has all weights. Gradients flow from the last timestep of a row to its first. With
    lanes, the first timestep continues from the state after the previous batch.

    Batches contain whole rows, and each process cuts out its part. A Loader with
    ``World(mesh.replica, mesh.data, mesh.position, mesh.size)`` reads only this part.

    Args:
        module: Module that names its parts (``SupportsStages``).
        mesh: Mesh of processes; each row has ``mesh.size`` parts.
        lane_groups: Number of groups of rows that follow each other.
        seed: Seed of dropout masks.
        split_backward: Whether a part sends the gradient of its first state before it computes
            the gradients of its weights, as ``Wavefront`` does.

    Raises:
        ConfigError: If the module cannot be split, or ``lane_groups`` is not a positive integer.

    Examples:
        ring = Ring(model, Mesh(2), lane_groups=4)
        loss = ring.update([batch])
        optimizer.step()
    """

    def __init__(
        self,
        module: nn.Module,
        mesh: Mesh,
        lane_groups: int = 4,
        *,
        seed: int = 0,
        split_backward: bool = False,
    ) -> None:
        super().__init__(module, mesh, lane_groups, seed, split_backward=split_backward)
        self._graphs: deque[tuple[int, Tensor | None, Tensor, Tensor]] = deque()
        self._waiting: deque[Callable[[], None]] = deque()

    def owner_of(self, parameter: nn.Parameter) -> int:
        """Return 0; every process has and updates all parameters."""
        del parameter
        return 0

    def synchronize(self) -> None:
        """Send nothing; all processes have the same weights and lane states."""
        self._is_stale = False

    def _run(self, batches: Sequence[SequenceBatch], scale: float) -> Tensor:
        self._total = torch.zeros((), device=self.stack.weight.device, dtype=torch.float64)
        for number, batch in enumerate(batches):
            self._run_batch(batch, scale, number)
        return self._total

    def _run_batch(self, batch: SequenceBatch, scale: float, number: int) -> None:
        size, position = self.mesh.size, self.mesh.position
        self._whole_batch = find_whole_batch(batch)
        self._ends: list[State] = []
        self._scale, self._number = scale * batch.loss_scale, number
        self._graphs.clear()
        self._waiting.clear()
        groups = split_rows(batch, self.lane_groups)
        add_weights = None if self.weights is None else self._add_weights
        run_pipeline(groups, position, size, self._forward, self._backward, add_weights)
        if self.stack.lanes is not None and batch.lanes is not None:
            ends = map_state(lambda *leaves: torch.cat(leaves, dim=1), *self._ends)
            flat = self.mesh.broadcast(flatten_state(ends).detach(), size - 1)
            self.stack.lanes.put(self._whole_batch, self._unflatten(flat, len(batch)))

    def _forward(self, group: BatchPart) -> None:
        first, stop = group.rows
        self.mesh.at(f"forward of batch {self._number}, rows {first} to {stop - 1}")
        part = split_time(group, self.mesh.position, self.mesh.size)
        received = None
        if self.mesh.position == 0:
            state = self.stack.take(self._whole_batch, self.stack.lanes, group.rows)
        else:
            flat = flatten_state(self.stack.make_zeros(stop - first))
            received = self.mesh.receive(flat, self.mesh.position - 1, "states").requires_grad_()
            state = self._restart(self._unflatten(received, stop - first), part)
        out, layers = self.stack.run(
            self.stack.steps, part, self.stack.inputs(part.batch),
            lambda layer: map_state(lambda leaf: leaf[layer : layer + 1], state),
        )  # fmt: skip
        nll = self.stack.loss(out, part.batch)
        ends = map_state(
            lambda *leaves: torch.cat(leaves).to(self.stack.weight.dtype),  # autocast has another
            *(layers[n] for n in sorted(layers)),
        )
        sent = flatten_state(ends)
        if self.mesh.position < self.mesh.size - 1:
            self.mesh.send(sent, self.mesh.position + 1, "states")
        self._total += nll.detach()
        self._graphs.append((first, received, nll * self._scale, sent))
        self._ends.append(map_state(Tensor.detach, ends))

    def _backward(self) -> None:
        first, received, loss, sent = self._graphs.popleft()
        self.mesh.at(f"backward of batch {self._number}, rows from {first}")
        roots: list[tuple[Tensor, Tensor | None]] = [(loss, None)]
        if self.mesh.position < self.mesh.size - 1:
            gradient = torch.empty_like(sent)
            roots.append((sent, self.mesh.receive(gradient, self.mesh.position + 1, "gradients")))
        # The states of idle rows do not require gradients.
        live = [root for root in roots if root[0].requires_grad]
        if live:
            torch.autograd.backward([value for value, _ in live], [seed for _, seed in live])
        if received is not None:
            left = torch.zeros_like(received) if received.grad is None else received.grad
            self.mesh.send(left, self.mesh.position - 1, "gradients")
        if self.weights is not None:
            self._waiting.append(self.weights.take())

    def _add_weights(self) -> None:
        self._waiting.popleft()()

    def _unflatten(self, flat: Tensor, rows: int) -> State:
        """Return the states of all layers from the result of ``flatten_state``."""
        form = self.stack.make_zeros(rows)
        leaves = form if isinstance(form, tuple) else (form,)
        parts = torch.split(flat, [leaf.numel() for leaf in leaves])
        views = tuple(p.view_as(leaf) for p, leaf in zip(parts, leaves, strict=True))
        return views if isinstance(form, tuple) else views[0]

    def _restart(self, state: State, part: BatchPart) -> State:
        """Return states with zeros if a sequence begins exactly at the first timestep of a part."""
        if not bool(part.restarts.any()):
            return state
        return map_state(
            lambda leaf: torch.where(part.restarts.to(leaf.device)[None, :, None], 0.0, leaf), state
        )

    def _reduce_gradients(self) -> None:
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        if self.mesh.world > 1:
            sum_gradients(parameters, self.mesh, ["model", "data"])

    def _sum_over_stages(self, value: Tensor) -> Tensor:
        return value  # each process has all gradients

    def is_own(self, parameter: nn.Parameter) -> bool:
        """Return True; each process has the gradients of all parameters."""
        del parameter
        return True


def flatten_state(state: State) -> Tensor:
    """Return the tensors of a state as one flat tensor."""
    leaves = state if isinstance(state, tuple) else (state,)
    return torch.cat([leaf.reshape(-1) for leaf in leaves])
