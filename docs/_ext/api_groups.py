"""Objects that have a page, and their groups; ``tests/test_docs.py`` compares with ``__all__``."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """Objects of one page of the API: its title, a sentence, and their full names."""

    title: str
    intro: str
    names: tuple[str, ...]

    @property
    def slug(self) -> str:
        """Name of the page."""
        return re.sub(r"\W+", "-", self.title.lower()).strip("-")


def group(
    title: str, intro: str, names: str, package: str = "seqdata"
) -> Group:
    """Return the group of names of one package, separated by blanks."""
    return Group(
        title, intro, tuple(f"{package}.{name}" for name in names.split())
    )


GROUPS = (
    group(
        "Data in and out",
        "Open what you have, write it once, and choose from it.",
        "open_store write_store SequenceStore concat split folds measure_lengths Axis Remote "
        "SequenceIndex",
    ),
    group(
        "Batching policies",
        "How lengths become batches: buckets, token budgets, windows, packed rows, chunks.",
        "Bucketed TokenBudget Fixed Sorted Windows Packed TBPTT Jitter",
    ),
    group(
        "Sampling policies",
        "What is drawn, and how often: weights, mixtures, curricula.",
        "Weighted balanced Mix Part Zip Curriculum Segments",
    ),
    group(
        "Loaders and DataModules",
        "Batches for plain PyTorch and Fabric, and for a Lightning Trainer.",
        "Loader SequenceDataModule ForecastDataModule EventDataModule LongSequenceDataModule "
        "SpeechDataModule TextDataModule",
    ),
    group(
        "Batches and plans",
        "A batch with its mask, lengths and loss weights; the plan of an epoch, and the share of "
        "a rank.",
        "SequenceBatch batch_size_fn length_fn Plan share World",
    ),
    group(
        "Recurrent states",
        "States that are carried from chunk to chunk, and random numbers that do not depend on "
        "the number of GPUs.",
        "LaneStates RandomStreams check_autocast unwrap_module",
    ),
    group(
        "Transforms and statistics",
        "Transforms of whole batches, and what is fitted on the training data.",
        "columnar Ragged fit Statistics MeanStd Robust Log1p Quantiles Labels Vocabulary",
    ),
    group(
        "Callbacks and metrics",
        "Callbacks of a Lightning Trainer.",
        "PredictionWriter DataMonitor RankMemoryMonitor RankConsistency RankFileLogger "
        "LossRecord Feedback RescaleLearningRate Preemption ExactMean",
    ),
    group(
        "Datasets",
        "Small datasets for first steps and tests, by one call and offline.",
        "load_japanese_vowels make_documents make_flip_flops make_recordings make_speech "
        "make_series make_events",
        "seqdata.datasets",
    ),
    group(
        "Plugins",
        "Names, and the hooks with which a package adds its own.",
        "PluginHost hookimpl SEQDATA_API __version__",
    ),
    Group(
        "Protocols and results",
        "What a policy, a store, a collator of your own has; what other objects return.",
        (
            "seqdata.protocols.Store",
            "seqdata.protocols.Column",
            "seqdata.protocols.Policy",
            "seqdata.protocols.Collator",
            "seqdata.plan.PlanReport",
            "seqdata.sharing.RankPlan",
            "seqdata.sharing.Step",
            "seqdata_models.metrics.Perplexity",
            "seqdata_models.metrics.BitsPerToken",
        ),
    ),
    group(
        "Errors and warnings",
        "Every error has its cause and its remedy on the page :doc:`/guides/trouble/errors`.",
        "SeqDataError ConfigError UnknownNameError PlanError DataError DecodeError "
        "CorruptSampleError CorruptShardError MissingShardError IncompleteDatasetError "
        "UnsafeContentError LimitError RemoteReadError CacheError ResumeError "
        "FingerprintMismatch IncompleteEpochError PluginError WorkerDiedError StallError "
        "PeerFailedError RanksDifferError PreemptedError Preempted SeqDataWarning",
    ),
    group(
        "Backends",
        "For authors of formats. The page :doc:`/about/extend/backends` has an example of each.",
        "FileFormat FileIndex Extents FormatBackend FormatReader RandomAccessFile OpenedFiles "
        "DataLocation Location Field ArrayColumn IndexedFormat IndexedField FieldIndex ShardIndex "
        "ShardStore ShardEncoder make_shard_index write_files WavHeader NUMBER_DTYPES check_size "
        "make_unknown_name_error quote hookimpl",
        "seqdata.backends",
    ),
    group(
        "Files of backends",
        "For backends that find whole files or tables themselves, in ``seqdata.backends.files``.",
        "find_files find_tables warn_left_out cache_folder open_decompressed find_compression "
        "strip_compression refuse_repeated RemoteTree fetch_copies LocalCopies RowTables",
        "seqdata.backends.files",
    ),
    group(
        "Reference models",
        "The distribution ``seqdata-models``.",
        "LSTMClassifier LSTMTagger LSTMRecognizer ByteLM Forecaster LSTMForecaster Seq2SeqLSTM "
        "StatefulLM StatefulTagger last_valid masked_mean masked_token_loss",
        "seqdata_models",
    ),
    group(
        "Models on several devices",
        "One recurrent model on several devices, in ``seqdata_models.parallel``.",
        "WavefrontStrategy RingStrategy Wavefront Ring TorchWavefront Engine SupportsStages "
        "Mesh LinkTimeouts",
        "seqdata_models.parallel",
    ),
)
ATTRIBUTES = {  # values, which have no docstring of their own
    "seqdata.__version__": "Version of the installed package, such as ``0.1.0``.",
    "seqdata.SEQDATA_API": "Version of the interface between seqdata and its plugins.",
    "seqdata.hookimpl": "Mark of a function as the implementation of a hook "
    "(:doc:`/about/extend/hooks`).",
    "seqdata.backends.hookimpl": "The same as :py:data:`seqdata.hookimpl`.",
    "seqdata.backends.NUMBER_DTYPES": "Names of the dtypes that a column of numbers may have.",
    "seqdata.backends.Location": "A path or a URL, or a list of them.",
}
ALIASES = {
    "Axes": ("Mapping[str, str | None]", "Field -> its axis; None: no axis."),
    "Clocks": (
        "Mapping[str, Any]",
        "Field or axis -> samples per second, or an ``Axis``.",
    ),
    "CollatorLike": (
        "str | Collator | Callable[[list[dict[str, Any]]], Any]",
        "The name of a collator, a collator, or a torch ``collate_fn``.",
    ),
    "Cost": (
        "Callable[[Mapping[str, NDArray[int64]]], NDArray[int64]]",
        "Lengths by axis -> cost of each row.",
    ),
    "DTypes": ("str | Mapping[str, str]", "A dtype, or field -> dtype."),
    "Empty": (
        "Literal['drop', 'error']",
        "Treatment of sequences of length 0.",
    ),
    "LocationLike": ("str | os.PathLike[str]", "A path or a URL."),
    "Locations": (
        "str | Path | Store | Dataset | Iterable[Any] | Mapping[str, ...]",
        "A path, an opened store, sequences in memory or a torch Dataset; or name -> such.",
    ),
    "Missing": (
        "Literal['error', 'nan', 'drop'] | float",
        "Treatment of missing values.",
    ),
    "OnChanged": (
        "Literal['error', 'next_epoch', 'next_segment']",
        "Treatment of data that changed since the checkpoint.",
    ),
    "OnError": (
        "Literal['raise', 'mask', 'replace']",
        "Treatment of a sequence that cannot be read.",
    ),
    "Opener": ("Callable[..., Store]", "A function that opens a location."),
    "Shift": (
        "int | Mapping[str, int]",
        "Timesteps between inputs and targets; or by field.",
    ),
    "Shuffle": ("bool | Literal['blocks']", "Order of an epoch."),
    "StatisticsFor": (
        "Callable[[Store], Mapping[str, Estimator]]",
        "A function of the training data: field -> what is fitted on it.",
    ),
    "Tail": (
        "Literal['fill', 'drop', 'repeat']",
        "Batch of a rank that has none left in the last step.",
    ),
    "TimeUnit": (
        "Literal['s', 'ms', 'us', 'ns']",
        "Unit of a time that is a number.",
    ),
    "TooLong": (
        "Literal['error', 'split', 'truncate', 'drop']",
        "Treatment of sequences longer than a row may be.",
    ),
    "Transform": (
        "Callable[[dict[str, Any], Generator], Mapping[str, Any]]",
        "``transform(sequence, rng)`` of one sequence.",
    ),
}  # alias -> what it stands for, and in words
