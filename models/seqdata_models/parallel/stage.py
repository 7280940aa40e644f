"""One stage of a stack over the chunks of an update: its steps, and its layers' states.

Place in the flow: the wavefront, with our engine or torch's, runs item after item through each
stage. Reads: batches. Makes: outputs; states, which stay in their stage.
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
    """A group of rows of a chunk.

    Attributes:
        chunk: Number of the chunk in its update.
        batch: The chunk.
        part: The rows.
        is_first: Whether it is the chunk's first group.
        is_last: Whether it is the chunk's last group.
    """

    chunk: int
    batch: SequenceBatch
    part: BatchPart
    is_first: bool
    is_last: bool

    def describe(self) -> str:
        """Return its name for errors."""
        first, stop = self.part.rows
        return f"chunk {self.chunk}, rows {first} to {stop - 1}"


def iter_items(batches: Sequence[SequenceBatch], lane_groups: int) -> Iterator[Item]:
    """Yield the items of an update in order: all groups of a chunk, then those of the next."""
    for chunk, batch in enumerate(batches):
        parts = split_rows(batch, lane_groups)
        for number, part in enumerate(parts):
            yield Item(chunk, batch, part, number == 0, number == len(parts) - 1)


class Stage:
    """Consecutive steps of a stack, and the states of their layers.

    Args:
        stack: The whole.
        steps: Steps of this stage.
        lanes: Keeper of the states from chunk to chunk; None: each batch begins with zeros.

    Attributes:
        layers: Numbers of its recurrent layers: [first, stop).
        lanes: The argument.
    """

    def __init__(self, stack: Stack, steps: Sequence[Step], lanes: LaneStates | None) -> None:
        self._stack, self._steps, self.lanes = stack, steps, lanes
        layers = [step.layer for step in steps if step.layer is not None]
        self.layers = layers[0], layers[-1] + 1
        self._ends: list[State] = []

    def forward(self, item: Item, x: Tensor) -> Tensor:
        """Run an item, after all that come before it.

        Args:
            item: Item whose rows continue from the states of the chunk before.
            x: (r, T, ...).

        Returns:
            (r, T, ...).
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
        """Return an empty tensor for what the stage before sends, (r, T, size).

        Args:
            part: Batch of r rows.
            width: T; None: that of the part.
        """
        layer: Any = self._steps[0].module
        shape = len(part.batch), width or padded_length(part.batch), layer.input_size
        weight: Tensor = layer.weight_ih_l0
        return torch.empty(shape, dtype=weight.dtype, device=weight.device)

    def replace_layers(self, old: Tensor, new: Tensor) -> Tensor:
        """Return a state of all layers, those of this stage from another one.

        Args:
            old: (layers, r, size).
            new: (own layers, r, size).
        """
        first, stop = self.layers
        return torch.cat([old[:first], new.detach().to(old.dtype), old[stop:]])


def copy_lanes(lanes: LaneStates | None) -> LaneStates | None:
    """Return lane states with tables of their own, for another stage of the same process."""
    if lanes is None:
        return None
    copied = copy.copy(lanes)
    copied.load_state_dict(lanes.state_dict())
    return copied


def move_layers(target: Stage, source: Stage, table: str) -> None:
    """Replace a stage's layers in the lane states of another one by what it has left there."""
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
