"""Fitted statistics in a Trainer's checkpoints: saved with the model, used without its data.

Statistics of the training transform are saved in the DataModule's state. An evaluation or
prediction that starts from that checkpoint and has no transform of its own uses them.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

from seqdata.errors import ConfigError, ResumeError, SeqDataWarning
from seqdata.fitting.statistics import Statistics
from seqdata.runs.data_sources import DataSources
from seqdata.runs.options import DataKind, DataOptions
from seqdata.storage.views import View

KEY = "statistics"


def find_statistics(options: DataOptions, kind: DataKind) -> Statistics | None:
    """Return the statistics of the transform of a kind of data; None if there are none.

    They are the attribute ``statistics`` of the transform, which ``Statistics.transform()`` has and
    a function around it may have.
    """
    transform = _find_transform(options, kind)
    found = getattr(transform, "statistics", None)
    return found if isinstance(found, Statistics) else None


def make_statistics_state(options: DataOptions) -> dict[str, Any]:
    """Return the entry of the DataModule's state for statistics; empty if there are none."""
    statistics = find_statistics(options, "train")
    return {} if statistics is None else {KEY: statistics.state_dict()}


def restore_statistics(sources: DataSources, state: Mapping[str, Any]) -> DataOptions:
    """Return the options of the data, with the transform of saved statistics if it has none.

    A warning names statistics of the data that differ from the saved ones.

    Args:
        sources: Sources of the data, whose engines are made again with the transform.
        state: The saved state.

    Raises:
        ResumeError: If the saved statistics are damaged.
    """
    options, kinds = sources.options, sources.prepared_kinds
    if KEY not in state:
        return options
    try:
        saved = Statistics.from_state_dict(state[KEY])
    except (ConfigError, AttributeError) as error:
        raise ResumeError(f"resume: the checkpoint's statistics cannot be read. {error}") from error
    for kind in kinds:
        own = find_statistics(options, kind)
        if own is not None and own.digest != saved.digest:
            warnings.warn(
                f"datamodule: `transform` of {kind!r} has the statistics {own.digest}, but the "
                f"model was trained with {saved.digest}. Leave `transform` out to use those of the "
                "checkpoint.",
                SeqDataWarning,
                stacklevel=2,
            )
    if any(_find_transform(options, kind) is not None for kind in kinds):
        return options
    options = dataclasses.replace(options, transform=saved.transform())
    sources.change_options(options)
    return options


def _find_transform(options: DataOptions, kind: DataKind) -> Any:
    if kind != "train" and options.eval_transform is not None:
        return options.eval_transform
    if options.transform is not None:
        return options.transform
    for location in options.get_locations(kind):
        parts = location.values() if isinstance(location, Mapping) else [location]
        for part in parts:  # the parts of a mixture carry the same transform
            carried = part.measured_transform if isinstance(part, View) else None
            if carried is not None:
                return carried.transform
    return None
