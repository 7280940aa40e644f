"""EDF, EDF+, BDF and BDF+: the header, the annotations of all records, and gaps between them.

A record has the samples of one channel after the other. Reads: bytes of a file. Makes: its
channels, and the positions of its samples and of the texts of its annotations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from seqdata.backends import RandomAccessFile
from seqdata_biosignals.recording import Channel, Encoding, SignalFile

SUFFIXES = (".edf", ".bdf")
_HEAD = 256  # bytes of the header, and of each channel's part of it
_MAGICS = {b"0       ": Encoding("EDF", "<i2", 16), b"\xffBIOSEMI": Encoding("BDF", "i3", 24)}
_WIDTHS = (("label", 16), ("transducer", 80), ("unit", 8), ("physical_min", 8),
           ("physical_max", 8), ("digital_min", 8), ("digital_max", 8), ("filter", 80),
           ("samples", 8), ("reserved", 32))  # fmt: skip
_ANNOTATIONS = ("EDF Annotations", "BDF Annotations")
_CENTURY = 85  # years from 85 on are of 1900
_MANY_SAMPLES = 1 << 30  # of a record


@dataclass(frozen=True, slots=True, eq=False)
class EdfHeader:
    """The header of an EDF or BDF file.

    Attributes:
        encoding: How samples are stored.
        size: Its size in bytes.
        records: Number of records that it declares; -1: unknown.
        seconds: Duration of a record; 0 if the file has only annotations.
        kind: ``"EDF+C"``, ``"EDF+D"``, ``"BDF+C"``, ``"BDF+D"``, or "".
        facts: Values of ``recording.FACTS``.
        columns: Name of an entry of the header -> its string for each channel.
        samples: Number of samples of each channel in a record.
    """

    encoding: Encoding
    size: int
    records: int
    seconds: Fraction
    kind: str
    facts: Mapping[str, str]
    columns: Mapping[str, Sequence[str]]
    samples: Sequence[int]

    @property
    def record_samples(self) -> int:
        """Number of samples of a record, over all channels."""
        return sum(self.samples)

    @property
    def record_bytes(self) -> int:
        """Size of a record in bytes."""
        return self.encoding.count_bytes(self.record_samples)

    @property
    def annotation_ranges(self) -> list[tuple[int, int]]:
        """First byte in a record, and one past the last, of each channel of annotations."""
        ranges, at = [], 0
        for label, count in zip(self.columns["label"], self.samples, strict=True):
            size = self.encoding.count_bytes(count)
            if label in _ANNOTATIONS and self.kind:
                ranges.append((at, at + size))
            at += size
        return ranges

    def make_channels(self) -> list[Channel]:
        """Return the channels that are not annotations."""
        channels, at = [], 0
        columns = self.columns
        for i, (label, count) in enumerate(zip(columns["label"], self.samples, strict=True)):
            if not (label in _ANNOTATIONS and self.kind) and self.seconds:
                gain, offset, problem = _find_scale(columns, i)
                rate = Fraction(count) / self.seconds
                channels.append(Channel(
                    label, columns["unit"][i], gain, offset, rate, 0, at, count, problem
                ))  # fmt: skip
            at += count
        return channels

    def make_file(self, name: str, blocks: int) -> SignalFile:
        """Return the description of the samples of a run of ``blocks`` records."""
        return SignalFile(name, 0, self.encoding, self.record_samples, blocks)


def parse_header(content: bytes) -> EdfHeader:
    """Return the header at the beginning of a file.

    Args:
        content: The start of the file, which includes the header.

    Raises:
        ValueError: If it is not a valid header.
    """
    encoding = _MAGICS.get(content[:8])
    if encoding is None:
        raise ValueError(
            f"must begin with '0' (EDF) or 255, 'BIOSEMI' (BDF), but begins with {content[:8]!r}: "
            "it has another format"
        )
    if len(content) < _HEAD:
        raise ValueError(f"must have a header of {_HEAD} bytes, but has {len(content)}")
    count = _parse_int(content[252:256], "number of signals")
    size = _HEAD * (count + 1)
    if count < 1 or len(content) < size:
        raise ValueError(
            f"must have a header of {size} bytes for its {count} signals, but has {len(content)}"
        )
    if _parse_int(content[184:192], "size of its header") != size:
        raise ValueError(
            f"must have a header of {size} bytes for its {count} signals, but declares "
            f"{content[184:192].decode('latin-1').strip()}"
        )
    columns, at = {}, _HEAD
    for name, width in _WIDTHS:
        fields = [content[at + i * width : at + (i + 1) * width] for i in range(count)]
        columns[name], at = list(map(_decode, fields)), at + width * count
    seconds = _parse_fraction(content[244:252], "duration of a record")
    samples = [_parse_int(text.encode(), "samples of a record") for text in columns["samples"]]
    if seconds < 0 or min(samples) < 0 or not 0 < sum(samples) < _MANY_SAMPLES:
        raise ValueError(f"has records of {float(seconds)} seconds with {samples} samples")
    kind = _decode(content[192:197])
    return EdfHeader(
        encoding, size, _parse_int(content[236:244], "number of records"), seconds,
        kind if kind[3:] in ("+C", "+D") else "", _make_facts(content), columns, samples,
    )  # fmt: skip


def read_header(file: RandomAccessFile) -> EdfHeader:
    """Return the header of a file, and check that the size of the file matches it.

    Raises:
        ValueError: If it is not a complete EDF or BDF file.
    """
    head = file.read(0, _HEAD)
    if len(head) == _HEAD and head[:8] in _MAGICS:
        count = _parse_int(head[252:256], "number of signals")
        head = file.read(0, _HEAD * (max(count, 0) + 1))
    header = parse_header(head)
    whole, rest = divmod(file.size - header.size, header.record_bytes)
    if header.records < 0:
        raise ValueError(
            "is still being written, or its writer was stopped: its header declares "
            f"{header.records} records. Wait until it is closed. If its writer was stopped, write "
            f"{whole}, its number of complete records, into bytes 236..244 of a copy, and truncate "
            f"the copy to {header.size + whole * header.record_bytes} bytes"
        )
    if (whole, rest) != (header.records, 0):
        is_short = whole < header.records
        raise ValueError(
            f"must have {header.size + header.records * header.record_bytes} bytes for the "
            f"{header.records} records that its header declares, but has {file.size}: "
            + ("it is cut off" if is_short else "its header does not match its content")
            + f". Restore it; or write {whole} into bytes 236..244 of a copy, and truncate it to "
            f"{header.size + whole * header.record_bytes} bytes"
        )
    return header


@dataclass(frozen=True, slots=True)
class Annotation:
    """One annotation.

    Attributes:
        onset: Its onset in seconds.
        duration: Its duration in seconds.
        begin: First byte of its text in the file.
        end: One past the last byte of its text.
    """

    onset: float
    duration: float
    begin: int
    end: int


def read_annotations(
    file: RandomAccessFile, header: EdfHeader
) -> tuple[list[Annotation], list[float]]:
    """Return all annotations of a file, and the onset of each record in seconds, if stored.

    Raises:
        ValueError: If the annotations are damaged.
    """
    found: list[Annotation] = []
    onsets: list[float] = []
    ranges = header.annotation_ranges
    for record in range(header.records if ranges else 0):
        at = header.size + record * header.record_bytes
        for number, (first, stop) in enumerate(ranges):
            raw = file.read(at + first, at + stop)
            try:
                those = list(_iter_annotations(raw, at + first))
            except ValueError as problem:
                raise ValueError(
                    f"has damaged annotations in its record {record}, bytes "
                    f"{at + first}..{at + stop} ({problem})"
                ) from problem
            if number == 0:
                if not those or those[0].begin != those[0].end:
                    raise ValueError(
                        f"must have the time of its record {record} at byte {at + first}, as files "
                        f"of {header.kind} do, but does not"
                    )
                onsets.append(those[0].onset)
            found += [each for each in those if each.begin != each.end]
    return found, onsets


def find_runs(header: EdfHeader, onsets: Sequence[float]) -> list[tuple[int, int]]:
    """Return the first record and one past the last of each run of records without a gap.

    Raises:
        ValueError: If records overlap.
    """
    if not header.kind.endswith("D") or not header.seconds or not onsets:
        return [(0, header.records)]
    seconds = float(header.seconds)
    slack = seconds / max(header.samples) / 2  # half a sample of the fastest channel
    firsts = [0]
    for record in range(1, len(onsets)):
        gap = onsets[record] - onsets[record - 1] - seconds
        if gap < -slack:
            raise ValueError(
                f"has a record {record} that begins at {onsets[record]} s, before the one before "
                f"it ends ({onsets[record - 1] + seconds} s)"
            )
        if gap > slack:
            firsts.append(record)
    return list(zip(firsts, [*firsts[1:], len(onsets)], strict=True))


_NUMBER = re.compile(rb"[+-]\d+(\.\d*)?")
_DURATION = re.compile(rb"\d+(\.\d*)?")


def _iter_annotations(raw: bytes, base: int) -> Iterator[Annotation]:
    """Yield the annotations of one channel in one record, also those with an empty text."""
    at = 0
    while at < len(raw):
        end = raw.find(b"\0", at)
        if end == at:
            at += 1
            continue
        if end < 0 or raw[end - 1 : end] != b"\x14":
            raise ValueError("a list does not end")
        head, *texts = raw[at : end - 1].split(b"\x14")
        onset, has_duration, duration = head.partition(b"\x15")
        if not _NUMBER.fullmatch(onset) or (has_duration and not _DURATION.fullmatch(duration)):
            raise ValueError(f"{head!r} is not a valid time")
        begin = base + at + len(head) + 1
        for text in texts:
            yield Annotation(float(onset), float(duration or 0), begin, begin + len(text))
            begin += len(text) + 1
        at = end + 1


def _find_scale(columns: Mapping[str, Sequence[str]], i: int) -> tuple[float, float, str]:
    """Return gain and offset of a channel, and the reason why it has none, or ""."""
    names = ("physical_min", "physical_max", "digital_min", "digital_max")
    try:
        low, high, stored_low, stored_high = (float(columns[name][i]) for name in names)
    except ValueError:
        said = ", ".join(f"{name}={columns[name][i]!r}" for name in names)
        return 1.0, 0.0, f"its header has {said}, which must be numbers"
    if stored_low >= stored_high or low == high:
        return 1.0, 0.0, (
            f"its header maps {stored_low:g}..{stored_high:g} to {low:g}..{high:g}, which is not "
            "a scale"
        )  # fmt: skip
    gain = (high - low) / (stored_high - stored_low)
    return gain, low - gain * stored_low, ""


def _make_facts(content: bytes) -> dict[str, str]:
    date = f"{_decode(content[168:176])} {_decode(content[176:184])}"
    try:
        day, month, year, hour, minute, second = map(int, re.split(r"[. :]", date))
        start = datetime(
            (1900 if year >= _CENTURY else 2000) + year, month, day, hour, minute, second
        ).isoformat()
    except ValueError:  # anonymized files have others
        start = ""
    patient, recording = _decode(content[8:88]), _decode(content[88:168])
    return {"patient": patient, "recording": recording, "start": start, "comments": ""}


def _decode(raw: bytes) -> str:
    try:
        return raw.decode().strip(" \0")
    except UnicodeDecodeError:  # micro signs of old writers
        return raw.decode("latin-1").strip(" \0")


def _parse_int(raw: bytes, name: str) -> int:
    try:
        return int(raw)
    except ValueError:
        raise ValueError(f"must have the {name} as a number, but has {raw!r}") from None


def _parse_fraction(raw: bytes, name: str) -> Fraction:
    try:
        return Fraction(_decode(raw))
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"must have the {name} as a number, but has {raw!r}") from None
