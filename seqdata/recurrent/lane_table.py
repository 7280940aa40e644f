"""The states of the lanes of one loader, between two batches.

Rows are found by lane number, so that a table that was saved on four ranks can be resumed on two:
each takes its lanes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from seqdata.errors import ConfigError, ResumeError
from seqdata.recurrent.continuity import LaneProgress
from seqdata.recurrent.trees import Tree, iter_leaves, map_leaves, select_rows

NO_BATCH = -1
"""Index of the batch of a lane without a state."""

_LANE_KEYS = ("lanes", "ids", "offsets", "put")
_KEYS = ("epoch", "number", *_LANE_KEYS, "state")
_DIGEST_KEY = "digest"


@dataclass(frozen=True, slots=True, eq=False)
class LaneTable:
    """The states of lanes after a batch.

    Attributes:
        progress: The progress of each lane; its lanes are the rows of ``state``.
        batch_numbers: Index of the batch of each row's state; ``NO_BATCH`` without a state.
        state: Detached state, rows along ``dim``.
        dim: The dimension of rows.
        loader: Name of the loader whose batches were put back.
    """

    progress: LaneProgress
    batch_numbers: tuple[int, ...]
    state: Tree
    dim: int
    loader: str = ""

    def select_rows(
        self, lanes: tuple[int, ...], device: torch.device
    ) -> tuple[Tree, tuple[int, ...]]:
        """Return the states of lanes on a device, and the index of the batch of each."""
        state, batch_numbers = self.state, self.batch_numbers
        if lanes != self.progress.lanes:
            row_by_lane = {lane: row for row, lane in enumerate(self.progress.lanes)}
            row_numbers = [row_by_lane.get(lane, -1) for lane in lanes]
            batch_numbers = tuple(
                NO_BATCH if row < 0 else self.batch_numbers[row] for row in row_numbers
            )
            rows = torch.tensor(row_numbers, dtype=torch.int64, device="cpu").clamp(min=0)
            state = select_rows(state, rows, self.dim)
        return map_leaves(lambda leaf: _move_leaf(leaf, device), state), batch_numbers

    def as_dict(self) -> dict[str, Any]:
        """Return the lanes as ints and tensors on the CPU, with a digest of them.

        Lanes without a state are saved as well, for their progress.
        """
        progress = self.progress
        return _with_digest(
            {
                "epoch": progress.epoch,
                "number": progress.number,
                "lanes": torch.tensor(progress.lanes, dtype=torch.int64, device="cpu"),
                "ids": progress.ids,
                "offsets": progress.offsets,
                "put": torch.tensor(self.batch_numbers, dtype=torch.int64, device="cpu"),
                "state": map_leaves(lambda leaf: leaf.cpu(), self.state),
            }
        )

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any], dim: int, name: str) -> Self:
        """Return a saved table; until something is put back its loader is that of its name.

        Raises:
            ResumeError: If it is damaged, was loaded without its values, or has another ``dim``.
        """
        if not isinstance(saved, Mapping) or not {*_KEYS, _DIGEST_KEY} <= saved.keys():
            raise ResumeError(
                f"lanes: the saved table {name!r} must have {', '.join((*_KEYS, _DIGEST_KEY))}, "
                f"but is {saved!r:.60}. Load another checkpoint."
            )
        if _compute_digest(saved) != saved[_DIGEST_KEY]:
            raise ResumeError(
                f"lanes: the saved table {name!r} does not have the digest "
                f"{saved[_DIGEST_KEY]!r:.60} that it was saved with; it is damaged or was changed. "
                "Resume from another checkpoint"
            )
        lanes = tuple(saved["lanes"].tolist())
        if any(
            leaf.ndim <= dim or leaf.shape[dim] != len(lanes)
            for leaf in iter_leaves(saved["state"])
        ):
            shapes = ", ".join(str(tuple(leaf.shape)) for leaf in iter_leaves(saved["state"]))
            raise ResumeError(
                f"lanes: the saved table {name!r} must have its {len(lanes)} lanes in dimension "
                f"{dim}, but has states of shape {shapes}. Resume with the `dim` that it was "
                "saved with."
            )
        progress = LaneProgress(
            saved["epoch"], saved["number"], lanes, saved["ids"], saved["offsets"]
        )
        return cls(progress, tuple(saved["put"].tolist()), saved["state"], dim, loader=name)


def merge_tables(saved: Sequence[Mapping[str, Any]], dim: int) -> dict[str, Any]:
    """Return one saved table of the lanes of all ranks.

    Args:
        saved: A table of each rank. A rank without lanes has a padding row of another rank's lane:
            if several ranks have a lane, the row that was put back last counts.
        dim: The dimension of rows.

    Raises:
        ResumeError: If ranks stand at different batches.
    """
    positions = {(saved_table["epoch"], saved_table["number"]) for saved_table in saved}
    if len(positions) > 1:
        raise ResumeError(
            "lanes: the last batch whose states were stored must be the same on all ranks, but is "
            f"{sorted(positions)} (epoch, number). Save after the same step on every rank."
        )
    combined = {
        name: torch.cat([saved_table[name] for saved_table in saved]) for name in _LANE_KEYS
    }
    batch_numbers, best = combined["put"].tolist(), dict[int, int]()
    for row, lane in enumerate(combined["lanes"].tolist()):
        if lane not in best or batch_numbers[row] > batch_numbers[best[lane]]:
            best[lane] = row
    kept_rows = torch.tensor(list(best.values()), dtype=torch.int64, device="cpu")
    states = [saved_table["state"] for saved_table in saved]
    state = map_leaves(lambda *leaf: torch.cat(leaf, dim=dim), states[0], *states[1:])
    return _with_digest(
        {
            "epoch": saved[0]["epoch"],
            "number": saved[0]["number"],
            **{name: saved_table[kept_rows] for name, saved_table in combined.items()},
            "state": select_rows(state, kept_rows, dim),
        }
    )


def detach_state(state: Tree, rows: int, dim: int) -> Tree:
    """Return a state for the table: detached, without memory of other tensors.

    Under autocast it is float32, so that no step loses precision; the state of a bfloat16 module
    stays bfloat16.

    Raises:
        ConfigError: If its number of rows differs.
    """
    for leaf in iter_leaves(state):
        if leaf.ndim <= dim or leaf.shape[dim] != rows:
            raise ConfigError(
                f"lanes: a state must have the {rows} rows of the batch in dimension {dim}, but "
                f"has shape {tuple(leaf.shape)}. Pass the dimension of its rows as `dim`."
            )
    return map_leaves(_detach_leaf, state)


def upcast_for_autocast(leaf: Tensor) -> Tensor:
    """Return a tensor in float32 if autocast is active on its device."""
    is_half = leaf.dtype in (torch.float16, torch.bfloat16)
    return leaf.float() if is_half and torch.is_autocast_enabled(leaf.device.type) else leaf


def _move_leaf(leaf: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device, for autograd also if it was put back in inference mode."""
    moved = upcast_for_autocast(leaf.to(device, non_blocking=True))
    return moved.clone() if moved.is_inference() and torch.is_grad_enabled() else moved


def _detach_leaf(leaf: Tensor) -> Tensor:
    leaf = upcast_for_autocast(leaf.detach())
    owns_storage = leaf.untyped_storage().nbytes() <= leaf.nbytes
    return leaf if owns_storage else leaf.clone()


def _with_digest(saved: dict[str, Any]) -> dict[str, Any]:
    return {**saved, _DIGEST_KEY: _compute_digest(saved)}


def _compute_digest(saved: Mapping[str, Any]) -> str:
    """Return a digest of all entries of a saved table, of any type.

    Raises:
        ResumeError: If a tensor has no values.
    """
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Tensor) and value.is_meta:
            raise ResumeError(
                "lanes: the tensors of a saved table must have values, but one is on the device "
                "'meta'. Load the checkpoint with map_location='cpu'."
            )
        if isinstance(value, Tensor) and value.layout == torch.strided:
            digest.update(f"{value.dtype} {tuple(value.shape)} ".encode())
            flat = value.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().tobytes())
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

    for name in _KEYS:
        add(saved[name])
    return digest.hexdigest()[:32]
