"""Training states of lanes in checkpoints, gathered over all ranks, by lane.

A resumed run is exact only with the hidden states of the saved run. The training tables of each
``LaneStates`` that the LightningModule or a submodule has, as an attribute or in a list, tuple or
dict, are gathered over the ranks into the DataModule's state. The key of the table with the
loader's name is the path of the ``LaneStates``; the key of another table is ``path:table``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lightning.pytorch import Trainer

from seqdata.errors import PeerFailedError, ResumeError, must_be, warn
from seqdata.lightning.ranks.coordinator import RankCoordinator
from seqdata.recurrent.lane_states import LaneStates
from seqdata.resume_state import RunPosition

KEY = "lanes"
_LOADER = "train"  # name of the loader, and of its table


def make_lane_state(
    trainer: Trainer, run_position: RunPosition, coordinator: RankCoordinator
) -> dict[str, Any]:
    """Return the entry of the DataModule's state for lanes; empty if there are none.

    All ranks must save together; otherwise the reason is saved, with a warning.

    Args:
        trainer: The Trainer of the module.
        run_position: Position of the batch that is trained next.
        coordinator: Coordinator that gathers the tables of all ranks.
    """
    states = LaneStates.find_in(trainer.lightning_module)
    if not states or not run_position.position:  # every lane restarts with an epoch
        return {}
    own_tables = {
        _make_key(path, table): saved_table
        for path, lanes in states.items()
        for table, saved_table in _save_tables(lanes, run_position).items()
    }
    try:
        tables_by_rank = coordinator.all_gather(
            own_tables, trainer.world_size, (run_position.epoch, run_position.position)
        )
    except PeerFailedError as cause:
        return _make_missing_state(run_position, str(cause))
    keys = dict.fromkeys(key for rank in tables_by_rank for key in rank)
    tables = {key: [rank.get(key, {}) for rank in tables_by_rank] for key in keys}
    if any(table is None for ranks in tables.values() for table in ranks):
        reason = "the last `put` was for another batch; call `put` once in each training step"
        return _make_missing_state(run_position, reason)
    joined: dict[str, Any] = {}
    for key, ranks in tables.items():
        path, _ = _split_key(key, states)
        used = [table for table in ranks if table]
        if path is not None and used:
            joined[key] = states[path].joined(used)
    return {KEY: joined}


def restore_lane_states(
    trainer: Trainer, run_position: RunPosition, state: Mapping[str, Any]
) -> None:
    """Restore each LaneStates from a state.

    Args:
        trainer: The Trainer of the module.
        run_position: Position at which the run continues.
        state: The DataModule's state.

    Raises:
        ResumeError: If the lane states are damaged, or of another batch.
    """
    if not run_position.position or KEY not in state:
        return
    lane_states, saved_tables = LaneStates.find_in(trainer.lightning_module), state[KEY]
    if isinstance(saved_tables, str):
        for states in lane_states.values():
            states.forgive(_LOADER, run_position.epoch, run_position.position)
        _warn(
            f"resume: the checkpoint has no lane states: {saved_tables}. Sequences restart in "
            "the middle of a lane; resume from an earlier one to be exact"
        )
        return
    if not isinstance(saved_tables, Mapping):
        raise ResumeError(
            must_be(
                f"resume: `{KEY}` of the state",
                "tables by name",
                f"{saved_tables!r:.60}",
                "It is damaged",
            )
        )
    for key, saved_table in saved_tables.items():
        path, table = _split_key(str(key), lane_states)
        if path is not None:
            lane_states[path].restore(
                table, saved_table, run_position.epoch, run_position.position, loader=_LOADER
            )


def _save_tables(lanes: LaneStates, run_position: RunPosition) -> dict[str, dict[str, Any] | None]:
    """Return the training tables of this rank, by name; None for one of another batch.

    If one table is of this batch, the others are omitted: only the first batch of an epoch can
    take them.
    """
    epoch, number = run_position.epoch, run_position.position
    tables = {table: lanes.saved(table, epoch, number) for table in lanes.tables_of(_LOADER, epoch)}
    if not any(tables.values()):
        return tables
    return {table: saved_table for table, saved_table in tables.items() if saved_table is not None}


def _make_key(path: str, table: str) -> str:
    """Return the key of a table in the state."""
    return path if table == _LOADER else f"{path}:{table}"


def _split_key(key: str, paths: Iterable[str]) -> tuple[str | None, str]:
    """Return the path of a key, None if it is unknown, and the table."""
    for path in paths:
        if key == path:
            return path, _LOADER
        if key.startswith(f"{path}:"):
            return path, key.removeprefix(f"{path}:")
    return None, ""


def _make_missing_state(run_position: RunPosition, reason: str) -> dict[str, Any]:
    """Return the entry of a state with the reason why it has no lane states."""
    _warn(
        f"datamodule: the checkpoint at batch {run_position.position} of epoch "
        f"{run_position.epoch} has no lane states: {reason}. A run that resumes from it restarts "
        "its sequences in the middle of a lane. Resume from another one"
    )
    return {KEY: reason}


def _warn(message: str) -> None:
    warn(message)
