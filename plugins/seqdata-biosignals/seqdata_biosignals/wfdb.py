"""WFDB: headers (``.hea``), the files that they name, and annotations (``.atr`` and others).

Reads: the content of a header, of annotations. Makes: a recording, events.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from fractions import Fraction

from seqdata_biosignals.recording import Channel, Encoding, Events, Recording, SignalFile

ENCODINGS: Mapping[str, Encoding] = {
    "16": Encoding("format 16", "<i2", 16, 0, -(1 << 15)),
    "24": Encoding("format 24", "i3", 24, 0, -(1 << 23)),
    "32": Encoding("format 32", "<i4", 32, 0, -(1 << 31)),
    "61": Encoding("format 61", ">i2", 16, 0, -(1 << 15)),
    "80": Encoding("format 80", "u1", 8, 128, -(1 << 7)),
    "160": Encoding("format 160", "<u2", 16, 1 << 15, -(1 << 15)),
    "212": Encoding("format 212", "p12", 12, 0, -(1 << 11)),
}
"""Format -> encoding, for the formats that allow access to any sample."""
_SIGNAL = re.compile(
    r"(?P<file>\S+)\s+(?P<format>\d+)(?:x(?P<per_frame>\d+))?(?::(?P<skew>\d+))?"
    r"(?:\+(?P<begin>\d+))?"
    r"(?:\s+(?P<gain>[-+.\deE]+)(?:\((?P<baseline>[-+]?\d+)\))?(?:/(?P<unit>\S+))?"
    r"(?:\s+(?P<resolution>\d+)(?:\s+(?P<zero>[-+]?\d+)(?:\s+(?P<initial>[-+]?\d+)"
    r"(?:\s+(?P<checksum>[-+]?\d+)(?:\s+(?P<size>\d+)(?:\s+(?P<name>.*))?)?)?)?)?)?)?\s*"
)
_RECORD = re.compile(
    r"(?P<name>[^\s/]+)(?:/(?P<segments>\d+))?\s+(?P<signals>\d+)"
    r"(?:\s+(?P<rate>[-+.\deE]+)(?:/[-+.\deE]+(?:\([-+.\deE]+\))?)?"
    r"(?:\s+(?P<frames>\d+)(?:\s+(?P<time>[\d:.]+)(?:\s+(?P<date>[\d/]+))?)?)?)?\s*"
)
_RATE = 250  # frames per second of a header that says none
_GAIN = 200.0  # steps per unit of a signal that says none
_RESOLUTION = "## time resolution:"
_SYMBOLS = ' NLRaVFJASEj/Q~ | sT*D"=pB^t+u?![]en@xf()r'  # of the codes 0 to 41


def parse_header(content: bytes, name: str, sizes: Mapping[str, int]) -> Recording:
    """Return the recording that a header describes.

    Args:
        content: The header.
        name: Its path below the location.
        sizes: Path of each existing file of samples -> its size in bytes.

    Raises:
        ValueError: If it is not a valid header, or does not match the files that it names.
    """
    head, signals, comments = _parse_lines(content)
    rate = _parse_positive(head["rate"] or _RATE, "frequency")
    frames = None if not int(head["frames"] or 0) else int(head["frames"])
    files = _make_files(signals, frames, name, sizes)
    facts = {
        "patient": "", "recording": head["name"], "start": _parse_start(head),
        "comments": "\n".join(comments),
    }  # fmt: skip
    return Recording(name, files, _make_channels(signals, files, rate, name), facts)


def list_named(content: bytes, name: str) -> list[str]:
    """Return the paths of the files that a header names.

    Raises:
        ValueError: If it is not a header.
    """
    named = [signal["file"] for signal in _parse_lines(content)[1]]
    return [join_path(name, file) for file in dict.fromkeys(named)]


def _parse_lines(content: bytes) -> tuple[re.Match[str], list[re.Match[str]], list[str]]:
    """Return the parsed line of the record, the parsed lines of its signals, and comments."""
    lines = [line.strip() for line in content.decode("utf-8", "replace").splitlines()]
    comments = [line.lstrip("# ") for line in lines if line.startswith("#")]
    lines = [line for line in lines if line and not line.startswith("#")]
    head = _RECORD.fullmatch(lines[0]) if lines else None
    if head is None:
        raise ValueError(f"must begin with a line of a record, but has {lines[:1]}. Restore it")
    if head["segments"] is not None:
        raise ValueError(
            f"must be a record without segments, but has {head['segments']}. Move this header "
            "away, or open the headers of its segments, each a recording, with a glob that "
            "excludes it"
        )
    matches = [_SIGNAL.fullmatch(line) for line in lines[1:]]
    signals = [match for match in matches if match is not None]
    if len(signals) != len(matches) or len(signals) != int(head["signals"]):
        raise ValueError(
            f"must have {head['signals']} lines of signals, but has {len(signals)} of "
            f"{len(matches)}. Restore it"
        )
    if not signals:
        raise ValueError("must have a signal, but has none. Move it away")
    return head, signals, comments


def _make_files(
    signals: list[re.Match[str]], frames: int | None, name: str, sizes: Mapping[str, int]
) -> list[SignalFile]:
    """Return the files of signals, and check their sizes."""
    groups: dict[str, list[re.Match[str]]] = {}
    for signal in signals:
        groups.setdefault(join_path(name, signal["file"]), []).append(signal)
    files, counts = [], dict[str, int]()
    for path, those in groups.items():
        formats = {signal["format"] for signal in those}
        encoding = ENCODINGS.get(those[0]["format"])
        if encoding is None or len(formats) != 1:
            raise ValueError(
                f"has signals of format {', '.join(sorted(formats))} in {path!r}, but a file must "
                f"have one of {', '.join(ENCODINGS)}. Write it again with "
                "`wfdb.wrsamp(..., fmt=['16', ...])`"
            )
        if any(int(signal["skew"] or 0) for signal in those):
            raise ValueError(
                "must have signals without a skew, which is not corrected here, but has some in "
                f"{path!r}. Write them again without it (wfdb.rdrecord, wfdb.wrsamp)"
            )
        if path not in sizes:
            raise ValueError(
                f"must have its file of signals {path!r} among the opened files, but does not. "
                "Restore it, or open the folder that holds both"
            )
        begin = max(int(signal["begin"] or 0) for signal in those)
        block = sum(int(signal["per_frame"] or 1) for signal in those)
        room = sizes[path] - begin
        count = room * 8 // encoding.bits // block if frames is None else frames
        counts[path] = count
        must = encoding.count_bytes(count * block)
        slack = 3 if encoding.stored == "p12" else 1  # writers fill up the last pair
        if not must <= room < must + slack:
            raise ValueError(
                f"declares {count} samples of each signal, {must} bytes, from byte {begin} of "
                f"{path!r} on, but there are {max(room, 0)} bytes: "
                + ("it is cut off" if room < must else "the header does not match it")
                + ". Restore both"
            )
        files.append(SignalFile(path, begin, encoding, block, count))
    if len(set(counts.values())) > 1:
        raise ValueError(f"must have the same number of samples in each file, but has {counts}")
    return files


def _make_channels(
    signals: list[re.Match[str]], files: list[SignalFile], rate: Fraction, name: str
) -> list[Channel]:
    places = {file.name: number for number, file in enumerate(files)}
    used = [0] * len(files)
    channels = []
    for number, signal in enumerate(signals):
        file, per_frame = places[join_path(name, signal["file"])], int(signal["per_frame"] or 1)
        steps = float(signal["gain"] or 0) or _GAIN
        zero = int(signal["zero"] or 0)
        baseline = zero if signal["baseline"] is None else int(signal["baseline"])
        label = (signal["name"] or f"signal {number}").strip()
        channels.append(Channel(
            label, signal["unit"] or "mV", 1 / steps, -baseline / steps, rate * per_frame, file,
            used[file], per_frame,
        ))  # fmt: skip
        used[file] += per_frame
    return channels


def join_path(name: str, other: str) -> str:
    """Return the path of a file that a header names, in the folder of the header.

    Raises:
        ValueError: If the name has a folder.
    """
    if "/" in other or "\\" in other or other in ("", "-", "~", "."):
        raise ValueError(
            f"must name files in its own folder, but names {other!r}. Correct the header"
        )
    return f"{name.rpartition('/')[0]}/{other}".lstrip("/")


def _parse_positive(text: object, name: str) -> Fraction:
    try:
        number = Fraction(str(text))
    except (ValueError, ZeroDivisionError):
        number = Fraction(0)
    if number <= 0:
        raise ValueError(f"must have a {name} above 0, but has {text!r}")
    return number


def _parse_start(head: re.Match[str]) -> str:
    if not head["time"] or not head["date"]:
        return ""
    form = "%H:%M:%S.%f" if "." in head["time"] else "%H:%M:%S"
    try:
        return datetime.strptime(f"{head['date']} {head['time']}", f"%d/%m/%Y {form}").isoformat()
    except ValueError:  # 24:00:00 and the like: only a fact
        return ""


_SKIP, _NUM, _SUB, _CHAN, _AUX = 59, 60, 61, 62, 63


def parse_annotations(content: bytes, rate: Fraction) -> Events:
    """Return the events of an annotation file in the MIT format.

    Args:
        content: The file.
        rate: Frames per second of its record; a time resolution in the file takes precedence.

    Raises:
        ValueError: If it is damaged.
    """
    found: list[tuple[int, int, str]] = []  # time, code, text
    at, time = 0, 0
    while True:
        word = _read_word(content, at)
        at += 2
        code, value = word >> 10, word & 0x3FF
        if word == 0:
            break
        if code == _SKIP:
            high, low = _read_word(content, at), _read_word(content, at + 2)
            jump = high << 16 | low
            time += jump - (1 << 32) if jump >> 31 else jump
            at += 4
        elif code == _AUX:
            text = content[at : at + value].split(b"\0")[0]
            at += value + value % 2
            if at > len(content) or not found:
                raise ValueError("has an annotation that does not end: it is cut off")
            found[-1] = (*found[-1][:2], text.decode("utf-8", "replace").strip())
        elif code not in (_NUM, _SUB, _CHAN):
            time += value
            found.append((time, code, ""))
    if at != len(content):
        raise ValueError(f"has {len(content) - at} bytes after its end")
    found, symbols, resolution = _take_definitions(found)
    if resolution:
        rate = _parse_positive(resolution, "time resolution")
    rows = [(float(when / rate), 0.0, _format(code, text, symbols)) for when, code, text in found]
    return Events.from_rows(rows)


def _take_definitions(
    found: list[tuple[int, int, str]],
) -> tuple[list[tuple[int, int, str]], dict[int, str], str]:
    """Return the annotations that are not definitions, code -> symbol, and a time resolution."""
    symbols = {code: symbol for code, symbol in enumerate(_SYMBOLS) if symbol != " "}
    resolution, rest, is_inside = "", [], False
    for when, code, text in found:
        if text.startswith(_RESOLUTION):
            resolution = text[len(_RESOLUTION) :].strip()
        elif text == "## annotation type definitions":
            is_inside = True
        elif text == "## end of definitions":
            is_inside = False
        elif is_inside:
            number, symbol, *_ = [*text.split(maxsplit=2), "", ""]
            symbols |= {int(number): symbol} if number.isdigit() else {}
        elif code or text:  # 0 is no annotation
            rest.append((when, code, text))
    return rest, symbols, resolution


def _format(code: int, text: str, symbols: Mapping[int, str]) -> str:
    return " ".join(filter(None, (symbols.get(code, f"[{code}]"), text)))


def _read_word(content: bytes, at: int) -> int:
    if at + 2 > len(content):
        raise ValueError(
            f"must end with two NUL bytes, but ends after {len(content)} bytes: it is cut off"
        )
    return content[at] | content[at + 1] << 8
