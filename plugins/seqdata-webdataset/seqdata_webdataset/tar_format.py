"""Tar shards as a format of the core's sharded writer: members, and the index of each shard."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from seqdata.backends import (
    DataLocation,
    Field,
    PackedShard,
    PackFn,
    ProgressFn,
    ResumeKey,
    dump_index,
    has_digest,
    write_synced,
)
from seqdata_webdataset.encoding import END_OF_ARCHIVE, Encoder, make_member
from seqdata_webdataset.indexed_format import SUFFIX, IndexedTar

INDEX = ".idx"
_PROGRESS_SEQUENCES = 1024  # seconds between two reports of progress
Sample = list[bytes]


@dataclass(frozen=True, slots=True)
class TarFile:
    """A shard in the staging directory.

    Attributes:
        file: Its name; that of its index ends with ``INDEX``.
        sequences: Number of its sequences.
        bytes: Its size.
        sha256: Its digest.
    """

    file: str
    sequences: int
    bytes: int
    sha256: str

    @property
    def index(self) -> str:
        """The name of its index."""
        return self.file.removesuffix(SUFFIX) + INDEX


@dataclass(frozen=True, slots=True)
class TarFormat:
    """Tar shards: a ``ShardFormat`` of the core.

    Attributes:
        fields: Name -> field.
        resume_key: How sequences become shards.
    """

    fields: Mapping[str, Field]
    resume_key: ResumeKey

    suffix: ClassVar[str] = SUFFIX

    def make_packer(self) -> PackFn:
        """Return a packer of shards, one after the other."""
        return partial(_pack, self, self.make_encoder())

    def make_encoder(self) -> Encoder:
        """Return the encoder of sequences.

        Raises:
            ConfigError: If a field's name cannot be an extension.
        """
        return Encoder.of(self.fields, self.resume_key.key)

    def digest(self, sequence: Any, number: int) -> str:
        """Return the digest of a sequence; see ``ShardFormat``."""
        return self.digest_sample(_encode(self.make_encoder(), sequence, number))

    def digest_sample(self, sample: Sample) -> str:
        """Return the digest of a sequence's members and of its fields."""
        digest = hashlib.sha256(repr(sorted(self.fields.items())).encode())
        for member in sample:
            digest.update(member)
        return digest.hexdigest()

    def write(self, folder: Path, packed: PackedShard) -> tuple[TarFile, str, str]:
        """Write a shard and its index; see ``ShardFormat``."""
        members, first, last = packed.content
        path, name = folder / f"{packed.stem}{SUFFIX}", shard_name(packed.number)
        content = np.frombuffer(b"".join([*members, END_OF_ARCHIVE]), dtype=np.uint8)
        with open(path, "wb") as file:
            file.write(content.data)
            file.flush()
            os.fsync(file.fileno())
        index = IndexedTar().make_index(content, name, DataLocation(dataset=str(folder), file=name))
        recorded = self.make_encoder().fields_of_extensions
        tar = TarFile(path.name, packed.sequences, len(content), index.sha256)
        write_synced(folder / tar.index, dump_index(replace(index, declared=recorded)))
        return tar, first, last

    def parse(self, facts: dict[str, Any]) -> TarFile:
        """Return a shard from its JSON."""
        return TarFile(**facts)

    def is_intact(self, folder: Path, files: TarFile) -> bool:
        """Return whether a shard is unchanged, and has an index."""
        has_index = (folder / files.index).is_file()
        return has_index and has_digest(folder / files.file, files.bytes, files.sha256)


def shard_name(number: int) -> str:
    """Return the name of a shard."""
    return f"shard-{number:06d}{SUFFIX}"


def _encode(encoder: Encoder, sequence: Any, number: int) -> Sample:
    """Return the members of a sequence: headers, bytes and padding."""
    key, members = encoder.encode(sequence, number)
    return [make_member(f"{key}.{extension}", content) for extension, content in members]


def _pack(
    tar: TarFormat, encoder: Encoder, rows: Iterator[Any], first: int, on_progress: ProgressFn
) -> tuple[int, int, Any] | None:
    """Pack the sequences of one more shard; see ``PackFn``."""
    members: list[bytes] = []
    samples: list[Sample] = []
    count, size = first, 0
    for sequence in rows:
        sample = _encode(encoder, sequence, count)
        samples = [*samples[:1], sample]  # the first and the last
        members += sample
        size += sum(map(len, sample))
        count += 1
        if count % _PROGRESS_SEQUENCES == 0:
            on_progress(count, size)
        if size >= tar.resume_key.shard_bytes:
            break
    if count == first:
        return None
    on_progress(count, size)
    digests = tar.digest_sample(samples[0]), tar.digest_sample(samples[-1])
    return count - first, size, (members, *digests)
