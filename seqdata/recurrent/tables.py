"""The states of the lanes of one loader, between two batches.

Rows are found by lane number, so that a table that was saved on four ranks goes on on two: each
takes the lanes it has. Place in the flow: ``LaneStates`` has one per loader. Reads: states of rows.
Makes: states of rows, and what a checkpoint keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from seqdata.errors import ConfigError, ResumeError
from seqdata.recurrent.guarding import Seen
from seqdata.recurrent.trees import Tree, chosen, leaves, mapped

_PARTS = ("epoch", "number", "lanes", "ids", "offsets", "state")


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """What is known of lanes after a batch.

    Attributes:
        seen: Where each lane goes on; its lanes are the rows of ``state``.
        known: Which rows hold a state that was put there, by row.
        state: Detached, rows along ``dim``.
        dim: Where rows lie.
    """

    seen: Seen
    known: tuple[bool, ...]
    state: Tree
    dim: int

    def rows(self, lanes: tuple[int, ...], device: torch.device) -> tuple[Tree, tuple[bool, ...]]:
        """Give the states of lanes on a device, and which of them are known; others are zeros."""
        state, known = self.state, self.known
        if lanes != self.seen.lanes:
            place = {lane: row for row, lane in enumerate(self.seen.lanes)}
            found = [place.get(lane, -1) for lane in lanes]
            known = tuple(row >= 0 and self.known[row] for row in found)
            state = chosen(state, torch.tensor(found).clamp(min=0), self.dim)
        moved = mapped(lambda leaf: widened(leaf.to(device, non_blocking=True)), state)
        return moved, known

    def as_dict(self) -> dict[str, Any]:
        """Give the known lanes as ints and tensors on the CPU."""
        keep = torch.tensor(self.known, dtype=torch.bool).nonzero().flatten()
        seen = self.seen
        return {
            "epoch": seen.epoch,
            "number": seen.number,
            "lanes": torch.tensor(seen.lanes, dtype=torch.int64)[keep],
            "ids": seen.ids[keep],
            "offsets": seen.offsets[keep],
            "state": mapped(lambda leaf: leaf.cpu(), chosen(self.state, keep, self.dim)),
        }

    @classmethod
    def of_dict(cls, saved: Mapping[str, Any], dim: int, where_: str) -> Self:
        """Read a table back.

        Raises:
            ResumeError: If it is damaged.
        """
        if not isinstance(saved, Mapping) or not set(_PARTS) <= saved.keys():
            raise ResumeError(
                f"lanes: the saved table {where_!r} is {saved!r:.60}, must have "
                f"{', '.join(_PARTS)}; it is damaged"
            )
        lanes = tuple(saved["lanes"].tolist())
        seen = Seen(saved["epoch"], saved["number"], lanes, saved["ids"], saved["offsets"])
        return cls(seen, (True,) * len(lanes), saved["state"], dim)


def joined(saved: Sequence[Mapping[str, Any]], dim: int) -> dict[str, Any]:
    """Give one saved table of the lanes of all ranks.

    Args:
        saved: A table of each rank; of a lane that several have, the first counts.
        dim: Where rows lie.

    Raises:
        ResumeError: If ranks stand at different batches.
    """
    places = {(one["epoch"], one["number"]) for one in saved}
    if len(places) > 1:
        raise ResumeError(
            f"lanes: ranks have put back batches {sorted(places)} (epoch, number) last, must be "
            "the same; save after the same step everywhere"
        )
    parts = [one for one in saved if len(one["lanes"])] or list(saved[:1])
    lanes = torch.cat([one["lanes"] for one in parts])
    first = [lanes.tolist().index(lane) for lane in dict.fromkeys(lanes.tolist())]
    keep = torch.tensor(first, dtype=torch.int64)
    states = [one["state"] for one in parts]
    state = mapped(lambda *leaf: torch.cat(leaf, dim=dim), states[0], *states[1:])
    return {
        "epoch": parts[0]["epoch"],
        "number": parts[0]["number"],
        "lanes": lanes[keep],
        "ids": torch.cat([one["ids"] for one in parts])[keep],
        "offsets": torch.cat([one["offsets"] for one in parts])[keep],
        "state": chosen(state, keep, dim),
    }


def kept(state: Tree, rows: int, dim: int) -> Tree:
    """Give a state as it is kept: detached, holding no more memory than its own.

    Under autocast it is float32, so that no step narrows it; a module that is itself of bfloat16
    keeps that.

    Raises:
        ConfigError: If it has other rows.
    """
    for leaf in leaves(state):
        if leaf.ndim <= dim or leaf.shape[dim] != rows:
            raise ConfigError(
                f"lanes: a state of shape {tuple(leaf.shape)} is put back, must have the {rows} "
                f"rows of the batch in dimension {dim}; say with `dim` where its rows lie"
            )
    return mapped(_kept, state)


def widened(leaf: Tensor) -> Tensor:
    """Give a tensor in float32 where autocast works on its device."""
    narrow = leaf.dtype in (torch.float16, torch.bfloat16)
    return leaf.float() if narrow and torch.is_autocast_enabled(leaf.device.type) else leaf


def _kept(leaf: Tensor) -> Tensor:
    leaf = widened(leaf.detach())
    whole = leaf.untyped_storage().nbytes() <= leaf.nbytes
    return leaf if whole else leaf.clone()
