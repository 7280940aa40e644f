"""Manifests of other toolkits as tables of transcripts: folders of Kaldi, cuts of lhotse.

A table is a mapping from columns to lists: ``file`` (or the id of a recording), ``text``, and, if
rows are parts of recordings, ``offset`` and ``duration`` in seconds; ``id`` is that of the
utterance.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seqdata.errors import ConfigError, DataError

JSON_LINES = (".jsonl", ".json", ".ndjson", ".jsonlines", ".jsonl.gz", ".json.gz")
_CUTS = ("MonoCut", "MultiCut")
_TO_END = None


def read_kaldi_folder(folder: str) -> dict[str, list[Any]]:
    """Return the utterances of a data folder of Kaldi.

    It holds ``wav.scp`` and ``text``, and may hold ``segments`` and ``utt2spk``.

    Raises:
        ConfigError: If a file of these is missing, or a recording is the output of a command.
        DataError: If a line is incomplete, or names an utterance or recording that another file
            lacks.
    """
    root = Path(folder)
    files = read_pairs(root / "wav.scp", "the file of each recording")
    for recording, name in files.items():
        if name.endswith("|"):
            raise ConfigError(
                f"{root / 'wav.scp'}: recordings must be files, but {recording!r} is the output of "
                "a command. Run it once: `wav-copy scp:wav.scp ark,scp:...`, or `sph2pipe` by hand"
            )
    texts = read_pairs(root / "text", "the text of each utterance")
    table: dict[str, list[Any]] = {"id": list(texts), "text": list(texts.values())}
    if (root / "segments").exists():
        parts = {key: _read_part(root, key, line) for key, line in _pairs(root / "segments")}
        rows = [_get(root / "segments", parts, key, "utterance") for key in texts]
        recordings = [row[0] for row in rows]
        table["offset"] = [row[1] for row in rows]
        table["duration"] = [row[2] for row in rows]
    else:
        recordings = list(texts)
    table["file"] = [_get(root / "wav.scp", files, key, "recording") for key in recordings]
    if (root / "utt2spk").exists():
        speakers = read_pairs(root / "utt2spk", "the speaker of each utterance")
        table["speaker"] = [_get(root / "utt2spk", speakers, key, "utterance") for key in texts]
    return table


def read_lhotse(path: str) -> dict[str, list[Any]] | None:
    """Return the cuts or supervisions of a manifest of lhotse; None if it is not such a manifest.

    A cut must be of one file. Its text joins the texts of its supervisions with spaces; its speaker
    is the one that all of them name, or "" if they differ.

    Raises:
        ConfigError: If a cut is mixed or padded, or its recording is not one file.
        DataError: If a line is not a JSON object, or a supervision lacks a value.
    """
    table: dict[str, list[Any]] = {}
    for number, line in _read_json_lines(path):
        where = f"{path}: line {number} ({line.get('id')!r})"
        if "sources" in line:
            raise ConfigError(
                f"{where}: must be a cut or a supervision, but is a recording, which has no text. "
                "Pass the manifest of cuts or of supervisions"
            )
        if number == 1 and not ("recording_id" in line or _is_cut(line)):
            return None
        row = _read_cut(where, line) if _is_cut(line) else _read_supervision(where, line)
        for name, value in row.items():
            table.setdefault(name, []).append(value)
    return table or None


def read_pairs(path: Path, meaning: str) -> dict[str, str]:
    """Return first word -> rest of the line, for the lines of a file of Kaldi.

    Args:
        path: The file.
        meaning: Description of the file, for the error.

    Raises:
        ConfigError: If the file does not exist.
        DataError: If a name occurs twice.
    """
    if not path.exists():
        raise ConfigError(
            f"{path.parent}: must hold `{path.name}`, {meaning}, but does not. Check the path"
        )
    found: dict[str, str] = {}
    for key, value in _pairs(path):
        if key in found:
            raise DataError.at(
                f"{path}: each name must occur once, but {key!r} occurs twice. Remove one line",
                file=str(path), sequence=key,
            )  # fmt: skip
        found[key] = value
    return found


def _is_cut(line: dict[str, Any]) -> bool:
    return "supervisions" in line or str(line.get("type", "")).endswith("Cut")


def _read_cut(where: str, cut: dict[str, Any]) -> dict[str, Any]:
    kind = cut.get("type", "MonoCut")
    if kind not in _CUTS or "recording" not in cut:
        found = kind if kind not in _CUTS else "a cut without a recording"
        raise ConfigError(
            f"{where}: must be a cut of one recording, but is {found}. Save the audio of the cuts "
            "as files: `cuts.save_audios(folder)`"
        )
    sources = cut["recording"].get("sources", ())
    if len(sources) != 1 or sources[0].get("type") != "file":
        found = ", ".join(str(source.get("type")) for source in sources) or "none"
        raise ConfigError(
            f"{where}: a recording must be one file, but its sources are {found}. Save it as one: "
            "`cuts.save_audios(folder)`"
        )
    own = cut.get("supervisions", ())
    speakers = {one.get("speaker") or "" for one in own}
    return {
        "id": str(cut["id"]),
        "file": sources[0]["source"],
        "offset": float(cut.get("start", 0.0)),
        "duration": float(cut["duration"]),
        "text": " ".join(one["text"] for one in own if one.get("text")),
        "speaker": speakers.pop() if len(speakers) == 1 else "",
    }


def _read_supervision(where: str, line: dict[str, Any]) -> dict[str, Any]:
    missing = [name for name in ("id", "recording_id", "start", "duration") if name not in line]
    if missing:
        raise DataError.at(
            f"{where}: must have {', '.join(map(repr, missing))}, but has {', '.join(line)}. Pass "
            "a manifest of cuts or of supervisions",
            sequence=str(line.get("id")),
        )
    return {
        "id": str(line["id"]),
        "file": str(line["recording_id"]),
        "offset": float(line["start"]),
        "duration": float(line["duration"]),
        "text": line.get("text") or "",
        "speaker": line.get("speaker") or "",
    }


def _read_json_lines(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8") as file:
        for number, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                line = json.loads(text)
            except ValueError as error:
                raise DataError.at(
                    f"{path}: line {number} must be a JSON object, but is not ({error}). Restore "
                    "the file",
                    file=path,
                ) from error
            if not isinstance(line, dict):
                raise DataError.at(
                    f"{path}: line {number} must be a JSON object, but is a "
                    f"{type(line).__name__}. Write one object per line",
                    file=path,
                )
            yield number, line


def _read_part(root: Path, key: str, line: str) -> tuple[str, float, float | None]:
    """Return recording, offset and duration of a segment, in seconds; None: to its end.

    Raises:
        DataError: If the line is invalid.
    """
    try:
        recording, begin, end = line.split()
        first, last = float(begin), float(end)
    except ValueError:
        raise DataError.at(
            f"{root / 'segments'}: {key!r} must be followed by a recording, and a start and end in "
            f"seconds, but is followed by {line!r}. Restore the file",
            file=str(root / "segments"), sequence=key,
        ) from None  # fmt: skip
    return recording, first, _TO_END if last < 0 else last - first  # -1 is the end, as in Kaldi


def _pairs(path: Path) -> Iterator[tuple[str, str]]:
    with open(path, encoding="utf-8") as file:
        for line in file:
            key, _, value = line.strip().partition(" ")
            if key:
                yield key, value.strip()


def _get(path: str | os.PathLike[str], found: dict[str, Any], key: str, what: str) -> Any:
    if key not in found:
        raise DataError.at(
            f"{os.fspath(path)}: must have the {what} {key!r}, but does not. Run "
            "`utils/fix_data_dir.sh` of Kaldi on the folder",
            file=os.fspath(path), sequence=key,
        )  # fmt: skip
    return found[key]
