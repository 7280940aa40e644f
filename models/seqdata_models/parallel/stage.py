"""Stage of a stack: its steps, and the states of its layers over the chunks of an update.

Place in the flow: the wavefront, with the engine of this package or of torch, runs the items in
order through each stage. Reads: batches. Makes: outputs, and states, which stay in their stage.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from seqdata import LaneStates, SequenceBatch
from seqdata_models.parallel.slices import BatchPart, padded_length, split_rows
from seqdata_models.parallel.stack import Stack, State, Step, map_state


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """Group of rows of a chunk.

    Attributes:
        chunk: Index of the chunk in its update.
        batch: The chunk.
        part: Rows of the group.
        is_first: Whether it is the first group of the chunk.
        is_last: Whether it is the last group of the chunk.
    """

    chunk: int
    batch: SequenceBatch
    part: BatchPart
    is_first: bool
    is_last: bool

    def describe(self) -> str:
        """Return the name of the item, for errors."""
        first, stop = self.part.rows
        return f"chunk {self.chunk}, rows {first} to {stop - 1}"


def iter_items(batches: Sequence[SequenceBatch], lane_groups: int) -> Iterator[Item]:
    """Yield the items of an update in order, chunk by chunk.

    Args:
        batches: Chunks of the update.
        lane_groups: Number of groups of rows of a chunk.
    """
    for chunk, batch in enumerate(batches):
        parts = split_rows(batch, lane_groups)
        for number, part in enumerate(parts):
            yield Item(chunk, batch, part, number == 0, number == len(parts) - 1)


class Stage:
    """Consecutive steps of a stack, and the states of their layers.

    Args:
        stack: The whole stack.
        steps: Steps of this stage.
        lanes: States of the lanes from chunk to chunk; None: each batch begins with zeros.

    Attributes:
        layers: Range [first, stop) of its recurrent layers.
        lanes: States of the lanes.
    """

    def __init__(self, stack: Stack, steps: Sequence[Step], lanes: LaneStates | None) -> None:
        self._stack, self._steps, self.lanes = stack, steps, lanes
        layers = [step.layer for step in steps if step.layer is not None]
        self.layers = layers[0], layers[-1] + 1
        self._ends: list[State] = []

    def forward(self, item: Item, x: Tensor) -> Tensor:
        """Run an item; items must run in order.

        Args:
            item: Item whose rows continue from the states of the previous chunk.
            x: Input of the first step, (r, T, ...).

        Returns:
            Output of the last step, (r, T, ...).
        """
        if item.is_first:
            self._ends = []
        initial = self._stack.take(item.batch, self.lanes, item.part.rows)
        out, ends = self._stack.run(
            self._steps, item.part, x,
            lambda layer: map_state(lambda leaf: leaf[layer : layer + 1], initial),
        )  # fmt: skip
        own = map_state(lambda *leaves: torch.cat(leaves), *(ends[n] for n in range(*self.layers)))
        self._ends.append(map_state(self.replace_layers, initial, own))
        if item.is_last and self.lanes is not None and item.batch.lanes is not None:
            joined = map_state(lambda *leaves: torch.cat(leaves, dim=1), *self._ends)
            self.lanes.put(item.batch, joined)
        return out

    def make_input(self, part: BatchPart, width: int | None = None) -> Tensor:
        """Return an uninitialized tensor for the output of the previous stage, (r, T, size).

        Args:
            part: Part of r rows.
            width: Number of timesteps T; None: that of the part.
        """
        layer: Any = self._steps[0].module
        shape = len(part.batch), width or padded_length(part.batch), layer.input_size
        weight: Tensor = layer.weight_ih_l0
        return torch.empty(shape, dtype=weight.dtype, device=weight.device)

    def replace_layers(self, old: Tensor, new: Tensor) -> Tensor:
        """Return a state of all layers with new states of the layers of this stage.

        Args:
            old: State of all layers, (layers, r, size).
            new: State of the layers of this stage, (own layers, r, size).

        Returns:
            (layers, r, size), in the dtype of ``old``.
        """
        first, stop = self.layers
        return torch.cat([old[:first], new.detach().to(old.dtype), old[stop:]])


def copy_lanes(lanes: LaneStates | None) -> LaneStates | None:
    """Return a copy of lane states with separate tables, for another stage of the same process."""
    if lanes is None:
        return None
    copied = copy.copy(lanes)
    copied.load_state_dict(lanes.state_dict())
    return copied


def move_layers(target: Stage, source: Stage, table: str) -> None:
    """Copy the states of the layers of one stage into the lane states of another stage.

    Args:
        target: Stage whose lane states are changed.
        source: Stage whose layers are copied.
        table: Name of the table of lane states.
    """
    if source.lanes is None or target.lanes is None:
        return
    found: list[State] = []

    def note(state: State) -> State:
        found.append(state)
        return state

    source.lanes.replace_states(table, note)
    first, stop = source.layers
    for state in found:
        own = map_state(lambda leaf: leaf[first:stop], state)
        change = partial(_replace_state, source, own)
        target.lanes.replace_states(table, change)


def _replace_state(stage: Stage, own: State, state: State) -> State:
    return map_state(stage.replace_layers, state, own)
