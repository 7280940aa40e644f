"""Classes that checkpoints may hold among hyperparameters, for ``torch.load(weights_only=True)``.

A DataModule or LightningModule that takes a policy, a collator or statistics and calls
``save_hyperparameters()`` puts the object into its checkpoints. Lightning reads them with
``weights_only``, which refuses classes that it does not know. These are plain data: reading one
calls no code that a checkpoint could choose.
"""

from __future__ import annotations

import importlib

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
    "seqdata.planning.jitter:Jitter",
    "seqdata.planning.parts:Part",
    "seqdata.random_streams:RandomStreams",
    "seqdata.sharing:World",
    "seqdata.storage.remote.options:Remote",
)


def register_safe_classes() -> None:
    """Register policies, collators and the like for ``torch.load(weights_only=True)``."""
    paths = (*POLICIES.values(), *COLLATORS.values(), *_OTHERS)
    classes = [
        getattr(importlib.import_module(module), name)
        for module, _, name in (path.partition(":") for path in paths)
    ]
    add_safe_globals([*classes, np.empty])  # the allocator of a collator
