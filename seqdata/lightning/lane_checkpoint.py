"""Saves and restores the training states of lanes in checkpoints, for all ranks, by lane.

A resumed run is exact only with the hidden states of the saved run. The training table of each
``LaneStates`` that is an attribute of the LightningModule, or of a submodule, is gathered over the
ranks into the DataModule's state.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Trainer
from torch import nn

from seqdata.errors import PeerFailedError, ResumeError, SeqDataWarning, must_be
from seqdata.lightning.ranks.coordinator import RankCoordinator
from seqdata.recurrent.lane_states import LaneStates
from seqdata.resume_state import RunPosition

KEY = "lanes"
_TABLE = "train"


def find_lane_states(module: nn.Module) -> dict[str, LaneStates]:
    """Return every LaneStates of a module and its submodules, by the path of the attribute."""
    lane_states: dict[str, LaneStates] = {}
    for path, submodule in module.named_modules():
        for name, value in vars(submodule).items():
            if isinstance(value, LaneStates) and not any(
                value is known for known in lane_states.values()
            ):
                lane_states[f"{path}.{name}" if path else name] = value
    return lane_states


def make_lane_state(
    trainer: Trainer, run_position: RunPosition, coordinator: RankCoordinator
) -> dict[str, Any]:
    """Return the part of a state with the lanes; empty if there are none.

    All ranks must save together; otherwise the reason is saved, with a warning.

    Args:
        trainer: The Trainer of the module.
        run_position: Position of the batch that is trained next.
        coordinator: Gathers the tables of all ranks.
    """
    states = find_lane_states(trainer.lightning_module)
    if not states or not run_position.position:  # every lane restarts with an epoch
        return {}
    own_tables = {
        path: table.saved(_TABLE, run_position.epoch, run_position.position)
        for path, table in states.items()
    }
    try:
        tables_by_rank = coordinator.all_gather(
            own_tables, trainer.world_size, (run_position.epoch, run_position.position)
        )
    except PeerFailedError as cause:
        return _make_missing_state(run_position, str(cause))
    tables = {path: [rank[path] for rank in tables_by_rank] for path in states}
    if any(table is None for ranks in tables.values() for table in ranks):
        reason = "the last `put` was for another batch; call `put` once in each training step"
        return _make_missing_state(run_position, reason)
    nonempty = {path: [table for table in ranks if table] for path, ranks in tables.items()}
    return {KEY: {path: states[path].joined(ranks) for path, ranks in nonempty.items() if ranks}}


def restore_lane_states(
    trainer: Trainer, run_position: RunPosition, state: Mapping[str, Any]
) -> None:
    """Restore each LaneStates from a state.

    Args:
        trainer: The Trainer of the module.
        run_position: Position at which the run continues.
        state: The DataModule's state.

    Raises:
        ResumeError: If the lanes are damaged, or of another batch.
    """
    if not run_position.position or KEY not in state:
        return
    lane_states, saved_tables = find_lane_states(trainer.lightning_module), state[KEY]
    if isinstance(saved_tables, str):
        for states in lane_states.values():
            states.forgive(_TABLE, run_position.epoch, run_position.position)
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
    for path in lane_states.keys() & saved_tables.keys():
        lane_states[path].restore(
            _TABLE, saved_tables[path], run_position.epoch, run_position.position
        )


def _make_missing_state(run_position: RunPosition, reason: str) -> dict[str, Any]:
    """Return the part of a state that has the reason why it has no lanes."""
    _warn(
        f"datamodule: the checkpoint at batch {run_position.position} of epoch "
        f"{run_position.epoch} has no lane states: {reason}. A run that resumes from it restarts "
        "its sequences in the middle of a lane. Resume from another one"
    )
    return {KEY: reason}


def _warn(message: str) -> None:
    warnings.warn(message, SeqDataWarning, stacklevel=4)
