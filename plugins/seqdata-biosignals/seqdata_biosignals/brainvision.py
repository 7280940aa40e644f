"""BrainVision: the header (``.vhdr``) of a file of samples (``.eeg``), and its markers (``.vmrk``).

Reads: the content of a header, of markers. Makes: a recording, events.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from fractions import Fraction

from seqdata_biosignals.recording import Channel, Encoding, Events, Recording, SignalFile
from seqdata_biosignals.wfdb import join_path

ENCODINGS: Mapping[str, Encoding] = {
    "INT_16": Encoding("INT_16", "<i2", 16),
    "INT_32": Encoding("INT_32", "<i4", 32),
    "IEEE_FLOAT_32": Encoding("IEEE_FLOAT_32", "<f4", 32),
}
_TITLES = ("Brain Vision Data Exchange Header File", "Brain Vision V-Amp Data Header File",
           "BrainVision Data Exchange Header File")  # fmt: skip
_MICROSECONDS = 1_000_000
Sections = Mapping[str, Mapping[str, str]]


def parse_header(content: bytes, name: str, sizes: Mapping[str, int]) -> Recording:
    """Return the recording that a header describes.

    Args:
        content: The header.
        name: Its path below the location.
        sizes: Path of each existing file of samples -> its size in bytes.

    Raises:
        ValueError: If it is not a valid header, or does not match its file of samples.
    """
    text = _decode(content)
    if not text.startswith(_TITLES):
        raise ValueError(f"must begin with {_TITLES[0]!r}, but begins with {text[:40]!r}")
    sections = _parse_sections(text)
    common = sections.get("common infos", {})
    _check(common, "dataformat", ("BINARY",))
    _check(common, "datatype", ("TIMEDOMAIN",), "TIMEDOMAIN")
    orientation = _check(common, "dataorientation", ("MULTIPLEXED", "VECTORIZED"), "MULTIPLEXED")
    binary = sections.get("binary infos", {})
    encoding = ENCODINGS[_check(binary, "binaryformat", tuple(ENCODINGS))]
    _check(binary, "usebigendianorder", ("NO",), "NO")
    count = _parse_count(common.get("numberofchannels"), "NumberOfChannels")
    interval = _parse_interval(common.get("samplinginterval"))
    path = _find_file(common.get("datafile"), name, "DataFile")
    if path not in sizes:
        raise ValueError(
            f"must have its file of samples {path!r} among the opened files, but does not. Restore "
            "it (if it was renamed, correct `DataFile` in the header), or open the folder that "
            "holds both"
        )
    points, rest = divmod(sizes[path], encoding.count_bytes(count))
    said = common.get("datapoints")
    if rest or (said is not None and int(said or 0) not in (0, points)):
        raise ValueError(
            f"declares {said or 'complete'} samples of {count} channels in {encoding.name} for "
            f"{path!r}, which has {sizes[path]} bytes: {points} samples and {rest} more bytes. "
            "Restore both"
        )
    is_by_channel = orientation == "VECTORIZED"
    block, blocks = (count * points, 1) if is_by_channel else (count, points)
    file = SignalFile(path, 0, encoding, block, blocks, is_by_channel)
    rate = Fraction(_MICROSECONDS) / interval
    channels = []
    for i in range(count):
        said = sections.get("channel infos", {}).get(f"ch{i + 1}")
        if said is None:
            raise ValueError(
                f"must have a line for each of its {count} channels, but has none for Ch{i + 1}"
            )
        first, per_block = (i * points, points) if is_by_channel else (i, 1)
        channels.append(_make_channel(said, rate, first, per_block))
    markers = common.get("markerfile", "")
    events = _find_file(markers, name, "MarkerFile") if markers else ""
    comment = "\n".join(sections.get("comment", {}).values())
    facts = {"patient": "", "recording": "", "start": "", "comments": comment}
    return Recording(name, [file], channels, facts, events)


def list_named(content: bytes, name: str) -> list[str]:
    """Return the paths of the files that a header names.

    Raises:
        ValueError: If it is not a header.
    """
    common = _parse_sections(_decode(content)).get("common infos", {})
    names = [_find_file(common.get("datafile"), name, "DataFile")]
    if common.get("markerfile"):
        names.append(_find_file(common["markerfile"], name, "MarkerFile"))
    return names


def parse_markers(content: bytes, rate: Fraction) -> tuple[Events, str]:
    """Return the events of a marker file, and the start (ISO 8601) of its first segment, or "".

    Args:
        content: The file.
        rate: Samples per second.

    Raises:
        ValueError: If it is damaged.
    """
    markers = _parse_sections(_decode(content)).get("marker infos")
    if markers is None:
        raise ValueError("must have a section [Marker Infos], but has none")
    rows, start = [], ""
    for number, said in markers.items():
        kind, text, position, size, *rest = [*(_unescape(part) for part in said.split(",")), ""]
        if not (position.isdigit() and size.isdigit()):
            raise ValueError(
                f"has the marker {number}={said!r}, but a marker must have position and size"
            )
        if kind == "New Segment" and not start and len(rest) > 1:
            start = _parse_start(rest[1])
        if kind != "New Segment" or position != "1":  # the first is the begin of the recording
            onset = float((int(position) - 1) / rate)
            rows.append((onset, float(int(size) / rate), f"{kind}/{text}"))
    return Events.from_rows(rows), start


def _make_channel(said: str, rate: Fraction, first: int, per_block: int) -> Channel:
    label, _, resolution, unit, *_ = [*(_unescape(part) for part in said.split(",")), "", "", ""]
    try:
        gain, problem = float(resolution or 1), ""
    except ValueError:
        gain, problem = 1.0, f"its header has the resolution {resolution!r}"
    gain = gain or 1.0
    return Channel(label, unit or "µV", gain, 0.0, rate, 0, first, per_block, problem)


def _parse_sections(text: str) -> dict[str, dict[str, str]]:
    """Return section -> key -> value, in lower case; comments have line numbers as keys."""
    sections: dict[str, dict[str, str]] = {}
    section: dict[str, str] = {}
    is_comment = False
    for number, line in enumerate(text.splitlines()):
        title = re.fullmatch(r"\s*\[(.+?)\]\s*", line)
        if title is not None and not is_comment:
            section = sections.setdefault(title[1].lower(), {})
            is_comment = title[1].lower() == "comment"
        elif is_comment:
            section[str(number)] = line
        elif line.strip() and not line.startswith(";"):
            key, _, value = line.partition("=")
            section[key.strip().lower()] = value.strip()
    return sections


def _check(
    section: Mapping[str, str], key: str, allowed: tuple[str, ...], default: str = ""
) -> str:
    value = section.get(key, default).upper() or default
    if value not in allowed:
        raise ValueError(
            f"must have {key} {' or '.join(allowed)}, but has {value!r}. Export it again in this "
            "way, or with pybv"
        )
    return value


def _parse_count(text: str | None, name: str) -> int:
    if not (text or "").isdigit() or not int(text or 0):
        raise ValueError(f"must have {name} above 0, but has {text!r}")
    return int(text or 0)


def _parse_interval(text: str | None) -> Fraction:
    try:
        interval = Fraction(text or "0")
    except (ValueError, ZeroDivisionError):
        interval = Fraction(0)
    if interval <= 0:
        raise ValueError(f"must have a SamplingInterval above 0, but has {text!r}")
    return interval


def _find_file(said: str | None, name: str, key: str) -> str:
    if not said:
        raise ValueError(f"must have a {key}, but has none")
    stem = name.rpartition("/")[2].rpartition(".")[0]
    return join_path(name, said.replace("$b", stem))


def _parse_start(text: str) -> str:
    try:
        return datetime.strptime(text.ljust(20, "0")[:20], "%Y%m%d%H%M%S%f").isoformat()
    except ValueError:  # only zeros where it is unknown
        return ""


def _unescape(text: str) -> str:
    return text.replace(r"\1", ",").strip()


def _decode(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")
