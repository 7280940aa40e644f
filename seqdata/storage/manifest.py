"""The manifest of a store: what was written, where it lies, and how to know it again.

``seqdata.json`` in the store's folder is written last and is the commit. Place in the flow: the
writer makes it, ``parsing`` reads it back. Reads: facts. Makes: JSON.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seqdata.protocols import Field

MANIFEST = "seqdata.json"
FORMAT = "seqdata"
VERSION = 1
_CONTENT = ("format", "version", "sequences", "key", "fields", "lengths", "shards")


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthsFile:
    """The lengths of all sequences along one axis: a raw little-endian array in one file."""

    file: str
    dtype: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One storage file.

    Attributes:
        file: Its name in the store's folder.
        sequences: How many it holds.
        bytes: Its size.
        footer_bytes: Size of the Arrow footer at its end, with the magic.
        footer_sha256: Digest of these bytes, looked at when the store is opened.
        sha256: Digest of the whole file, looked at by ``seqdata verify``.
        timesteps: Axis -> timesteps of all its sequences.
        buffers: Field -> (position, bytes) of its values, then of its offsets where it has any.
    """

    file: str
    sequences: int
    bytes: int
    footer_bytes: int
    footer_sha256: str
    sha256: str
    timesteps: Mapping[str, int]
    buffers: Mapping[str, tuple[tuple[int, int], ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything that opening needs to know.

    Attributes:
        fields: Name -> field.
        key: The ``str`` field of ids; None: a sequence is named by its number.
        sequences: Their number.
        lengths: Axis -> where the lengths lie.
        shards: In the order of their sequences.
        checksums: Where checksums lie; None: there are none.
        statistics: What is known of blocks of sequences; None: nothing.
    """

    fields: Mapping[str, Field]
    key: str | None
    sequences: int
    lengths: Mapping[str, LengthsFile]
    shards: tuple[Shard, ...]
    checksums: Mapping[str, Any] | None = None
    statistics: Mapping[str, Any] | None = None

    @property
    def fingerprint(self) -> str:
        """Digest of schema, lengths, ids and content, through the digests of the files (32 hex)."""
        return fingerprint_of(_content(self))


def fingerprint_of(content: Mapping[str, Any]) -> str:
    """Give the digest of what a manifest says about the data (32 hex digits)."""
    chosen = {name: content.get(name) for name in _CONTENT}
    return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:32]


def _content(manifest: Manifest) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "sequences": manifest.sequences,
        "key": manifest.key,
        "fields": {
            name: {"dtype": field.dtype, "shape": list(field.shape), "axis": field.axis}
            for name, field in manifest.fields.items()
        },
        "lengths": {
            axis: {"file": one.file, "dtype": one.dtype, "sha256": one.sha256}
            for axis, one in manifest.lengths.items()
        },
        "shards": [
            {
                "file": shard.file,
                "sequences": shard.sequences,
                "bytes": shard.bytes,
                "footer_bytes": shard.footer_bytes,
                "footer_sha256": shard.footer_sha256,
                "sha256": shard.sha256,
                "timesteps": dict(shard.timesteps),
                "buffers": {name: [list(b) for b in both] for name, both in shard.buffers.items()},
            }
            for shard in manifest.shards
        ],
    }


def dump_manifest(manifest: Manifest) -> bytes:
    """Give the text of ``seqdata.json``."""
    whole = _content(manifest) | {"fingerprint": manifest.fingerprint}
    for name, value in (("checksums", manifest.checksums), ("statistics", manifest.statistics)):
        if value is not None:
            whole[name] = dict(value)
    return json.dumps(whole, indent=1).encode() + b"\n"
