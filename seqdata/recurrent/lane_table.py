"""The states of the lanes of one loader, between two batches.

Rows are found by lane number, so that a table that was saved on four ranks goes on on two: each
takes the lanes it has. Place in the flow: ``LaneStates`` has one per loader. Reads: states of rows.
Makes: states of rows, and what a checkpoint keeps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from seqdata.errors import ConfigError, ResumeError
from seqdata.recurrent.continuity import Seen
from seqdata.recurrent.trees import Tree, chosen, leaves, mapped

NEVER = -1
"""In place of a batch's number, of a lane that holds no state yet."""

_OF_LANES = ("lanes", "ids", "offsets", "put")
_PARTS = ("epoch", "number", *_OF_LANES, "state")
_DIGEST = "digest"


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """What is known of lanes after a batch.

    Attributes:
        seen: Where each lane goes on; its lanes are the rows of ``state``.
        put: Number of the batch whose state each row holds, by row; ``NEVER``: of none.
        state: Detached, rows along ``dim``.
        dim: Where rows lie.
    """

    seen: Seen
    put: tuple[int, ...]
    state: Tree
    dim: int

    def rows(self, lanes: tuple[int, ...], device: torch.device) -> tuple[Tree, tuple[int, ...]]:
        """Return the states of lanes on a device, and which batch each is of (``put``)."""
        state, put = self.state, self.put
        if lanes != self.seen.lanes:
            place = {lane: row for row, lane in enumerate(self.seen.lanes)}
            found = [place.get(lane, -1) for lane in lanes]
            put = tuple(NEVER if row < 0 else self.put[row] for row in found)
            state = chosen(state, torch.tensor(found).clamp(min=0), self.dim)
        moved = mapped(lambda leaf: widened(leaf.to(device, non_blocking=True)), state)
        return moved, put

    def as_dict(self) -> dict[str, Any]:
        """Return the lanes as ints and tensors on the CPU, with a digest of them.

        Lanes without a state are saved, too: where they go on is known.
        """
        seen = self.seen
        return _sealed(
            {
                "epoch": seen.epoch,
                "number": seen.number,
                "lanes": torch.tensor(seen.lanes, dtype=torch.int64),
                "ids": seen.ids,
                "offsets": seen.offsets,
                "put": torch.tensor(self.put, dtype=torch.int64),
                "state": mapped(lambda leaf: leaf.cpu(), self.state),
            }
        )

    @classmethod
    def of_dict(cls, saved: Mapping[str, Any], dim: int, where_: str) -> Self:
        """Read a table back.

        Raises:
            ResumeError: If it is damaged.
        """
        if not isinstance(saved, Mapping) or not {*_PARTS, _DIGEST} <= saved.keys():
            raise ResumeError(
                f"lanes: the saved table {where_!r} is {saved!r:.60}, must have "
                f"{', '.join(_PARTS)}; it is damaged"
            )
        if _digest_of(saved) != saved[_DIGEST]:
            raise ResumeError(
                f"lanes: the saved table {where_!r} does not have the digest "
                f"{saved[_DIGEST]!r:.60} that it was saved with; it is damaged or was changed. "
                "Resume from another checkpoint"
            )
        lanes = tuple(saved["lanes"].tolist())
        if any(
            leaf.ndim <= dim or leaf.shape[dim] != len(lanes) for leaf in leaves(saved["state"])
        ):
            shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaves(saved["state"]))
            raise ResumeError(
                f"lanes: the saved table {where_!r} has states of shape {shapes}, must have its "
                f"{len(lanes)} lanes in dimension {dim}; resume with the `dim` that it was saved "
                "with"
            )
        seen = Seen(saved["epoch"], saved["number"], lanes, saved["ids"], saved["offsets"])
        return cls(seen, tuple(saved["put"].tolist()), saved["state"], dim)


def joined(saved: Sequence[Mapping[str, Any]], dim: int) -> dict[str, Any]:
    """Give one saved table of the lanes of all ranks.

    Args:
        saved: A table of each rank. A rank without lanes has rows of another rank's lane, as
            filler: of a lane that several have, the row counts that was put back last.
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
    whole = {name: torch.cat([one[name] for one in saved]) for name in _OF_LANES}
    put, best = whole["put"].tolist(), dict[int, int]()
    for row, lane in enumerate(whole["lanes"].tolist()):
        if lane not in best or put[row] > put[best[lane]]:
            best[lane] = row
    keep = torch.tensor(list(best.values()), dtype=torch.int64)
    states = [one["state"] for one in saved]
    state = mapped(lambda *leaf: torch.cat(leaf, dim=dim), states[0], *states[1:])
    return _sealed(
        {
            "epoch": saved[0]["epoch"],
            "number": saved[0]["number"],
            **{name: one[keep] for name, one in whole.items()},
            "state": chosen(state, keep, dim),
        }
    )


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


def _sealed(saved: dict[str, Any]) -> dict[str, Any]:
    return {**saved, _DIGEST: _digest_of(saved)}


def _digest_of(saved: Mapping[str, Any]) -> str:
    """Return a digest of all parts of a saved table, whatever they are."""
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Tensor) and value.layout == torch.strided:
            digest.update(f"{value.dtype} {tuple(value.shape)} ".encode())
            whole = value.detach().cpu().contiguous().reshape(-1)
            digest.update(whole.view(torch.uint8).numpy().tobytes())
        elif isinstance(value, Mapping):
            digest.update(f"{len(value)} names ".encode())
            for name, part in value.items():
                digest.update(f"{name!r}: ".encode())
                add(part)
        elif isinstance(value, tuple | list):
            digest.update(f"{type(value).__name__} of {len(value)} ".encode())
            for part in value:
                add(part)
        else:
            digest.update(f"{value!r} ".encode())

    for name in _PARTS:
        add(saved[name])
    return digest.hexdigest()[:32]
