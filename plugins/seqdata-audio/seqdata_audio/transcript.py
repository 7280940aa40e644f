"""A table of transcripts, joined with recordings by the names of their files.

``read_table`` reads the table as columns. ``match_rows`` matches its rows with the ids of
recordings; ``match_parts`` does so if rows are parts of recordings. ``TranscribedStore`` returns
the columns with the fields of the recordings.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.backends import ArrayColumn, Field
from seqdata.errors import ConfigError, DataError, warn
from seqdata.protocols import Store
from seqdata_audio.transcript_table import FILE_COLUMNS, TEXT_COLUMNS, Columns, read_table

_TEXT = "text"
_SHOWN = 3  # names in a message
_ROUNDING = 0.01  # seconds that a part may end behind its recording: manifests round


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of recordings, each of which is a sequence.

    Attributes:
        ids: Their ids.
        begins: int64 (n,), the first timestep of each in its recording.
        lengths: int64 (n,), number of timesteps of each.
    """

    ids: Sequence[str]
    begins: NDArray[np.int64]
    lengths: NDArray[np.int64]


class TranscribedStore:
    """Store of recordings, with the columns of a table of transcripts as fields.

    Args:
        base: The recordings.
        numbers: int64 (n,), sequence -> index of its recording, ascending.
        columns: Field -> value of each sequence: numbers (n,), or a list of n strings.
        parts: The part of its recording that each sequence is; None: the whole recording.
    """

    def __init__(
        self,
        base: Store,
        numbers: NDArray[np.int64],
        columns: Columns,
        parts: Parts | None = None,
    ) -> None:
        self._base, self._numbers, self._columns, self._parts = base, numbers, columns, parts
        own = {
            name: Field("str" if isinstance(values, list) else values.dtype.name, (), None)
            for name, values in columns.items()
        }
        self.fields: Mapping[str, Field] = {**base.fields, **own}
        self.lengths_of = {
            axis: np.asarray(lengths)[numbers] for axis, lengths in base.lengths_of.items()
        }
        if parts is not None:
            self.lengths_of = dict.fromkeys(base.lengths_of, parts.lengths)
        self.lengths = np.asarray(base.lengths)[numbers] if parts is None else parts.lengths
        self.shards = base.shards
        digest = hashlib.sha256(f"{base.fingerprint} {sorted(own.items())}".encode())
        digest.update(numbers.tobytes())
        if parts is not None:
            digest.update(repr(list(parts.ids)).encode())
            digest.update(parts.begins.tobytes() + parts.lengths.tobytes())
        for name in sorted(columns):
            values = columns[name]
            raw = repr(values).encode() if isinstance(values, list) else values.tobytes()
            digest.update(raw)
        self.fingerprint = digest.hexdigest()[:32]

    def __reduce__(self) -> tuple[Any, ...]:
        return TranscribedStore, (self._base, self._numbers, self._columns, self._parts)

    def __len__(self) -> int:
        return len(self._numbers)

    def keys(self, numbers: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """Return the ids of sequences; see ``seqdata.protocols.Store``."""
        chosen = np.asarray(numbers, np.int64)
        if self._parts is None:
            return self._base.keys(self._numbers[chosen])
        return [self._parts.ids[number] for number in chosen.tolist()]

    def base_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the same indices, because this store is not a view."""
        return numbers

    def read(
        self, spans: NDArray[np.int64], fields: Iterable[str], *, axis: str = "time"
    ) -> dict[str, Any]:
        """Read a batch; see ``seqdata.protocols.Store``.

        Raises:
            ConfigError: If a sequence or field does not exist.
            DataError: If a recording is damaged.
        """
        names, spans = list(fields), np.asarray(spans)
        numbers = spans[:, 0]
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(self):
            raise ConfigError(
                f"TranscribedStore: sequences must be in 0..{len(self) - 1}, but are "
                f"{numbers.min()}..{numbers.max()}. Check the spans"
            )
        theirs = [name for name in names if name not in self._columns]
        base_spans = np.column_stack([self._numbers[numbers], spans[:, 1:]])
        if self._parts is not None:
            base_spans[:, 1:] += self._parts.begins[numbers, None]
        found = self._base.read(base_spans, theirs, axis=axis)
        for name in names:
            if name in self._columns:
                found[name] = _take(self._columns[name], numbers)
        return {name: found[name] for name in names}


def join_transcript(store: Store, table: Any, folder: str = "") -> TranscribedStore:
    """Return the recordings that have a row in a table, with its columns as fields.

    A row names its recording by its id (the path below the folder), the id without suffix, the file
    name, or the file name without suffix; the form that matches most rows is used for all. With a
    column ``offset`` (and ``duration``; both in seconds), each row is a sequence, which is a part
    of its recording.

    Args:
        store: The recordings.
        table: A path (CSV, TSV, Parquet, JSON lines, a manifest of lhotse, a folder of Kaldi), a
            pandas, Polars or Arrow table: columns ``file``, ``path`` or ``audio_filepath``, and
            ``text``, ``sentence`` or ``transcript``.
        folder: Folder of the recordings, with which names in the table may begin.

    Raises:
        ConfigError: If the table cannot be read, lacks a column, or does not name any recording.
        DataError: If two rows name one recording, a row matches several, a part is not within its
            recording, or two parts have the same id.
    """
    where, columns = read_table(table)
    file, text = _find(where, columns, FILE_COLUMNS), _find(where, columns, TEXT_COLUMNS)
    names, texts = columns.pop(file), columns.pop(text)
    own_ids = columns.pop("id", None)
    for name in columns:
        if name in store.fields or name in (_TEXT, "id"):
            raise ConfigError(
                f"{where}: columns must not be named like a field of the recordings, but {name!r} "
                "is. Rename the column, or leave it out"
            )
    if not isinstance(names, list) or not isinstance(texts, list):
        raise ConfigError(
            f"{where}: columns {file!r} and {text!r} must hold strings, but one holds "
            "numbers. Check the table"
        )
    ids = store.keys(range(len(store)))
    root = f"{os.path.abspath(folder)}/" if folder else ""
    names = [name.removeprefix(root) for name in names]
    if "offset" in columns or own_ids is not None:
        numbers, rows = match_parts(where, ids, names)
        parts = _measure_parts(where, store, ids, columns, numbers, rows, own_ids)
    else:
        found = match_rows(where, ids, names)
        numbers = np.flatnonzero(found >= 0)
        rows, parts = found[numbers], None
    _report(where, ids, names, numbers, rows)
    taken = {name: _take_rows(values, rows) for name, values in columns.items()}
    fields = {_TEXT: _take_rows(texts, rows), **taken}
    return TranscribedStore(store, numbers, fields, parts)


def match_rows(where: str, ids: Sequence[str], names: Sequence[str]) -> NDArray[np.int64]:
    """Return the row of each recording, int64 (ids,); -1 if it has none.

    Args:
        where: The table, for errors.
        ids: Ids of recordings.
        names: Names of their files in the rows.

    Raises:
        ConfigError: If no row names a recording.
        DataError: If two rows name one recording, or a row matches several.
    """
    theirs, mine = _choose_names(where, ids, names)
    row_of = {name: row for row, name in enumerate(theirs)}
    known = set(mine)
    if len(row_of) < len(theirs):
        for row, name in enumerate(theirs):
            if row_of[name] != row and name in known:
                raise DataError.at(
                    f"{where}: each recording must have one row, but rows {row} and {row_of[name]} "
                    f"both name {name!r}. Remove one, or, if they are parts of it, add the columns "
                    "'offset' and 'duration' (seconds)",
                    sequence=name,
                )
    _index_names(where, ids, mine, row_of)
    return np.array([row_of.get(name, -1) for name in mine], np.int64)


def match_parts(
    where: str, ids: Sequence[str], names: Sequence[str]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return recording and row of each part, int64 (n,) each, sorted by recording and row.

    Args:
        where: The table, for errors.
        ids: Ids of recordings.
        names: Names of their files in the rows, several times if they have several parts.

    Raises:
        ConfigError: If no row names a recording.
        DataError: If a row matches several recordings.
    """
    theirs, mine = _choose_names(where, ids, names)
    number_of = _index_names(where, ids, mine, {name: row for row, name in enumerate(theirs)})
    numbers = np.array([number_of.get(name, -1) for name in theirs], np.int64)
    rows = np.flatnonzero(numbers >= 0)
    order = np.argsort(numbers[rows], kind="stable")
    return numbers[rows][order], rows[order]


def _choose_names(
    where: str, ids: Sequence[str], names: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the names in rows, and the ids, cut to the form that matches most rows.

    Raises:
        ConfigError: If no row names a recording.
    """
    plain = [name.replace("\\", "/").removeprefix("./") for name in names]
    best: tuple[int, list[str], list[str]] = (0, [], [])
    cuts: tuple[Callable[[str], str], ...] = (
        str, _cut_suffix, _cut_folder, lambda name: _cut_suffix(_cut_folder(name)),
    )  # fmt: skip
    for cut in cuts:
        theirs, mine = list(map(cut, plain)), list(map(cut, ids))
        count = len(set(theirs) & set(mine))
        if count > best[0]:
            best = (count, theirs, mine)
    if not best[0]:
        raise ConfigError(
            f"{where}: rows must name recordings, but none does: rows name {_show(names)}, "
            f"recordings are {_show(ids)}. Check the location and the table"
        )
    return best[1:]


def _index_names(
    where: str, ids: Sequence[str], mine: Sequence[str], row_of: Mapping[str, int]
) -> dict[str, int]:
    """Return name -> index of its recording.

    Raises:
        DataError: If a row matches several recordings.
    """
    first: dict[str, int] = {}
    for number, name in enumerate(mine):
        if name in first and name in row_of:
            raise DataError.at(
                f"{where}: row {row_of[name]} ({name!r}) must name one recording, but "
                f"{ids[first[name]]!r} and {ids[number]!r} have this name. Write the path below "
                "the folder into the table",
                sequence=ids[number],
            )
        first.setdefault(name, number)
    return first


def _measure_parts(
    where: str, store: Store, ids: Sequence[str], columns: Columns, numbers: NDArray[np.int64],
    rows: NDArray[np.int64], own_ids: Any,
) -> Parts:  # fmt: skip
    """Return the part of its recording that each row describes, in samples.

    Raises:
        ConfigError: If an offset or duration is not a number.
        DataError: If a part is not within its recording, or two parts have the same id.
    """
    zeros = np.zeros((len(numbers), 3), np.int64)
    zeros[:, 0] = numbers
    column = store.read(zeros, ["rate"])["rate"]
    rates = np.array([column[at].item() for at in range(len(numbers))], np.int64)
    sizes = np.asarray(store.lengths)[numbers].astype(np.int64)
    begins = np.zeros(len(numbers), np.int64)
    ends = sizes.copy()
    if "offset" in columns:
        offsets = _take_seconds(where, columns, "offset", rows, 0.0)
        begins = np.rint(offsets * rates).astype(np.int64)
    if "offset" in columns and "duration" in columns:
        durations = _take_seconds(where, columns, "duration", rows, np.nan)
        is_open = np.isnan(durations)
        ends = np.rint((offsets + np.where(is_open, 0.0, durations)) * rates).astype(np.int64)
        is_rounded = (ends > sizes) & (ends <= sizes + _ROUNDING * rates)
        ends = np.where(is_open | is_rounded, sizes, ends)
    wrong = np.flatnonzero((begins < 0) | (begins > ends) | (ends > sizes))
    if len(wrong):
        at = wrong[0]
        raise DataError.at(
            f"{where}: row {rows[at]} must describe a part of {ids[numbers[at]]!r}, which has "
            f"{sizes[at] / rates[at]:g} s, but describes {begins[at] / rates[at]:g} to "
            f"{ends[at] / rates[at]:g} s. Correct 'offset' and 'duration', in seconds",
            sequence=ids[numbers[at]],
        )
    if own_ids is None:
        is_whole = (begins == 0) & (ends == sizes)
        names = [
            ids[number] if whole else f"{ids[number]}[{begin}:{end}]"
            for number, begin, end, whole in zip(
                *(each.tolist() for each in (numbers, begins, ends, is_whole)), strict=True
            )
        ]
    elif isinstance(own_ids, list):
        names = _take_rows(own_ids, rows)
    else:
        names = list(map(str, own_ids[rows].tolist()))
    _refuse_repeated(where, names, rows)
    return Parts(names, begins, ends - begins)


def _take_seconds(
    where: str, columns: Columns, name: str, rows: NDArray[np.int64], missing: float
) -> NDArray[np.float64]:
    values = columns[name]
    if isinstance(values, list):
        raise ConfigError(
            f"{where}: column {name!r} must hold seconds as numbers, but holds strings "
            f"({_show(values)}). Correct the table"
        )
    seconds = values[rows].astype(np.float64)
    return np.where(np.isnan(seconds), missing, seconds)


def _refuse_repeated(where: str, names: Sequence[str], rows: NDArray[np.int64]) -> None:
    first: dict[str, int] = {}
    for name, row in zip(names, rows.tolist(), strict=True):
        if name in first:
            raise DataError.at(
                f"{where}: rows must describe different parts and have unique ids, but rows "
                f"{first[name]} and {row} are both {name!r}. Remove one",
                sequence=name,
            )
        first[name] = row


def _find(where: str, columns: Mapping[str, Any], known: Sequence[str]) -> str:
    found = [name for name in known if name in columns]
    if not found:
        raise ConfigError(
            f"{where}: must have a column {', '.join(map(repr, known[:-1]))} or {known[-1]!r}, but "
            f"has {', '.join(map(repr, columns))}. Rename one"
        )
    return found[0]


def _report(
    where: str, ids: Sequence[str], names: Sequence[str], numbers: NDArray[np.int64],
    rows: NDArray[np.int64],
) -> None:  # fmt: skip
    """Warn about recordings without a row, and rows without a recording."""
    alone = np.ones(len(ids), bool)
    alone[numbers] = False
    left = np.ones(len(names), bool)
    left[rows] = False
    lonely, unused = np.flatnonzero(alone), np.flatnonzero(left)
    said = []
    if len(lonely):
        some = _show([ids[at] for at in lonely[:_SHOWN]], len(lonely))
        said.append(f"{len(lonely)} of {len(ids)} recordings have no row and are dropped ({some})")
    if len(unused):
        some = _show([names[at] for at in unused[:_SHOWN]], len(unused))
        said.append(f"{len(unused)} of {len(names)} rows have no recording ({some})")
    if said:
        warn(f"{where}: {'; '.join(said)}")


def _show(names: Sequence[str], count: int | None = None) -> str:
    more = ", ..." if (len(names) if count is None else count) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more


def _cut_suffix(name: str) -> str:
    head, dot, _ = name.rpartition(".")
    return head if dot and head and "/" not in name[len(head) :] else name


def _cut_folder(name: str) -> str:
    return name.rpartition("/")[2]


def _take(values: NDArray[Any] | list[str], numbers: NDArray[np.int64]) -> Any:
    if isinstance(values, list):
        return [values[number] for number in numbers.tolist()]
    return ArrayColumn(values.dtype, (), list(values[numbers][:, None]))


def _take_rows(values: Any, rows: NDArray[np.int64]) -> Any:
    return [values[row] for row in rows.tolist()] if isinstance(values, list) else values[rows]
