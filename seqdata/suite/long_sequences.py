"""Long recordings: windows of them, or chunks with carried state, also of several rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, final, get_args

import numpy as np

from seqdata.arguments import check_arguments
from seqdata.capabilities import find_missing, get_base_keys
from seqdata.errors import ConfigError, check_count, check_flags, must_be
from seqdata.fitting.field_chunk import Estimator
from seqdata.fitting.labels import Labels
from seqdata.fitting.scales import make_scale
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.logical_types import Categories
from seqdata.policies.tbptt import TBPTT
from seqdata.policies.windows import Windows
from seqdata.protocols import Store
from seqdata.runs.options import DataKind, check_split
from seqdata.storage.fields import is_text, make_unknown_name_error
from seqdata.storage.remote.options import Remote
from seqdata.suite.recordings import check_rates
from seqdata.suite.sources import as_names, list_parts
from seqdata.suite.table_columns import check_stored_labels
from seqdata.suite.write_once import WriteOnce

_OWNER = "long sequences"
_BATCH_SIZE = 64
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class SelectFields:
    """Keeps some fields of a store; a ``prepare`` of ``SequenceDataModule``.

    Args:
        names: The fields, in this order; empty: all.
        then: Function of the resulting store; None: no function.
        labels: Field of labels; None: there are no labels.
    """

    names: tuple[str, ...]
    then: WriteOnce | None = None
    labels: str | None = None

    def __call__(self, store: Any) -> Any:
        """Return a view of the fields, or what ``then`` returns for this view.

        Raises:
            ConfigError: If recordings of audio have several sampling rates, or the store has no
                field ``labels``, or none of ``names``.
            DataError: If the label of a recording is NaN or infinite.
        """
        if self.labels is not None:
            if self.labels not in store.fields:
                raise _make_labels_error(store, self.labels)
            check_stored_labels(_OWNER, self.labels, store)
        if _is_audio(store):
            check_rates(_OWNER, store)
        if self.names:
            store = store.select(*self.names)
        return store if self.then is None else self.then(store)


@dataclass(frozen=True, slots=True)
class RecordingStatistics:
    """Estimators of recordings, for ``statistics`` of ``SequenceDataModule``.

    Args:
        labels: Field of labels, whose strings, integers or booleans become class indices; None:
            there are no labels.
        scale: ``standard``, ``robust`` or ``log1p``: the scale of all other fields of floats or
            integers that run along an axis; None: their values stay as they are stored.
    """

    labels: str | None
    scale: str | None

    def __call__(self, store: Store) -> dict[str, Estimator]:
        """Return field -> estimator, of the fields of a store that need one."""
        found: dict[str, Estimator] = {}
        if self.labels is not None:
            field = store.fields[self.labels]
            is_coded = isinstance(field.logical, Categories) or is_text(field)
            if is_coded or np.dtype(field.dtype).kind in "iub":
                found[self.labels] = Labels()
        scale = make_scale(self.scale)
        for name, field in store.fields.items():
            is_signal = field.axis is not None and field.logical is None and not is_text(field)
            is_number = is_signal and np.dtype(field.dtype).kind in "fiu"
            if scale is not None and is_number and name != self.labels:
                found[name] = scale
        return found


@final
class LongSequenceDataModule(SequenceDataModule):
    """Windows of long recordings, or chunks with a carried state.

    Fields of different rates must cover the same time. A warning names a recording whose fields
    begin or end at times that differ by more than rounding, but by less than a window or chunk. A
    larger difference is an error.

    Args:
        source: A folder, file or glob that any installed backend opens (HDF5, Zarr, EDF, WAV, ...),
            a store, arrays, or with ``group`` a table with a row per timestep.
        rates: Field or axis -> sampling rate in samples per second; None: the rates of the store,
            if it has any.
        fields: Names of the fields to read; None: all.
        seconds: Duration of a window in mode ``windows``, or of a chunk in mode ``tbptt``. It needs
            the sampling rate. Exactly one of ``seconds`` and ``chunk`` must be given.
        hop: Seconds from the start of a window to the start of the next; only with windows of
            ``seconds``. None: ``seconds``.
        mode: ``windows`` or ``tbptt``. With ``tbptt``, each row of a batch continues its
            recording, and the model carries its state.
        lanes: Number of rows of a batch. A row is a window in mode ``windows``; in mode ``tbptt``
            it is a chunk, and as many recordings are read at the same time. None: 64.
        chunk: Number of timesteps of a window or chunk, in place of ``seconds``.
        continuous: Whether to join all recordings into one stream, which is cut into one part per
            lane; for fewer recordings than lanes, only in mode ``tbptt``. The state is then carried
            from the end of a recording to the next one.
        labels: Field of labels, with a value per timestep or per recording. Strings, integers and
            booleans become class indices, fitted on the training part. Floats are regression
            targets: float32, neither scaled nor counted as features. A recording whose label is NaN
            or infinite is an error; NaN at single timesteps is kept. None: there are no labels.
        group: Column of a table that identifies the recording of each row. The rows of a recording
            must be adjacent, and keep the order of the table.
        split: Fractions of the recordings, which are exact with ``"exact": True``; or ranges of
            timesteps or dates, with ``"along"``.
        split_by: Field with one value per recording, such as the subject, whose equal values stay
            in one part. Ranges ignore it. None: the id.
        scale: Scale of all fields of numbers along an axis, fitted on the training part:
            ``standard``, ``robust`` or ``log1p``; None: values stay as they are stored.
        read: ``in_place`` or ``write_once``. With ``write_once``, the data is written once to a
            store in the user's cache and then read from this store.
        seed: Seed of the order; None: the seed of ``seed_everything``, or 0.
        num_workers: Number of worker processes; 0: read in this process.
        remote: Access to URLs, as in ``open_store``.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> rows = [np.arange(100.0) + number for number in range(10)]
        >>> data = LongSequenceDataModule(
        ...     rows, chunk=20, scale="standard", split={"train": 0.8, "val": 0.2}
        ... )
        >>> next(iter(data.train_dataloader()))["x"].shape[1]
        20
    """

    @check_arguments
    def __init__(  # noqa: PLR0913
        self,
        source: Any,
        *,
        rates: dict[str, Any] | None = None,
        fields: str | Sequence[str] | None = None,
        seconds: float | None = None,
        hop: float | None = None,
        mode: Literal["windows", "tbptt"] = "windows",
        lanes: int | None = None,
        chunk: int | None = None,
        continuous: bool = False,
        labels: str | None = None,
        group: str | None = None,
        split: dict[str, Any],
        split_by: str | None = None,
        scale: Literal["standard", "robust", "log1p"] | None = None,
        read: Literal["in_place", "write_once"] = "in_place",
        seed: int | None = None,
        num_workers: int = 0,
        remote: Remote | str | None = None,
    ) -> None:
        _check(mode, read, seconds, hop, lanes, chunk)
        _check_continuous(mode, continuous)
        make_scale(scale)
        parts = check_split(_OWNER, split)
        if split_by is not None and not any(isinstance(part, str) for part in list_parts(parts)):
            parts = {"by": split_by, **parts}
        names = () if fields is None else as_names(_OWNER, "fields", fields)
        kept = tuple(
            name for name in dict.fromkeys((*names, labels, parts.get("by"), parts.get("along")))
            if name is not None and names
        )  # fmt: skip
        write_once = WriteOnce() if read == "write_once" else None
        self.labels = self._label = labels
        super().__init__(
            train=source,
            group=group,
            rates=rates,
            prepare=SelectFields(kept, write_once, labels),
            split=parts,
            statistics=RecordingStatistics(labels, scale),
            batching=_make_policy(mode, lanes or _BATCH_SIZE, chunk, seconds, hop, continuous),
            dtype="float32",
            seed=seed,
            num_workers=num_workers,
            remote=remote,
        )

    def describe(self) -> str:
        """Describe the opened, split and fitted data, and count recordings without a window.

        Raises:
            SeqDataError: If the data cannot be opened.
        """
        lines = [super().describe()]
        for kind in get_args(DataKind):
            store = self._sources.get_store(kind)
            if store is not None and self._options.find_part(kind) in (None, kind):
                short = _describe_short(store, self._options.batching)
                lines += [f"  {kind}: {line}" for line in short]
        return "\n".join(lines)


def _make_labels_error(store: Store, labels: str) -> ConfigError:
    """Return the error about missing labels: no such field, or the recordings that lack it."""
    count, ids = find_missing(store, labels)
    if not count:
        return make_unknown_name_error(_OWNER, "field", labels, store.fields)
    some = ", ".join(map(repr, ids[:_SHOWN])) + (", ..." if count > _SHOWN else "")
    return ConfigError(
        f"{_OWNER}: `labels` must be in every recording, but {count} of {len(store)} have no "
        f"{labels!r} ({some}). Add it there, or leave these recordings out of the file"
    )


def _is_audio(store: Store) -> bool:
    """Return whether a store has recordings of audio with the sampling rate of each."""
    rate, audio = store.fields.get("rate"), store.fields.get("audio")
    if rate is None or audio is None or audio.axis is None or rate.axis is not None:
        return False
    return not rate.shape and not is_text(rate) and np.dtype(rate.dtype).kind in "iu"


def _describe_short(store: Store, policy: Any) -> list[str]:
    """Return one line about sequences that are too short for a window or chunk, or no line."""
    planned = policy.in_timesteps(store) or policy
    if planned.axis not in store.lengths_of:
        return []
    lengths = np.asarray(store.lengths_of[planned.axis])
    least = planned.least_size if isinstance(planned, Windows) else 1
    short = np.flatnonzero(lengths < least)
    if not len(short):
        return []
    unit = f"a window of {least} timesteps" if least > 1 else "a timestep"
    (first,) = get_base_keys(store, store.base_numbers(short[:1]))
    return [
        f"without {unit}: {len(short)} of {len(lengths)} sequences (the first: {first!r}, "
        f"{lengths[short[0]]} timesteps)"
    ]


def _check(
    mode: str, read: str, seconds: float | None, hop: float | None, lanes: int | None,
    chunk: int | None,
) -> None:  # fmt: skip
    """Raise ConfigError if an argument is invalid, or two of them exclude each other."""
    for name, value, choices in (
        ("mode", mode, ("windows", "tbptt")), ("read", read, ("in_place", "write_once")),
    ):  # fmt: skip
        if value not in choices:
            needed = " or ".join(map(repr, choices))
            raise ConfigError(must_be(f"{_OWNER}: `{name}`", needed, repr(value)))
    if (seconds is None) == (chunk is None):
        found = "neither is" if seconds is None else "both are"
        raise ConfigError(
            f"{_OWNER}: one of `seconds` and `chunk` (timesteps) must be given, but {found}"
        )
    if hop is not None and (seconds is None or mode == "tbptt"):
        raise ConfigError(
            f"{_OWNER}: `hop` requires windows of `seconds`, but is {hop!r} without them. Leave "
            "it out"
        )
    check_count(_OWNER, lanes=1 if lanes is None else lanes)
    check_count(_OWNER, chunk=1 if chunk is None else chunk)


def _check_continuous(mode: str, continuous: bool) -> None:
    check_flags(_OWNER, continuous=continuous)
    if continuous and mode != "tbptt":
        raise ConfigError(
            f"{_OWNER}: `continuous` requires mode='tbptt', but mode is {mode!r}. Leave it out"
        )


def _make_policy(
    mode: str, lanes: int, chunk: int | None, seconds: float | None, hop: float | None,
    continuous: bool,
) -> Any:  # fmt: skip
    if mode == "tbptt":
        return TBPTT(lanes, chunk, seconds=seconds, continuous=continuous)
    if chunk is not None:
        return Windows(chunk, batch_size=lanes)
    return Windows(seconds=seconds, stride_seconds=hop, batch_size=lanes)
