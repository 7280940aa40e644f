"""The manifest of a store: its schema, its files, and their digests.

``seqdata.json`` in the store's folder is written last and is the commit.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seqdata.protocols import Field
from seqdata.storage.arrow.lengths_file import LengthsFile
from seqdata.storage.find_files import STORE_MANIFEST
from seqdata.storage.integrity.checksums import ChecksumFile, ChecksumSpec
from seqdata.storage.writing.staging_dir import StoreFiles

MANIFEST = STORE_MANIFEST
STORE_FILES = StoreFiles(
    MANIFEST, re.compile(r"part-\d{5,}\.(arrow|crc)|lengths-[A-Za-z0-9_-]+\.u(32|64)")
)
FORMAT = "seqdata"
VERSION = 1
DIGEST_PLACEHOLDER = "0" * 64  # placeholder for the digest of a text while it is computed
_FINGERPRINTED_KEYS = ("format", "version", "sequences", "key", "fields", "lengths", "shards")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowShard:
    """One storage file.

    Attributes:
        file: Its name in the store's folder.
        sequences: Number of its sequences.
        bytes: Its size.
        footer_bytes: Size of the Arrow footer at its end, with the magic.
        footer_sha256: Digest of these bytes, checked when the store is opened.
        sha256: Digest of the whole file, checked by ``seqdata verify``.
        timesteps: Axis -> timesteps of all its sequences.
        buffers: Field -> (position, bytes) of its values, then of its offsets if it has any.
        checksums: The file and ranges of its checksums; None: it has none.
    """

    file: str
    sequences: int
    bytes: int
    footer_bytes: int
    footer_sha256: str
    sha256: str
    timesteps: Mapping[str, int]
    buffers: Mapping[str, tuple[tuple[int, int], ...]]
    checksums: ChecksumFile | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of ``seqdata.json``.

    Attributes:
        fields: Name -> field.
        key: The ``str`` field of ids; None: a sequence is named by its number.
        sequences: Number of sequences.
        lengths: Axis -> its file of lengths.
        shards: In the order of their sequences.
        checksums: Their algorithm and block size; None: no shard has checksums.
        statistics: Statistics of blocks of sequences; None: none were computed.
        shuffle: The seed of the random order of its sequences; None: they are in the order given.
    """

    fields: Mapping[str, Field]
    key: str | None
    sequences: int
    lengths: Mapping[str, LengthsFile]
    shards: tuple[ArrowShard, ...]
    checksums: ChecksumSpec | None = None
    statistics: Mapping[str, Any] | None = None
    shuffle: int | None = None

    @property
    def fingerprint(self) -> str:
        """Digest of schema, lengths, ids and content, through the digests of the files (32 hex)."""
        return compute_fingerprint(_to_json(self))


def compute_fingerprint(content: Mapping[str, Any]) -> str:
    """Return the digest of a manifest's facts about the data (32 hex digits)."""
    chosen = {name: content.get(name) for name in _FINGERPRINTED_KEYS}
    return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:32]


def _to_json(manifest: Manifest) -> dict[str, Any]:
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
            axis: {
                "file": lengths_file.file,
                "dtype": lengths_file.dtype,
                "sha256": lengths_file.sha256,
            }
            for axis, lengths_file in manifest.lengths.items()
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
    """Return the text of ``seqdata.json``, which ends with a digest of the text."""
    document = _to_json(manifest) | {"fingerprint": manifest.fingerprint}
    if manifest.checksums is not None:
        document["checksums"] = _checksums_to_json(manifest, manifest.checksums)
    if manifest.statistics is not None:
        document["statistics"] = dict(manifest.statistics)
    if manifest.shuffle is not None:
        document["shuffle"] = manifest.shuffle
    return _insert_digest(
        json.dumps(document | {"digest": DIGEST_PLACEHOLDER}, indent=1).encode() + b"\n"
    )


def _checksums_to_json(manifest: Manifest, spec: ChecksumSpec) -> dict[str, Any]:
    files = [shard.checksums for shard in manifest.shards if shard.checksums is not None]
    return {
        "algorithm": spec.algorithm,
        "block": spec.bytes_per_checksum,
        "lengths": {
            axis: checksum_file.checksum for axis, checksum_file in manifest.lengths.items()
        },
        "shards": [
            {
                "file": checksum_file.file,
                "bytes": checksum_file.bytes,
                "sha256": checksum_file.sha256,
                "places": {
                    name: [list(place) for place in both]
                    for name, both in checksum_file.places.items()
                },
            }
            for checksum_file in files
        ],
    }


def _insert_digest(text: bytes) -> bytes:
    """Replace the last placeholder of a text by its digest."""
    before, _, after = text.rpartition(DIGEST_PLACEHOLDER.encode())
    return before + hashlib.sha256(text).hexdigest().encode() + after


def compute_digest(text: bytes, recorded: str) -> str:
    """Return the expected digest of a text that has ``recorded`` in place of the placeholder."""
    recorded_bytes = recorded.encode(errors="replace") or DIGEST_PLACEHOLDER.encode()
    before, _, after = text.rpartition(recorded_bytes)
    return hashlib.sha256(before + DIGEST_PLACEHOLDER.encode() + after).hexdigest()


def describe_other_files(names: Sequence[str]) -> str:
    """Return the message about a folder with other files than a store's."""
    found = f"holds {', '.join(names[:5])} and no {MANIFEST!r}" if names else "is empty"
    remedy = "Turn the files into one with `seqdata write`, or name the backend that reads them"
    remedy = remedy if names else "Write one with `seqdata write`"
    return f"must be a store's folder, but {found}. {remedy}"


def describe_missing_manifest(files: int) -> str:
    """Return the message about a folder that has files of a store, but no manifest."""
    return (
        f"is not there, but {files} files of a store are. It is written last: writing was not "
        "finished, or not all was copied. Write the store again, or copy the rest"
    )
