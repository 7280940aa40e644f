"""The record of tokens: which tokenizer, options and files made them, next to their store.

It is written when the store is complete. A second record describes the tokens that are being
written, so that an interrupted run is continued only for the same tokenizer and corpus.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from seqdata_text.corpus import FileState
from seqdata_text.tokenizer import Tokenizer, load_saved

RECORD = "seqdata-text.json"
PENDING = "seqdata-text-pending.json"
_FORMAT = "seqdata-text"
_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Record:
    """Record of how the tokens of a folder were made.

    Attributes:
        tokenizer: Kind, name, digest and special tokens of the tokenizer, and the file of its copy.
        options: The options that tokens depend on.
        states: Name, size and time of each file of the corpus.
        digests: The SHA-256 of each file.
        fingerprint: Fingerprint of the store; empty while it is written.
        version: Version of tokenization in this package; tokens of another version are not reused.
    """

    tokenizer: Mapping[str, Any]
    options: Mapping[str, Any]
    states: Sequence[FileState]
    digests: Sequence[str]
    fingerprint: str = ""
    version: int = _VERSION

    def is_same(self, other: Record) -> bool:
        """Return whether another record is of the same tokens; times of files are ignored."""
        return not self.describe_changes(other)

    def describe_changes(self, other: Record) -> str:
        """Return how another record differs in what tokens depend on; empty if it does not."""
        changes = []
        if self.tokenizer["digest"] != other.tokenizer["digest"]:
            changes.append(f"the tokenizer changed ({_name(self)}, now {_name(other)})")
        changes += [
            f"`{name}` was {self.options.get(name)!r}, now {value!r}"
            for name, value in other.options.items()
            if self.options.get(name) != value
        ]
        if self.version != other.version:
            changes.append("this version of seqdata-text makes different tokens")
        before = dict(zip((state.name for state in self.states), self.digests, strict=True))
        after = dict(zip((state.name for state in other.states), other.digests, strict=True))
        both = before.keys() & after.keys()
        for count, what in (
            (sum(before[name] != after[name] for name in both), "changed"),
            (len(after.keys() - both), "new"),
            (len(before.keys() - both), "removed"),
        ):
            if count:
                changes.append(f"{count} file{'s' * (count > 1)} of the corpus {what}")
        if not changes and list(before) != list(after):
            changes.append("the files of the corpus are in another order")
        return ", ".join(changes)

    def load_tokenizer(self, folder: Path) -> Tokenizer:
        """Return the tokenizer from its copy, with the special tokens that were used.

        Raises:
            ConfigError: If the copy is missing or was changed.
        """
        of = self.tokenizer
        path = str(folder / of["file"])
        saved = load_saved(path, of["kind"], of["digest"], of["eos"], of["bos"])
        used = {role: of[f"{role}_id"] for role in ("eos", "bos") if of[f"{role}_id"] is not None}
        return replace(saved, **used) if used else saved


def _name(record: Record) -> str:
    return f"{record.tokenizer['name']} {record.tokenizer['digest'][:8]}"


def name_copy(tokenizer: Tokenizer) -> str:
    """Return the name of the copy of a tokenizer next to its tokens."""
    suffix = "model" if tokenizer.kind == "sentencepiece" else "json"
    return f"tokenizer-{tokenizer.digest[:8]}.{suffix}"


def read_record(folder: Path, name: str = RECORD) -> Record | None:
    """Return a record; None if there is none, or it is of another program or damaged."""
    path = folder / name
    try:
        parsed = json.loads(path.read_bytes())
        if parsed.pop("format") != _FORMAT:
            return None
        parsed["states"] = [FileState(*state) for state in parsed["states"]]
        if len(parsed["states"]) != len(parsed["digests"]):
            return None
        return Record(**parsed)
    except FileNotFoundError:
        return None
    except (NotADirectoryError, ValueError, KeyError, TypeError, AttributeError):
        return None  # tokens without a valid record are never taken for those of a corpus


def write_record(folder: Path, record: Record, name: str = RECORD) -> None:
    """Write a record atomically."""
    content = json.dumps({"format": _FORMAT, **asdict(record)}, indent=1).encode()
    write_file(folder / name, content)


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    with hidden.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(hidden, path)
