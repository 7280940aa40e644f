"""Long recordings: windows of them, or chunks with carried state, also of several rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

from seqdata.arguments import check_arguments
from seqdata.errors import ConfigError, check_count, must_be
from seqdata.fitting.field_chunk import Estimator
from seqdata.fitting.labels import Labels
from seqdata.fitting.scales import make_scale
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.logical_types import Categories
from seqdata.policies.tbptt import TBPTT
from seqdata.policies.windows import Windows
from seqdata.protocols import Store
from seqdata.storage.fields import is_text, make_unknown_name_error
from seqdata.suite.labels import WithLabels, omit_label
from seqdata.suite.sources import as_names, check_split, list_parts
from seqdata.suite.write_once import WriteOnce

_OWNER = "long sequences"
_BATCH_SIZE = 64


@dataclass(frozen=True, slots=True)
class SelectFields:
    """Keeps some fields of a store; a ``prepare`` of ``SequenceDataModule``.

    Args:
        names: The fields, in this order.
        then: Function of the store that remains; None: none.
    """

    names: tuple[str, ...]
    then: WriteOnce | None = None

    def __call__(self, store: Any) -> Any:
        """Return the view of the fields, or what is made of it."""
        if self.names:
            store = store.select(*self.names)
        return store if self.then is None else self.then(store)


@dataclass(frozen=True, slots=True)
class RecordingStatistics:
    """Estimators of recordings: a ``statistics`` of ``SequenceDataModule``.

    Args:
        labels: Field of labels, whose strings or integers become class indices; None: none.
        scale: ``standard``, ``robust`` or ``log1p``, of all other fields of floats or integers that
            run along an axis; None: they are as stored.
    """

    labels: str | None
    scale: str | None

    def __call__(self, store: Store) -> dict[str, Estimator]:
        """Return the estimator of each field of a store.

        Raises:
            ConfigError: If there are no such labels.
        """
        found: dict[str, Estimator] = {}
        if self.labels is not None:
            if self.labels not in store.fields:
                raise make_unknown_name_error(_OWNER, "field", self.labels, store.fields)
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

    Args:
        source: A folder, file or glob that any installed backend opens (HDF5, Zarr, EDF, WAV, ...),
            a store, arrays, or with ``group`` a table with a row per timestep.
        rates: Field or axis -> samples per second, for fields of different rates; None: as stored.
        fields: Fields to read; None: all.
        seconds: Duration of a window, or of a chunk if ``chunk`` is None.
        hop: Seconds from the start of a window to the start of the next; None: ``seconds``.
        mode: ``windows``, or ``tbptt``. With ``tbptt``, each row of a batch continues its
            recording, and the model carries its state.
        lanes: Rows of a batch: recordings that are read at a time in mode ``tbptt``, windows in
            mode ``windows``; None: 64.
        chunk: Timesteps of a chunk; in mode ``windows`` of a window; None: ``seconds``.
        labels: Field of labels, per timestep or per recording: strings and integers become classes
            by the training part; floats stay numbers, float32 as they are, and are no features. A
            recording without its label, a NaN, is an error; a NaN of a timestep stays; None: none.
        group: Column whose equal values make a recording, of a table; rows are in its order.
        split: Fractions of the recordings, with ``"exact": True`` exact ones, or ranges of
            timesteps or dates with ``"along"``.
        split_by: Field with one value per recording whose values stay together, such as the
            subject; None: the id.
        scale: ``standard``, ``robust`` or ``log1p`` of all signals, fitted on the training part;
            None: as stored.
        read: ``in_place`` or ``write_once``. With ``write_once``, the data is written once to a
            store in the user's cache and then read from this store.
        seed: Seed of the order; None: the seed of ``seed_everything``, or 0.
        num_workers: Number of worker processes; 0: read in this process.

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
        labels: str | None = None,
        group: str | None = None,
        split: dict[str, Any],
        split_by: str | None = None,
        scale: Literal["standard", "robust", "log1p"] | None = None,
        read: Literal["in_place", "write_once"] = "in_place",
        seed: int | None = None,
        num_workers: int = 0,
    ) -> None:
        _check(mode, read, seconds, hop, lanes, chunk)
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
        prepare: Any = SelectFields(kept, write_once) if kept or write_once else None
        self.labels = labels
        super().__init__(
            train=source,
            group=group,
            rates=rates,
            prepare=prepare if labels is None else WithLabels(_OWNER, labels, prepare),
            split=parts,
            statistics=RecordingStatistics(labels, scale),
            batching=_make_policy(mode, lanes or _BATCH_SIZE, chunk, seconds, hop),
            dtype="float32",
            seed=seed,
            num_workers=num_workers,
        )

    @property
    def sizes(self) -> dict[str, dict[str, int]]:
        """Sizes that a model needs, as of ``SequenceDataModule``; labels are no feature.

        Raises:
            SeqDataError: If the data cannot be opened.
        """
        return omit_label(super().sizes, self.labels)


def _check(
    mode: str, read: str, seconds: float | None, hop: float | None, lanes: int | None,
    chunk: int | None,
) -> None:  # fmt: skip
    """Raise if arguments are invalid or do not go together.

    Raises:
        ConfigError: If so.
    """
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
            f"{_OWNER}: `hop` goes with windows of `seconds`, but is {hop!r} without them. Leave "
            "it out"
        )
    check_count(_OWNER, lanes=1 if lanes is None else lanes)
    check_count(_OWNER, chunk=1 if chunk is None else chunk)


def _make_policy(
    mode: str, lanes: int, chunk: int | None, seconds: float | None, hop: float | None
) -> Any:
    if mode == "tbptt":
        return TBPTT(lanes, chunk) if chunk is not None else TBPTT(lanes, seconds=seconds)
    if chunk is not None:
        return Windows(chunk, batch_size=lanes)
    return Windows(seconds=seconds, stride_seconds=hop, batch_size=lanes)
