"""The Arrow store: mapped shards, opened by their manifest and read without pyarrow.

Place in the flow: a location becomes a store. Reads: manifest, lengths, spans. Makes: columns over
mapped bytes.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, DataError, IncompleteDatasetError
from seqdata.kernel.dispatch import kernel
from seqdata.protocols import Field, Store
from seqdata.storage.arrow.manifest import MANIFEST, Manifest
from seqdata.storage.arrow.manifest_parser import load_manifest
from seqdata.storage.arrow.mapped_files import (
    Mapped,
    checks_of,
    count_checksums,
    map_files,
    source_over,
)
from seqdata.storage.columns import Layout, Source
from seqdata.storage.data_location import Place
from seqdata.storage.fields import default_axis, field_width, no_such
from seqdata.storage.integrity.verified_bitmap import SharedBits
from seqdata.storage.integrity.verify import mode_of
from seqdata.storage.local_files import check_same, local_path
from seqdata.storage.remote.options import Remote, refuse_remote
from seqdata.storage.remote.urls import is_remote
from seqdata.storage.store_fields import Sources, keyed
from seqdata.storage.text_bytes import Raw
from seqdata.storage.text_source import TextSource
from seqdata.storage.views import SequenceStore
from seqdata.storage.writing.staged_shards import left_behind
from seqdata.storage.writing.staging_dir import OWN_FILES, unfinished

_MAGIC = b"ARROW1"


def open_arrow(
    location: str | os.PathLike[str],
    *,
    verify: str | None = None,
    remote: str | Remote | None = None,
) -> Store:
    """Open a store that ``write_arrow`` wrote.

    Every shard's size and footer are checked, and the lengths; of the data nothing is read.

    Args:
        location: Its folder: a path or a URL.
        verify: When checksums of the data are looked at: ``"first_read"``, ``"always"``, or
            ``"off"``: never. None: at the first read, where the store has checksums.
        remote: How a URL is read; None: through the cache.

    Raises:
        ConfigError: If the location is not there, or ``verify`` cannot be done.
        IncompleteDatasetError: If its writing was never finished.
        MissingShardError: If a shard is not there.
        CorruptShardError: If a shard is not what was written.
        DataError: If it is no store, or its manifest cannot be true.
    """
    if is_remote(location):
        from seqdata.storage.arrow.open_remote import open_remote  # local stores do without

        return open_remote(location, verify=verify, remote=remote)
    refuse_remote(location, remote)
    return open_local(location, verify=verify)


def open_local(location: str | os.PathLike[str], *, verify: str | None = None) -> ArrowStore:
    """Open a store on this machine; see ``open_arrow``."""
    root = local_path(location)
    if not os.path.lexists(root / MANIFEST):  # a link that leads nowhere is told as such
        raise _no_store(root)
    manifest = load_manifest(root)
    mode = mode_of(verify, manifest.checksums, str(root))
    return _open(root, manifest, mode, None, manifest.fingerprint)


def _open(
    root: Path, manifest: Manifest, verify: str, bits: SharedBits | None, fingerprint: str
) -> ArrowStore:
    """Open a store by its manifest; ``bits`` are those of the process that sent it here."""
    mapped = map_files(root, manifest, kernel(), verified=verify != "off")
    if verify == "first_read":
        count = count_checksums(manifest)
        if bits is None or (bits.count, bits.of) != (count, fingerprint):
            bits = SharedBits(count, fingerprint)
    kept = bits if verify == "first_read" else None
    return ArrowStore(root, manifest, mapped, verify, kept, fingerprint)


def _reopen(location: str, verify: str, bits: SharedBits | None, fingerprint: str) -> ArrowStore:
    root = Path(location)
    manifest = load_manifest(root)
    check_same(Place(dataset=location), manifest.fingerprint, fingerprint)
    return _open(root, manifest, verify, bits, fingerprint)


class ArrowStore(SequenceStore):
    """A store of mapped Arrow shards. Made by ``open_arrow``.

    Args:
        root: Its folder.
        manifest: What was written.
        mapped: Its files.
        verify: When checksums are looked at: off, first_read or always.
        bits: Those that say which were found right, for first_read.
        fingerprint: Of the manifest.
    """

    def __init__(
        self,
        root: Path,
        manifest: Manifest,
        mapped: Mapped,
        verify: str,
        bits: SharedBits | None,
        fingerprint: str,
    ) -> None:
        self._root = root
        self._manifest = manifest
        self._mappings = mappings = mapped.shards
        self._lengths_of = lengths_of = mapped.lengths_of
        self._verify = verify
        self._bits = bits
        checks = checks_of(manifest, mapped, bits) or {}
        self._fingerprint = fingerprint
        counts = [shard.sequences for shard in manifest.shards]
        starts = [0, *itertools.accumulate(counts)]
        self._names = [shard.file for shard in manifest.shards]
        file_of = functools.partial(_file, str(root), self._names)
        layout = Layout(str(root), self._names, starts, lengths_of, file_of)
        if manifest.key is not None:
            ids = source_over(manifest.key, manifest, layout, mappings, checks)
            layout = layout if isinstance(ids, Source) else keyed(layout, ids)
        fields = manifest.fields
        sources = {name: source_over(name, manifest, layout, mappings, checks) for name in fields}
        self._sources = Sources(layout, sources, manifest.key)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (str(self._root), self._verify, self._bits, self.fingerprint)

    def __len__(self) -> int:
        return self._manifest.sequences

    @property
    def location(self) -> str:
        """The folder."""
        return str(self._root)

    @property
    def verify(self) -> str:
        """When checksums are looked at: off, first_read or always."""
        return self._verify

    @property
    def manifest(self) -> Manifest:
        """What was written, and where it lies."""
        return self._manifest

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> field."""
        return self._manifest.fields

    @property
    def lengths(self) -> NDArray[Any]:
        """Timesteps of each sequence along the default axis, integers (sequences,); mapped."""
        return self._lengths_of[default_axis(self._lengths_of)]

    @property
    def lengths_of(self) -> Mapping[str, NDArray[Any]]:
        """Axis -> timesteps of each sequence, integers (sequences,); mapped."""
        return self._lengths_of

    @property
    def shards(self) -> Sequence[str]:
        """Names of the shards, in the order of their sequences."""
        return self._names

    @property
    def fingerprint(self) -> str:
        """Digest of lengths, ids, schema and content (32 hex digits), from the manifest."""
        return self._fingerprint

    def keys(self, numbers: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """Give the ids of sequences."""
        return self._sources.keys(numbers)

    def raw_texts(self, name: str | None, numbers: NDArray[np.int64]) -> Raw:
        """Give the bytes of ids or of a field of texts; see ``raw.RawTexts``."""
        return self._sources.raw_texts(name, numbers)

    def base_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the same numbers: this store is no view."""
        return numbers

    def place(self, number: int) -> Place:
        """Give the place of a sequence, for an error; of one that is not there, the data set's."""
        return self._sources.place(number)

    def read(
        self, spans: NDArray[np.int64], fields: Iterable[str], *, axis: str = "time"
    ) -> dict[str, Any]:
        """Read a batch as columns; see ``protocols.Store.read``."""
        return self._sources.read(spans, fields, axis)

    def populate(self, first: int, stop: int, fields: Iterable[str] | None = None) -> None:
        """Read sequences ``first:stop`` ahead into memory, with large reads; only a hint.

        Args:
            first: First sequence.
            stop: One past the last.
            fields: Names; None: all.

        Raises:
            ConfigError: If a field is not there.
        """
        starts = self._sources.layout.starts
        engine = kernel()
        for name in self.fields if fields is None else fields:
            source = self._sources.by_name.get(name)
            if not isinstance(source, Source | TextSource):
                raise no_such(self.location, "field", name, self.fields)
            for i, shard in enumerate(self._manifest.shards):
                low, high = max(first, starts[i]) - starts[i], min(stop, starts[i + 1]) - starts[i]
                if low >= high:
                    continue
                place, size = shard.buffers[name][0]
                if source.extents is not None:
                    at = shard.buffers[name][1][0]
                    engine.populate(self._mappings[i], at + 8 * low, at + 8 * high + 8)
                    begins, ends = source.extents[i]
                    low, high = int(begins[low]), int(ends[high - 1])
                text = isinstance(source, TextSource)
                width = 1 if text else field_width(self.fields[name])
                until = min(place + high * width, place + size)
                engine.populate(self._mappings[i], place + max(0, low) * width, until)


def _file(location: str, names: Sequence[str], shard: int) -> Place:
    return Place(dataset=location, shard=shard, file=names[shard], verify=True)


def _no_folder(root: Path) -> DataError:
    """Return what lies at a location that is no folder."""
    place = Place(dataset=str(root))
    if not root.is_file():
        return place.error(
            DataError,
            f"is a pipe, a device or a socket, must be a store's folder with {MANIFEST!r}; "
            "check the path",
        )
    try:
        with open(root, "rb") as file:
            arrow = file.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        return place.error(
            DataError, f"cannot be read ({error.strerror}), must be; check its rights"
        )
    what = "a single Arrow file" if arrow else "a file, and no Arrow file"
    return place.error(
        DataError,
        f"is {what}, must be a store's folder with {MANIFEST!r}; turn it into one with "
        "`seqdata write`",
    )


def _no_store(root: Path) -> ConfigError | DataError:
    """Say what lies at a location where there is no manifest."""
    if root.is_symlink() and not root.exists():
        return ConfigError(
            f"{root}: is a link to {os.readlink(root)!r}, which is not there, must lead to a "
            "store's folder; check the path"
        )
    if not root.exists():
        near = root.parent if root.parent.is_dir() else None
        have = sorted(path.name for path in near.iterdir())[:5] if near else []
        found = f"{near} holds {', '.join(have) or 'nothing'}" if near else "nor is its parent"
        return ConfigError(
            f"{root}: is not there ({found}), must be a store's folder; check the path"
        )
    if not root.is_dir():
        return _no_folder(root)
    place = Place(dataset=str(root), file=MANIFEST, part="manifest")
    names = sorted(path.name for path in root.iterdir())
    own = [name for name in names if OWN_FILES.fullmatch(name)]
    if unfinished(root):
        shards, sequences = left_behind(root)
        kept = f"{shards} whole shards ({sequences} sequences) are there, and " if shards else ""
        return place.error(
            IncompleteDatasetError,
            f"is not there, must be: it is written last; writing was not finished: {kept}the same "
            f"call or command goes on {'after them' if shards else 'where it stopped'}",
            shards=shards, sequences=sequences,
        )  # fmt: skip
    if own:
        return place.error(
            IncompleteDatasetError,
            f"is not there, but {len(own)} files of a store are, must be: it is written last; "
            "writing was not finished or not all was copied: write it again, or copy the rest",
        )
    place = Place(dataset=str(root))
    if not names:
        return place.error(DataError, "is empty, must hold a store; write one with `seqdata write`")
    return place.error(
        DataError,
        f"holds {', '.join(names[:5])} but no {MANIFEST!r}, must be a store's folder; turn the "
        "files into one with `seqdata write`",
    )
