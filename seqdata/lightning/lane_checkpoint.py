"""The training states of lanes in a Trainer's checkpoints: of all ranks, by lane.

A resumed run is exact only with the hidden states it was saved with. Each ``LaneStates`` that is an
attribute of the LightningModule, or of a module in it, is found; its training table is gathered
over the ranks and put into the DataModule's state. Place in the flow: the DataModule saves and
loads through it. Reads: the Trainer's module. Makes: a part of a state.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Trainer
from torch import nn

from seqdata.errors import PeerFailedError, ResumeError, SeqDataWarning
from seqdata.lightning.ranks.coordinator import Together
from seqdata.recurrent.lane_states import LaneStates
from seqdata.runs.run_state import Place

KEY = "lanes"
_TABLE = "train"


def lane_states_of(module: nn.Module) -> dict[str, LaneStates]:
    """Give every LaneStates of a module and those in it, by the path of the attribute."""
    found: dict[str, LaneStates] = {}
    for path, one in module.named_modules():
        for name, value in vars(one).items():
            if isinstance(value, LaneStates) and not any(
                value is other for other in found.values()
            ):
                found[f"{path}.{name}" if path else name] = value
    return found


def saved(trainer: Trainer, place: Place, together: Together) -> dict[str, Any]:
    """Give the part of a state that holds lanes; empty where there are none.

    All ranks must save together; where they do not, the reason is saved, with a warning.

    Args:
        trainer: Whose module.
        place: Of the batch that is trained next.
        together: Brings the ranks together.
    """
    states = lane_states_of(trainer.lightning_module)
    if not states or not place.position:  # every lane begins anew with an epoch
        return {}
    mine = {path: one.saved(_TABLE, place.epoch, place.position) for path, one in states.items()}
    try:
        every = together.gathered(mine, trainer.world_size, (place.epoch, place.position))
    except PeerFailedError as cause:
        return _without(place, str(cause))
    tables = {path: [rank[path] for rank in every] for path in states}
    if any(one is None for ranks in tables.values() for one in ranks):
        why = "what was put back last is of another batch; call `put` once in each training step"
        return _without(place, why)
    used = {path: [one for one in ranks if one] for path, ranks in tables.items()}
    return {KEY: {path: states[path].joined(ranks) for path, ranks in used.items() if ranks}}


def restore(trainer: Trainer, place: Place, state: Mapping[str, Any]) -> None:
    """Hand each LaneStates the lanes that a state holds for it.

    Args:
        trainer: Whose module.
        place: Where the run goes on.
        state: The DataModule's.

    Raises:
        ResumeError: If the lanes are damaged, or of another batch.
    """
    if not place.position or KEY not in state:
        return
    found, kept = lane_states_of(trainer.lightning_module), state[KEY]
    if isinstance(kept, str):
        for one in found.values():
            one.forgive(_TABLE, place.epoch, place.position)
        _warn(
            f"resume: the checkpoint holds no lane states: {kept}. Sequences begin again in "
            "mid-lane; resume from an earlier one to be exact"
        )
        return
    if not isinstance(kept, Mapping):
        raise ResumeError(
            f"resume: `{KEY}` of the state is {kept!r:.60}, must be tables by name; it is damaged"
        )
    for path in found.keys() & kept.keys():
        found[path].restore(_TABLE, kept[path], place.epoch, place.position)


def _without(place: Place, why: str) -> dict[str, Any]:
    """Return the part of a state that says why it holds no lanes."""
    _warn(
        f"datamodule: the checkpoint at batch {place.position} of epoch {place.epoch} holds no "
        f"lane states: {why}; a run that goes on from it begins its sequences again in mid-lane, "
        "so go on from another one"
    )
    return {KEY: why}


def _warn(message: str) -> None:
    warnings.warn(message, SeqDataWarning, stacklevel=4)
