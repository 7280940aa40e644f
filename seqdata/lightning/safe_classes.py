"""Classes that checkpoints may hold among hyperparameters, for ``torch.load(weights_only=True)``.

A DataModule or LightningModule that takes a policy, a collator or statistics and calls
``save_hyperparameters()`` puts the object into its checkpoints. Lightning reads them with
``weights_only``, which refuses unknown classes. The classes here are plain data: reading an object
runs no code that a checkpoint could choose.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from torch.serialization import add_safe_globals

from seqdata.builtin import COLLATORS, POLICIES

_OTHERS = (
    "seqdata.fitting.labels:Labels",
    "seqdata.fitting.mean_std:MeanStd",
    "seqdata.fitting.quantiles:Quantiles",
    "seqdata.fitting.statistics:Statistics",
    "seqdata.fitting.statistics:StatisticsInverse",
    "seqdata.fitting.statistics:StatisticsTransform",
    "seqdata.fitting.vocabulary:Vocabulary",
    "seqdata.planning.parts:Part",
    "seqdata.policies.tbptt:Jitter",
    "seqdata.random_streams:RandomStreams",
    "seqdata.sharing:World",
    "seqdata.storage.remote.options:Remote",
)
_EARLIER_NAMES = {  # paths in checkpoints from before these classes moved
    "seqdata.planning.jitter.Jitter": "seqdata.policies.tbptt:Jitter",
    "seqdata.policies.bucketed.Bucketed": "seqdata.policies.fixed:Bucketed",
    "seqdata.policies.sorted.Sorted": "seqdata.policies.fixed:Sorted",
}


def register_safe_classes() -> None:
    """Register policies, collators and statistics for ``torch.load(weights_only=True)``."""
    classes = [_load(path) for path in (*POLICIES.values(), *COLLATORS.values(), *_OTHERS)]
    renamed = [(_load(path), earlier) for earlier, path in _EARLIER_NAMES.items()]
    add_safe_globals([*classes, *renamed, np.empty])  # `np.empty` is an allocator of collators


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
