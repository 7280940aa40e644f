"""Sequences of any length for PyTorch Lightning: the epoch is a plan.

Names are imported from the modules that define them when they are first used, so that ``import
seqdata`` loads neither torch, lightning, pyarrow nor any plugin. The import warns if files of
another project of the same import name are in the folder of the package.
"""

from __future__ import annotations

import functools
import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seqdata.api import concat, folds, open_store, split, write_store
    from seqdata.batch import SequenceBatch, batch_size_fn, length_fn
    from seqdata.errors import (
        CacheError,
        ConfigError,
        CorruptSampleError,
        CorruptShardError,
        DataError,
        DecodeError,
        FingerprintMismatch,
        IncompleteDatasetError,
        IncompleteEpochError,
        LimitError,
        MissingShardError,
        PeerFailedError,
        PlanError,
        PluginError,
        Preempted,
        PreemptedError,
        RanksDifferError,
        RemoteReadError,
        ResumeError,
        SeqDataError,
        SeqDataWarning,
        StallError,
        UnknownNameError,
        UnsafeContentError,
        WorkerDiedError,
    )
    from seqdata.fitting.fit import fit
    from seqdata.fitting.labels import Labels
    from seqdata.fitting.mean_std import MeanStd
    from seqdata.fitting.quantiles import Quantiles
    from seqdata.fitting.scales import Log1p, Robust
    from seqdata.fitting.statistics import Statistics
    from seqdata.fitting.vocabulary import Vocabulary
    from seqdata.hookspecs import SEQDATA_API, hookimpl
    from seqdata.host import PluginHost
    from seqdata.index import SequenceIndex
    from seqdata.lightning.callbacks.consistency import RankConsistency
    from seqdata.lightning.callbacks.data_monitor import DataMonitor
    from seqdata.lightning.callbacks.feedback import Feedback
    from seqdata.lightning.callbacks.file_logger import RankFileLogger
    from seqdata.lightning.callbacks.loss_record import LossRecord
    from seqdata.lightning.callbacks.memory_monitor import RankMemoryMonitor
    from seqdata.lightning.callbacks.preemption import Preemption
    from seqdata.lightning.callbacks.rescale import RescaleLearningRate
    from seqdata.lightning.datamodule import SequenceDataModule
    from seqdata.lightning.metrics import ExactMean
    from seqdata.lightning.predictions.writer import PredictionWriter
    from seqdata.linked_axes import Axis
    from seqdata.loading.loader import Loader
    from seqdata.loading.measure_lengths import measure_lengths
    from seqdata.loading.transforms.declare import Ragged, columnar
    from seqdata.plan import Plan
    from seqdata.planning.parts import Part
    from seqdata.policies.curriculum import Curriculum
    from seqdata.policies.fixed import Bucketed, Fixed, Sorted
    from seqdata.policies.mix import Mix
    from seqdata.policies.packed import Packed
    from seqdata.policies.segments import Segments
    from seqdata.policies.tbptt import TBPTT, Jitter
    from seqdata.policies.token_budget import TokenBudget
    from seqdata.policies.weighted import Weighted, balanced
    from seqdata.policies.windows import Windows
    from seqdata.policies.zip import Zip
    from seqdata.random_streams import RandomStreams
    from seqdata.recurrent.autocast import check_autocast
    from seqdata.recurrent.cells import unwrap_module
    from seqdata.recurrent.lane_states import LaneStates
    from seqdata.sharing import World, share
    from seqdata.storage.remote.options import Remote
    from seqdata.storage.views import SequenceStore
    from seqdata.suite.events import EventDataModule
    from seqdata.suite.forecast import ForecastDataModule
    from seqdata.suite.long_sequences import LongSequenceDataModule
    from seqdata.suite.speech import SpeechDataModule
    from seqdata.suite.text import TextDataModule

    __version__: str

__all__ = [
    "SEQDATA_API",
    "TBPTT",
    "Axis",
    "Bucketed",
    "CacheError",
    "ConfigError",
    "CorruptSampleError",
    "CorruptShardError",
    "Curriculum",
    "DataError",
    "DataMonitor",
    "DecodeError",
    "EventDataModule",
    "ExactMean",
    "Feedback",
    "FingerprintMismatch",
    "Fixed",
    "ForecastDataModule",
    "IncompleteDatasetError",
    "IncompleteEpochError",
    "Jitter",
    "Labels",
    "LaneStates",
    "LimitError",
    "Loader",
    "Log1p",
    "LongSequenceDataModule",
    "LossRecord",
    "MeanStd",
    "MissingShardError",
    "Mix",
    "Packed",
    "Part",
    "PeerFailedError",
    "Plan",
    "PlanError",
    "PluginError",
    "PluginHost",
    "PredictionWriter",
    "Preempted",
    "PreemptedError",
    "Preemption",
    "Quantiles",
    "Ragged",
    "RandomStreams",
    "RankConsistency",
    "RankFileLogger",
    "RankMemoryMonitor",
    "RanksDifferError",
    "Remote",
    "RemoteReadError",
    "RescaleLearningRate",
    "ResumeError",
    "Robust",
    "Segments",
    "SeqDataError",
    "SeqDataWarning",
    "SequenceBatch",
    "SequenceDataModule",
    "SequenceIndex",
    "SequenceStore",
    "Sorted",
    "SpeechDataModule",
    "StallError",
    "Statistics",
    "TextDataModule",
    "TokenBudget",
    "UnknownNameError",
    "UnsafeContentError",
    "Vocabulary",
    "Weighted",
    "Windows",
    "WorkerDiedError",
    "World",
    "Zip",
    "__version__",
    "balanced",
    "batch_size_fn",
    "check_autocast",
    "columnar",
    "concat",
    "fit",
    "folds",
    "hookimpl",
    "length_fn",
    "measure_lengths",
    "open_store",
    "share",
    "split",
    "unwrap_module",
    "write_store",
]

_DEFINED_IN = {
    "SEQDATA_API": "hookspecs",
    "Axis": "linked_axes",
    "Bucketed": "policies.fixed",
    "Curriculum": "policies.curriculum",
    "DataMonitor": "lightning.callbacks.data_monitor",
    "EventDataModule": "suite.events",
    "ExactMean": "lightning.metrics",
    "Feedback": "lightning.callbacks.feedback",
    "Fixed": "policies.fixed",
    "ForecastDataModule": "suite.forecast",
    "LaneStates": "recurrent.lane_states",
    "Jitter": "policies.tbptt",
    "Labels": "fitting.labels",
    "Loader": "loading.loader",
    "Log1p": "fitting.scales",
    "LongSequenceDataModule": "suite.long_sequences",
    "LossRecord": "lightning.callbacks.loss_record",
    "MeanStd": "fitting.mean_std",
    "Mix": "policies.mix",
    "Packed": "policies.packed",
    "Part": "planning.parts",
    "Plan": "plan",
    "PluginHost": "host",
    "PredictionWriter": "lightning.predictions.writer",
    "Preemption": "lightning.callbacks.preemption",
    "Quantiles": "fitting.quantiles",
    "Ragged": "loading.transforms.declare",
    "RandomStreams": "random_streams",
    "RankConsistency": "lightning.callbacks.consistency",
    "RankFileLogger": "lightning.callbacks.file_logger",
    "RankMemoryMonitor": "lightning.callbacks.memory_monitor",
    "Remote": "storage.remote.options",
    "RescaleLearningRate": "lightning.callbacks.rescale",
    "Robust": "fitting.scales",
    "Segments": "policies.segments",
    "SequenceBatch": "batch",
    "SequenceDataModule": "lightning.datamodule",
    "SequenceIndex": "index",
    "SequenceStore": "storage.views",
    "Sorted": "policies.fixed",
    "SpeechDataModule": "suite.speech",
    "Statistics": "fitting.statistics",
    "TBPTT": "policies.tbptt",
    "TextDataModule": "suite.text",
    "TokenBudget": "policies.token_budget",
    "Vocabulary": "fitting.vocabulary",
    "Weighted": "policies.weighted",
    "Windows": "policies.windows",
    "World": "sharing",
    "Zip": "policies.zip",
    "balanced": "policies.weighted",
    "batch_size_fn": "batch",
    "check_autocast": "recurrent.autocast",
    "columnar": "loading.transforms.declare",
    "concat": "api",
    "fit": "fitting.fit",
    "folds": "api",
    "hookimpl": "hookspecs",
    "length_fn": "batch",
    "measure_lengths": "loading.measure_lengths",
    "open_store": "api",
    "share": "sharing",
    "split": "api",
    "unwrap_module": "recurrent.cells",
    "write_store": "api",
}


_FOREIGN_FILES = ("_io", "types.py")  # of the same import name: see `installed`


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'seqdata' has no attribute {name!r}{_suggest(name)}")
    if name == "__version__":
        return importlib.import_module("seqdata.host").core_version()
    module = importlib.import_module(f"seqdata.{_DEFINED_IN.get(name, 'errors')}")
    attribute = getattr(module, name)
    globals()[name] = attribute  # an ordinary attribute from now on
    return attribute


@functools.cache  # jsonargparse looks for the same names thousands of times
def _suggest(name: str) -> str:
    hint = importlib.import_module("seqdata.errors").did_you_mean(name, __all__)
    return hint and f"; {hint}"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


for _name in _FOREIGN_FILES:
    if os.path.exists(os.path.join(__path__[0], _name)):
        importlib.import_module("seqdata.name_conflict").warn_of_foreign_files(__path__[0])
        break
