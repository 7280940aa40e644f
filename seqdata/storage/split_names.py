"""Splits in the names of files: ``train-00000-of-00002.parquet`` and ``test.parquet`` are two.

Files of several splits are never one dataset: training data would be evaluated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from seqdata.errors import ConfigError

DATASET_DICT = "dataset_dict.json"
"""The datasets library writes it next to the folders of splits."""
_SPLITS = {
    **dict.fromkeys(("train", "training", "trn"), "train"),
    **dict.fromkeys(("test", "testing", "tst"), "test"),
    **dict.fromkeys(("val", "valid", "validation", "dev", "eval", "evaluation"), "validation"),
}
_SIGN = re.compile("train|trn|test|tst|val|dev", re.IGNORECASE)  # one is in each word
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_ENDING = re.compile(r"(-\d{5}-of-\d{5}.*|\.\w+)$")
_COUNTER = re.compile(r"of|part|shard|chunk", re.IGNORECASE)


class _Mark(NamedTuple):
    """A word that names a split, in the name of a file.

    Attributes:
        split: ``train``, ``test`` or ``validation``.
        pattern: A glob of the files and folders with this word at this position.
        rest: The other words of the name; None where the word is its first or last.
    """

    split: str
    pattern: str
    rest: str | None


def refuse_splits(location: str, names: Iterable[str]) -> None:
    """Raise if files are of several splits.

    A split is the first or last word of a file's name or of a folder above it; a word between
    others counts if files of another split have the same others.

    Args:
        location: The folder of the files, for the message.
        names: The paths of the files below it, in order.

    Raises:
        ConfigError: If they are; it names each split, and a glob of it.
    """
    patterns = find_splits(names)
    if len(patterns) > 1:
        found = ", ".join(f"{split} ({patterns[split]!r})" for split in sorted(patterns))
        globs = [f"{location}/{patterns[split]}" for split in sorted(patterns)]
        choice = "" if "://" in location else f", or pass `split={sorted(patterns)[-1]!r}`"
        raise ConfigError(
            f"{location}: must hold the files of one split, but holds those of {len(patterns)}: "
            f"{found}. Name one by a path or a glob, such as {globs[-1]!r}{choice}; for all of "
            f"them as one dataset, pass a list: {globs}"
        )


def find_splits(names: Iterable[str]) -> dict[str, str]:
    """Return the splits of files, ``train``, ``test`` or ``validation``, with a glob of each.

    Args:
        names: The paths of the files, in order.
    """
    patterns: dict[str, str] = {}
    inner: dict[str, dict[str, _Mark]] = {}
    for name in names:
        mark = _find_mark(name)
        if mark is not None and mark.rest is not None:
            inner.setdefault(mark.rest, {}).setdefault(mark.split, mark)
            if len(inner[mark.rest]) > 1:
                for other in inner[mark.rest].values():
                    patterns.setdefault(other.split, other.pattern)
        elif mark is not None:
            patterns.setdefault(mark.split, mark.pattern)
    return patterns


def choose_split(location: str, names: Sequence[str], split: str) -> str:
    """Return the path or glob, below a folder, of one of the splits that it holds.

    Args:
        location: The folder, for messages.
        names: The paths of all files below it.
        split: The name of a split, as a ``DatasetDict`` has it, or a word for it: ``train``,
            ``val``, ``validation``, ``dev``, ``test``.

    Raises:
        ConfigError: If there is no such split; the message lists the existing ones.
    """
    saved = sorted({name.partition("/")[0] for name in names if "/" in name})
    is_dict = DATASET_DICT in names
    found = dict(zip(saved, saved, strict=True)) if is_dict else find_splits(names)
    chosen = split if split in found else _SPLITS.get(str(split).lower(), split)
    if chosen not in found:
        raise ConfigError(
            f"{location}: `split` must be one of its splits "
            f"({', '.join(sorted(found)) or 'there is none'}), but is {split!r}. Choose another, "
            "or name files by a path or a glob"
        )
    return found[chosen]


def refuse_dataset_dict(location: str, folder: str, content: bytes, names: Sequence[str]) -> None:
    """Raise: a folder is a saved ``DatasetDict``, whose splits are folders of their own.

    Args:
        location: The location, for the message.
        folder: The path of the folder that holds ``DATASET_DICT``.
        content: The bytes of that file.
        names: Paths of files below the folder.

    Raises:
        ConfigError: Always; it names each split.
    """
    try:
        splits = [str(split) for split in json.loads(content)["splits"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        splits = sorted({name.partition("/")[0] for name in names if "/" in name})
    paths = [f"{folder}/{split}" for split in splits]
    raise ConfigError(
        f"{location}: must hold the files of one split, but {folder} holds {DATASET_DICT!r} of a "
        f"DatasetDict with the splits {', '.join(splits) or '(none)'}. Open one of them: "
        f"{' or '.join(map(repr, paths)) or 'there is none'}"
    )


def _find_mark(name: str) -> _Mark | None:
    """Return the mark of the outermost marked folder, else of the file; None if there is none."""
    if not _SIGN.search(name):
        return None
    parts = name.split("/")
    for depth, part in enumerate(parts):
        is_file = depth == len(parts) - 1
        text = _ENDING.sub("", part) if is_file else part
        words = [found for found in _WORD.finditer(text) if not _COUNTER.fullmatch(found[0])]
        last = len(words) - 1
        for at, word in sorted(enumerate(words), key=lambda each: 0 < each[0] < last):
            split, is_inner = _SPLITS.get(word[0].lower()), 0 < at < last
            if split is None or (is_inner and not is_file):
                continue
            others = [other[0].lower() for other in words if other is not word]
            pattern = "/".join([*parts[:depth], f"{text[: word.end()]}*"])
            return _Mark(split, pattern, " ".join(others) if is_inner else None)
    return None
