"""The backend for recordings in EDF, BDF, WFDB and BrainVision."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.backends import FormatBackend, Location, hookimpl
from seqdata.errors import ConfigError
from seqdata_biosignals.fields import STORED, Names, SignalField, check_unit, make_fields
from seqdata_biosignals.files import HEA, VHDR, BiosignalFiles, Files, make_error
from seqdata_biosignals.recording import FACTS, Events, Recording
from seqdata_biosignals.store import BiosignalStore, RaggedValues, StepLabels

_DTYPES = ("float32", "float64", STORED)
_GAPS = ("error", "split")
_RATE = "rate"
_EVENT = "event"
"""The axis of annotations."""


@dataclass(frozen=True)
class Biosignals:
    """Backend for recordings in EDF(+), BDF(+), WFDB and BrainVision.

    Each recording is a sequence, with its path as id. The field ``signal``, (T, channels) along
    ``time``, has the channels of the highest rate. The channels of another rate are a field with
    the rate in its name (signal_1hz) and an axis of its own.

    Args:
        channels: Names of channels, in the order of the field ``signal``; a string: one channel,
            without a dimension for channels; field -> names: several fields, the first along
            ``time``; None: all.
        dtype: ``"float32"`` or ``"float64"``: samples in the unit of the header; ``"stored"``: the
            stored integers.
        unit: ``"V"``, ``"mV"`` or ``"uV"``, to which all voltages are converted; None: the units of
            the headers.
        facts: Values of the header that become fields with one value per sequence: ``"patient"``,
            ``"recording"``, ``"start"`` (ISO 8601) and ``"comments"`` as strings, ``"rate"`` as
            float64; with ``"rate"``, recordings may differ in their rates.
        annotations: Whether to add the fields ``onset`` and ``duration`` (float64, along ``event``,
            in seconds; onsets count from the first sample) and ``event_texts`` (a string with a
            line per event); a string: the suffix of the WFDB annotation files to read them from
            (``"atr"``).
        labels: Text of annotations -> label, or a list of texts, whose positions are the labels.
            Adds the field ``label``, int64 along ``time``, which is -1 where there is no such
            annotation.
        gaps: Rule for gaps in EDF+D and BDF+D: ``"error"``, or ``"split"``: each piece without a
            gap becomes a sequence.

    Raises:
        ConfigError: If an option is invalid.

    Examples:
        >>> backend = Biosignals(channels=["Fz", "Cz"], unit="uV")
        >>> store = open_store("recordings/", backend=backend)  # doctest: +SKIP
    """

    channels: Names | Mapping[str, Names] | None = None
    dtype: str = "float32"
    unit: str | None = None
    facts: Sequence[str] = ()
    annotations: bool | str = False
    labels: Sequence[str] | Mapping[str, int] | None = None
    gaps: str = "error"

    def __post_init__(self) -> None:
        _check_choice("dtype", self.dtype, _DTYPES)
        _check_choice("gaps", self.gaps, _GAPS)
        check_unit(self.unit)
        facts = [self.facts] if isinstance(self.facts, str) else list(self.facts)
        for fact in facts:
            _check_choice("facts", fact, (*FACTS, _RATE))
        object.__setattr__(self, "facts", tuple(facts))
        _check_channels(self.channels)
        _check_labels(self.labels, self.annotations)
        if self.unit is not None and self.dtype == STORED:
            raise ConfigError(
                f"Biosignals: `unit` must be None if `dtype` is 'stored', but is {self.unit!r}. "
                "Leave one of them out"
            )

    def __call__(
        self,
        location: Location,
        *,
        verify: str | None = None,
        index: str | None = None,
        remote: Any = None,
        progress: bool | None = None,
    ) -> BiosignalStore:
        """Open recordings; files without an index are read once to make it, with a progress bar.

        Args:
            location: A file of a recording, a folder, a glob, a URL, or a list of these.
            verify: When checksums are compared: ``"first_read"`` (None), ``"always"``, ``"off"``.
            index: As in ``open_store``; missing indexes are always made.
            remote: Access to URLs, as in ``open_store``.
            progress: Whether to show progress bars; None: if standard error is a terminal.

        Raises:
            ConfigError: If there are no recordings at the location, or an option does not match
                them.
            DataError: If a file is damaged, missing, or of another format.
        """
        opener = FormatBackend(BiosignalFiles())
        store = opener(
            self._find_siblings(location, remote), verify=verify, index=index, remote=remote,
            progress=progress,
        )  # fmt: skip
        files = Files(store)
        return self._make_store(files, files.find_recordings(self._find_suffix(location)))

    def build_index(
        self,
        location: Location,
        *,
        rebuild: bool = False,
        executor: Executor | None = None,
        progress: Any = None,
        remote: Any = None,
    ) -> Mapping[str, Any]:
        """Make the index of files that have none, or of all; see ``protocols.SupportsIndexing``."""
        return FormatBackend(BiosignalFiles()).build_index(
            self._find_siblings(location, remote), rebuild=rebuild, executor=executor,
            progress=progress, remote=remote,
        )  # fmt: skip

    def audit(
        self, location: str, *, shard: int | None, repair: bool, on_progress: Callable[[int], None]
    ) -> tuple[int, Iterator[Any]]:
        """Compare every byte of every file; see ``protocols.SupportsAudit``."""
        text = "::".join(self._find_files(os.fspath(location), None))
        return FormatBackend(BiosignalFiles()).audit(
            text, shard=shard, repair=repair, on_progress=on_progress
        )

    def list_channels(self, location: Location) -> dict[str, str]:
        """Return name -> description of each channel: units, rates and the number of recordings.

        Args:
            location: As in ``open_store``.

        Raises:
            DataError: If a file is damaged, missing, or of another format.
        """
        files = Files(FormatBackend(BiosignalFiles())(self._find_siblings(location, None)))
        recordings = files.find_recordings(self._find_suffix(location))
        found: dict[str, list[Any]] = {}
        for recording in recordings:
            for channel in recording.channels:
                found.setdefault(channel.name, []).append((channel.unit, float(channel.rate)))
        return {
            name: f"{'|'.join(sorted({unit for unit, _ in those}))}, "
            f"{'|'.join(f'{rate:g}' for rate in sorted({rate for _, rate in those}))} Hz, "
            f"in {len(those)} of {len(recordings)}"
            for name, those in found.items()
        }

    def _make_store(self, files: Files, recordings: Sequence[Recording]) -> BiosignalStore:
        for recording in recordings:
            _check_pieces(recording, self.gaps)
        signals = make_fields(recordings, self.channels, self.dtype, self.unit, _RATE in self.facts)
        facts = {fact: [each.facts[fact] for each in recordings]
                 for fact in self.facts if fact != _RATE}  # fmt: skip
        ragged: dict[str, RaggedValues | StepLabels] = {}
        if self.annotations or self.labels is not None or "start" in self.facts:
            events, starts = self._read_events(files, recordings)
            facts |= {"start": starts} if "start" in self.facts else {}
            if self.annotations:
                ragged |= _make_ragged(events)
                facts["event_texts"] = [
                    "\n".join(" ".join(text.split("\n")) for text in each.texts) for each in events
                ]
            if self.labels is not None:
                ragged["label"] = _make_labels(events, signals[0], self._codes)
        numbers = {}
        if _RATE in self.facts:
            numbers[_RATE] = np.array([float(rate) for rate in signals[0].rates])
        taken = [*ragged, *facts, *numbers]
        for signal in signals:
            if signal.name in taken:
                raise ConfigError(
                    "Biosignals: fields of `channels` must not have the name of another field, "
                    f"but one is {signal.name!r}. Rename it"
                )
        return BiosignalStore(
            files=files.store, names=[_format_id(each) for each in recordings],
            signals={signal.name: signal for signal in signals}, ragged=ragged, texts=facts,
            numbers=numbers, options=repr(self),
        )  # fmt: skip

    @property
    def _codes(self) -> Mapping[str, int]:
        labels = self.labels or {}
        if isinstance(labels, Mapping):
            return labels
        return {text: number for number, text in enumerate(labels)}

    @property
    def _annotator(self) -> str:
        """Suffix of WFDB annotation files, without a dot."""
        return self.annotations if isinstance(self.annotations, str) else "atr"

    def _read_events(
        self, files: Files, recordings: Sequence[Recording]
    ) -> tuple[list[Events], list[str]]:
        """Return the events of each recording, and its start (ISO 8601) by header or markers."""
        only_start = not self.annotations and self.labels is None
        events, starts = [], []
        for recording in recordings:
            start = recording.facts["start"]
            if only_start and not recording.events:
                events.append(Events.from_rows([]))
            else:
                its_events, said = files.read_events(recording, self._annotator)
                events.append(its_events)
                start = start or said
            starts.append(start)
        return events, starts

    def _find_siblings(self, location: Location, remote: Any) -> Location:
        """Return a location with the files that belong to its headers."""
        if isinstance(location, str | os.PathLike):
            found = self._find_files(os.fspath(location), remote)
            return found[0] if len(found) == 1 else found
        return [each for part in location for each in self._find_files(os.fspath(part), remote)]

    def _find_files(self, path: str, remote: Any) -> list[str]:
        stem, dot, ending = path.rpartition(".")
        suffix = (dot + ending).lower()
        if suffix not in (HEA, VHDR, ".dat", ".eeg"):
            return [path]
        is_url, is_there = "://" in path, os.path.exists(path)
        if any(sign in path for sign in "*?[{") and not is_there:
            if not is_url:
                return [f"{stem}.*"]
            samples = ".eeg" if suffix in (VHDR, ".eeg") else ".dat"
            return [stem + (VHDR if samples == ".eeg" else HEA), stem + samples]
        if suffix in (HEA, VHDR):
            return self._find_named(path, remote)
        headers = (VHDR,) if suffix == ".eeg" else (HEA, VHDR)
        for header in headers:
            if is_url or os.path.exists(stem + header):
                return self._find_named(stem + header, remote)
        named = " or ".join(repr(os.path.basename(stem) + header) for header in headers)
        problem = f"must have its header {named} next to it, but does not. Restore it"
        raise make_error(os.path.basename(path), problem)

    def _find_named(self, path: str, remote: Any) -> list[str]:
        """Return the paths of a header and of the files that it names."""
        files = Files(FormatBackend(BiosignalFiles())(path, remote=remote, progress=False))
        folder = path.rpartition("/")[0]
        names = files.list_named(self._annotator if self._needs_events else None)
        return [path, *(f"{folder}/{name}" if folder else name for name in names)]

    @property
    def _needs_events(self) -> bool:
        return bool(self.annotations) or self.labels is not None

    def _find_suffix(self, location: Location) -> str:
        """Return the suffix of the headers that a location names; "" if it names none."""
        path = os.fspath(location) if isinstance(location, str | os.PathLike) else ""
        ending = path[path.rfind(".") :].lower()
        return ending if ending in (HEA, VHDR) else ""


def _check_choice(name: str, value: object, allowed: Sequence[object]) -> None:
    if value not in allowed:
        raise ConfigError(
            f"Biosignals: `{name}` must be one of {', '.join(map(repr, allowed))}, but is "
            f"{value!r}. Choose one of these"
        )


def _check_channels(channels: object) -> None:
    groups = list(channels.values()) if isinstance(channels, Mapping) else [channels]
    for names in groups if channels is not None else ():
        those = [names] if isinstance(names, str) else names
        is_list = isinstance(those, Sequence) and all(isinstance(name, str) for name in those)
        if not isinstance(those, Sequence) or not is_list or not 0 < len(those) == len(set(those)):
            raise ConfigError(
                "Biosignals: `channels` must be distinct names of channels, or field -> names, "
                f"but is {channels!r}. Pass e.g. ['Fz', 'Cz']"
            )
    if isinstance(channels, Mapping) and not channels:
        raise ConfigError(
            "Biosignals: `channels` must have at least one field, but is empty. Leave it out for "
            "all channels"
        )


def _check_labels(labels: object, annotations: object) -> None:
    if labels is not None:
        texts = list(labels) if isinstance(labels, Sequence | Mapping) else []
        numbers = list(labels.values()) if isinstance(labels, Mapping) else []
        are_texts = not isinstance(labels, str) and all(isinstance(text, str) for text in texts)
        are_numbers = all(type(number) is int for number in numbers)
        if not texts or not are_texts or not are_numbers or len(set(texts)) != len(texts):
            raise ConfigError(
                "Biosignals: `labels` must be distinct texts of annotations, or text -> integer, "
                f"but is {labels!r}. Pass e.g. ['Sleep stage W', 'Sleep stage 1']"
            )
    is_suffix = isinstance(annotations, str) and annotations.isalnum()
    if not is_suffix and annotations not in (True, False):
        raise ConfigError(
            "Biosignals: `annotations` must be True, False or a suffix without a dot, such as "
            f"'atr', but is {annotations!r}. Pass one of these"
        )


def _check_pieces(recording: Recording, gaps: str) -> None:
    """Raise if a recording cannot be a sequence.

    Raises:
        DataError: If it has gaps and ``gaps`` is ``"error"``, or has only annotations.
    """
    if recording.part is not None and gaps == "error":
        raise make_error(
            recording.name,
            "must be without gaps, but is discontinuous (EDF+D, BDF+D). Pass "
            "Biosignals(gaps='split'): each piece without a gap becomes a sequence",
        )
    if not recording.channels:
        raise make_error(
            recording.name,
            "must have a channel of samples, but has only annotations. Exclude it with a glob, "
            "such as 'recordings/*-PSG.edf'",
        )


def _format_id(recording: Recording) -> str:
    return recording.name if recording.part is None else f"{recording.name}/{recording.part}"


def _make_ragged(events: Sequence[Events]) -> dict[str, RaggedValues]:
    offsets = np.concatenate([[0], np.cumsum([len(each.texts) for each in events])])
    onsets = np.concatenate([each.onsets for each in events])
    durations = np.concatenate([each.durations for each in events])
    return {
        "onset": RaggedValues(_EVENT, onsets, offsets.astype(np.int64)),
        "duration": RaggedValues(_EVENT, durations, offsets.astype(np.int64)),
    }


def _make_labels(
    events: Sequence[Events], signal: SignalField, codes: Mapping[str, int]
) -> StepLabels:
    """Return the label of each timestep; an event without a duration labels one timestep."""
    runs: list[NDArray[np.int64]] = []
    edges: list[NDArray[np.int64]] = []
    for each, length, exact_rate in zip(events, signal.lengths.tolist(), signal.rates, strict=True):
        rate = float(exact_rate)
        chosen = [at for at, text in enumerate(each.texts) if text in codes]
        starts = np.rint(each.onsets[chosen] * rate).astype(np.int64)
        stops = np.rint((each.onsets[chosen] + each.durations[chosen]) * rate).astype(np.int64)
        stops = np.clip(np.maximum(stops, starts + 1), 0, length)
        starts = np.clip(starts, 0, length)
        its_edges = np.unique(np.concatenate([[0, length], starts, stops]))
        its_codes = np.full(len(its_edges) - 1, -1, np.int64)
        firsts, lasts = np.searchsorted(its_edges, starts), np.searchsorted(its_edges, stops)
        for at, first, last in zip(chosen, firsts.tolist(), lasts.tolist(), strict=True):
            its_codes[first:last] = codes[each.texts[at]]
        runs.append(its_codes)
        edges.append(its_edges)
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in runs])]).astype(np.int64)
    return StepLabels(signal.axis, np.concatenate(runs), np.concatenate(edges), offsets)


@hookimpl
def seqdata_register_backends() -> Mapping[str, Any]:
    """Register the backend ``biosignals``."""
    return {"biosignals": Biosignals()}
