"""The files of recordings as a store of bytes, and the recordings that their headers describe.

Headers, samples and annotations are files of one store, so that the core handles indexes,
checksums, remote files and audits. A file is a row of the store; each annotation in an EDF+ file is
another row, and so is each further run of records after a gap. Reads: a location. Makes:
recordings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.backends import (
    DataLocation,
    Extents,
    FileFormat,
    FileIndex,
    RandomAccessFile,
    ShardStore,
)
from seqdata.errors import DataError, MissingShardError
from seqdata_biosignals import brainvision, edf, wfdb
from seqdata_biosignals.recording import Events, Recording

HEA, VHDR = ".hea", ".vhdr"
HEADERS = (HEA, VHDR)
SAMPLES = (".dat", ".eeg", ".mat", ".xyz")
ANNOTATIONS = (".atr", ".qrs", ".ari", ".ecg", ".apn", ".st", ".vmrk")
SAMPLE_FIELD, TEXT = "samples", "text"
_FILE, _EVENT, _RUN = 0, 1, 2  # kinds of rows; a run that is not the first of its file
_VALUES = ("kind", "onset", "duration")
_ORPHANS = {".dat": (".hea", ".vhdr"), ".eeg": (".vhdr",)}


@dataclass(frozen=True)
class BiosignalFiles(FileFormat):
    """Format of the files of recordings, as bytes.

    Fields: ``samples``, the bytes of samples along ``byte``; ``text``, the bytes of a header, of a
    file of annotations, or of the text of an event; ``kind`` of the row; ``onset`` and ``duration``
    (seconds) of an event or a run of records.
    """

    suffixes = (*edf.SUFFIXES, *HEADERS, *SAMPLES, *ANNOTATIONS)
    version = 1

    def index(self, file: RandomAccessFile) -> FileIndex:
        """Return the positions of samples, header, runs and events in a file.

        Raises:
            DataError: If it is an EDF or BDF file that is damaged or still being written.
        """
        name = file.name.lower()
        if not name.endswith(edf.SUFFIXES):
            is_samples = name.endswith(SAMPLES)
            sizes = [[0, file.size if is_samples else 0], [0, 0 if is_samples else file.size]]
            return _make_index([(_FILE, 0.0, 0.0, *sizes)])
        try:
            header = edf.read_header(file)
            annotations, onsets = edf.read_annotations(file, header)
            runs = edf.find_runs(header, onsets)
        except ValueError as problem:
            raise make_error(file.name, str(problem)) from problem
        start = onsets[0] if onsets else 0.0
        rows: list[Any] = []
        for number, (first, stop) in enumerate(runs):
            places = [header.size + at * header.record_bytes for at in (first, stop)]
            onset = onsets[first] if onsets else 0.0
            text = [0, 0] if number else [0, header.size]
            rows.append((_RUN if number else _FILE, onset, 0.0, places, text))
        rows += [
            (_EVENT, each.onset - start, each.duration, [0, 0], [each.begin, each.end])
            for each in annotations
        ]
        return _make_index(rows)


def _make_index(rows: Sequence[tuple[Any, ...]]) -> FileIndex:
    nothing = np.full(len(rows), -1)
    kinds, onsets, durations, samples, texts = (np.array(each) for each in zip(*rows, strict=True))
    return FileIndex({
        SAMPLE_FIELD: Extents(samples[:, 0], samples[:, 1], "|u1", axis="byte"),
        TEXT: Extents(texts[:, 0], texts[:, 1], "bytes", axis=None),
        "kind": Extents(nothing, nothing, "int8", axis=None, values=kinds),
        "onset": Extents(nothing, nothing, "float64", axis=None, values=onsets),
        "duration": Extents(nothing, nothing, "float64", axis=None, values=durations),
    })  # fmt: skip


def make_error(name: str, problem: str) -> DataError:
    """Return the error about a file.

    Args:
        name: Path of the file.
        problem: The problem and its remedy, without the last full stop.
    """
    return DataError.at(f"{name}: {problem}.", file=name)


@dataclass(frozen=True, eq=False)
class Files:
    """The files of a location, and the recordings that they contain.

    Attributes:
        store: The store of bytes.
    """

    store: ShardStore

    @property
    def location(self) -> str:
        """The location, for messages."""
        return str(self.store.location)

    @cached_property
    def values(self) -> Mapping[str, NDArray[Any]]:
        """``kind``, ``onset`` and ``duration`` -> value of each row, (rows,)."""
        return self._read_values()

    @cached_property
    def file_rows(self) -> dict[str, int]:
        """Path of each file -> its first row."""
        firsts = np.flatnonzero(self.values["kind"] == _FILE).tolist()
        return dict(zip(self.store.shards, firsts, strict=True))

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Path of each file of samples -> its size in bytes."""
        lengths = self.store.lengths_of["byte"]
        return {
            name: int(lengths[row])
            for name, row in self.file_rows.items()
            if name.lower().endswith(SAMPLES)
        }

    def read_texts(self, rows: Sequence[int] | NDArray[np.int64]) -> list[bytes]:
        """Return the bytes of headers, of files of annotations, or of texts of events, by rows."""
        found: list[bytes] = list(self.store.read(_make_spans(rows), [TEXT], axis="byte")[TEXT])
        return found

    def find_recordings(self, suffix: str = "") -> list[Recording]:
        """Return the recordings, in the order of their files.

        Args:
            suffix: Suffix of the headers to use; "": all headers.

        Raises:
            DataError: If a header is damaged, or a file that belongs to another is missing.
        """
        suffixes = (*edf.SUFFIXES, *HEADERS)
        names = [name for name in self.file_rows if name.lower().endswith(suffixes)]
        if suffix:
            names = [name for name in names if name.lower().endswith(suffix)]
        else:
            self._refuse_orphans()
        if not names:
            raise make_error(self.location, "must hold a header, an EDF file or a BDF file, but "
                                            "has "
            "none. Open the folder that holds them")  # fmt: skip
        found: list[Recording] = []
        texts = self.read_texts([self.file_rows[name] for name in names])
        for name, text in zip(names, texts, strict=True):
            try:
                found += self._parse(name, text)
            except ValueError as problem:
                raise make_error(name, str(problem)) from problem
        return found

    def list_named(self, annotator: str | None) -> list[str]:
        """Return the paths of the files that belong to the only file, which is a header.

        Args:
            annotator: The suffix of WFDB annotation files; None: they are not needed.

        Raises:
            DataError: If it is not a header.
        """
        ((name, row),) = self.file_rows.items()
        (content,) = self.read_texts([row])
        is_wfdb = name.lower().endswith(HEA)
        try:
            list_named = wfdb.list_named if is_wfdb else brainvision.list_named
            names = list_named(content, name)
        except ValueError as problem:
            raise make_error(name, str(problem)) from problem
        if is_wfdb and annotator is not None:
            names.append(f"{name.rpartition('.')[0]}.{annotator}")
        return names

    def read_events(self, recording: Recording, suffix: str | None) -> tuple[Events, str]:
        """Return the events of a recording, and its start (ISO 8601) by its markers, or "".

        Args:
            recording: The recording.
            suffix: Suffix of the annotation file of a WFDB record, without a dot.

        Raises:
            DataError: If the annotations are damaged, or their file is missing.
        """
        name = recording.name
        if name.lower().endswith(edf.SUFFIXES):
            return self._read_embedded(recording), ""
        is_markers = name.lower().endswith(".vhdr")
        path = recording.events if is_markers else f"{name.rpartition('.')[0]}.{suffix}"
        if not path:
            return Events.from_rows([]), ""
        if path not in self.file_rows:
            raise MissingShardError.at(
                f"{name}: must have its annotations {path!r} among the opened files, but does not. "
                "Restore the file, open the folder that holds both, or leave "
                "`annotations` and `labels` out.",
                file=path,
            )
        (content,) = self.read_texts([self.file_rows[path]])
        try:
            channel = recording.channels[0]
            if is_markers:
                return brainvision.parse_markers(content, channel.rate)
            return wfdb.parse_annotations(content, channel.rate / channel.per_block), ""
        except ValueError as problem:
            raise make_error(path, f"{problem}. Restore it") from problem

    def _parse(self, name: str, text: bytes) -> list[Recording]:
        if name.lower().endswith(edf.SUFFIXES):
            return self._parse_edf(name, text)
        is_wfdb = name.lower().endswith(".hea")
        parse: Callable[..., Recording] = wfdb.parse_header if is_wfdb else brainvision.parse_header
        found = parse(text, name, self.sizes)
        rows = [self.file_rows[file.name] for file in found.files]
        return [replace(found, rows=rows)]

    def _parse_edf(self, name: str, text: bytes) -> list[Recording]:
        header = edf.parse_header(text)
        first = self.file_rows[name]
        rows = [first]
        while rows[-1] + 1 < len(self.store) and self.values["kind"][rows[-1] + 1] == _RUN:
            rows.append(rows[-1] + 1)
        found = []
        for part, row in enumerate(rows):
            blocks = int(self.store.lengths_of["byte"][row]) // header.record_bytes
            start = float(self.values["onset"][row])
            found.append(Recording(
                name, [header.make_file(name, blocks)], header.make_channels(), header.facts,
                rows=[row], start=start, part=part if len(rows) > 1 else None,
            ))  # fmt: skip
        return found

    def _read_embedded(self, recording: Recording) -> Events:
        """Return the events of an EDF+ file or a piece of it, with onsets from its first sample."""
        kinds, first = self.values["kind"], self.file_rows[recording.name]
        begin = first + 1
        while begin < len(kinds) and kinds[begin] == _RUN:
            begin += 1
        stop = begin + int(np.argmax(np.append(kinds[begin:] != _EVENT, True)))
        rows = np.arange(begin, stop)
        onsets = self.values["onset"][rows] - (recording.start - self.values["onset"][first])
        if recording.part is not None:
            file = recording.files[0]
            channel = recording.channels[0]
            seconds = float(file.blocks * channel.per_block / channel.rate)
            inside = (onsets >= 0) & (onsets < seconds)
            rows, onsets = rows[inside], onsets[inside]
        durations = self.values["duration"][rows]
        texts = [text.decode("utf-8", "replace") for text in self.read_texts(rows)]
        return Events.from_rows(list(zip(onsets.tolist(), durations.tolist(), texts, strict=True)))

    def _read_values(self) -> dict[str, NDArray[Any]]:
        columns = self.store.read(_make_spans(range(len(self.store))), _VALUES, axis="byte")
        bounds = np.arange(len(self.store) + 1)
        found = {}
        for name in _VALUES:
            found[name] = np.empty(len(self.store), columns[name].dtype)
            columns[name].fill(found[name], bounds, None)
        return found

    def _refuse_orphans(self) -> None:
        """Raise if a file of samples has no header, because it would be dropped silently.

        Raises:
            MissingShardError: If a file of samples has no header next to it.
        """
        names = {name.lower() for name in self.file_rows}
        for name in self.file_rows:
            stem, dot, ending = name.lower().rpartition(".")
            headers = _ORPHANS.get(dot + ending, ())
            if headers and not any(stem + header in names for header in headers):
                named = " or ".join(repr(name[: len(stem)] + header) for header in headers)
                raise DataLocation(dataset=self.location, file=name).make_error(
                    MissingShardError,
                    f"must have its header {named} next to it, but does not. Restore it, or open "
                    "only the headers: open_store('folder/*.hea')",
                )


def _make_spans(rows: Any) -> NDArray[np.int64]:
    spans = np.zeros((len(rows), 3), dtype=np.int64)
    spans[:, 0] = rows
    return spans
