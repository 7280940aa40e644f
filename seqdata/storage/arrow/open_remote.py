"""Arrow stores behind URLs: opened by their manifest and lengths, their shards fetched on demand.

Place in the flow: a URL becomes a store; shards on demand ask its shards. Reads: the manifest,
lengths, checksums, shards. Makes: fields of shards.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import (
    CorruptShardError,
    DataError,
    IncompleteDatasetError,
    MissingShardError,
    RemoteReadError,
)
from seqdata.protocols import Store
from seqdata.storage.arrow.manifest import (
    MANIFEST,
    STORE_FILES,
    Manifest,
    check_manifest_size,
    describe_missing_manifest,
    describe_other_files,
    parse_manifest,
)
from seqdata.storage.arrow.store import (
    build_fields,
    check_footer,
    check_lengths,
    check_size,
    choose_bits,
    count_checksums,
    load_checksums,
    locate_checksums,
    locate_lengths,
    locate_shard,
    make_layout,
)
from seqdata.storage.data_location import DataLocation, DropFn
from seqdata.storage.fields import kind_of
from seqdata.storage.find_files import describe_folders, find_listed
from seqdata.storage.foreign.file_discovery import is_data_file
from seqdata.storage.integrity.verify import resolve_verify_mode
from seqdata.storage.remote.file_cache import CacheRequest, make_cache
from seqdata.storage.remote.options import Remote, resolve_remote
from seqdata.storage.remote.remote_files import FileStat, RemoteFiles
from seqdata.storage.remote.transport import ForkSafeThreadPool, make_remote_files
from seqdata.storage.remote.urls import WEB, check_url
from seqdata.storage.shards_on_demand import Ranges, ShardRequest, ShardsOnDemand
from seqdata.storage.shared_memory import SharedBits
from seqdata.storage.split_names import DATASET_DICT, refuse_dataset_dict
from seqdata.storage.store import ShardStore, StoreFields, StoreInfo

_OFFSET_BYTES = 8
_MAX_KEPT_OFFSETS = 64  # shards and axes whose offsets are kept


class ArrowShards:
    """The shards of a store behind a URL: ``ShardFiles`` and ``ShardFields``.

    Args:
        files: The folder of the shards.
        manifest: The manifest.
        lengths_of: Axis -> number of timesteps of each sequence, held in the cache.
        is_verified: True if checksums are compared.
        bits: The bits of verified checksums; None: verify each time.
    """

    def __init__(
        self,
        files: RemoteFiles,
        manifest: Manifest,
        lengths_of: Mapping[str, NDArray[Any]],
        is_verified: bool,
        bits: SharedBits | None,
    ) -> None:
        self._files = files
        self._manifest = manifest
        self._is_verified = is_verified
        self._bits = bits
        counts = map(count_checksums, manifest.shards)
        self._first_bits = list(itertools.accumulate(counts, initial=0))
        self._cache = make_cache(files)
        self._checksums: dict[int, Any] = {}  # they are few and stay
        self._offsets: dict[tuple[int, str], NDArray[np.int64]] = {}
        self.remote = files.remote
        self.fields = manifest.fields
        self.ids = manifest.key
        self.sizes = [shard.bytes for shard in manifest.shards]
        self.layout = make_layout(files.location, manifest, lengths_of)

    def opens_for_texts(self, number: int) -> bool:
        """Return whether a copy of a shard is in the cache: none is fetched for strings."""
        return self._cache.has(self.make_request(number))

    def content(self, number: int, release: Callable[[], None]) -> Any:
        """Return the bytes of a shard, fetched where it is not in the cache; see ``ShardFiles``."""
        location = self.layout.locate_file(number)
        return self._cache.acquire_if_room(self.make_request(number), location, release).mapping

    def drop_copy(self, number: int) -> str:
        """Drop the copy of a shard in the cache; see ``ShardFiles``."""
        sha256 = self._manifest.shards[number].sha256
        return self._cache.drop(sha256, self.layout.locate_file(number))

    def file(self, number: int) -> tuple[RemoteFiles, str]:
        """Return the folder of a shard and its name there."""
        return self._files, self._manifest.shards[number].file

    def check(self, number: int) -> FileStat:
        """Compare the size and the footer of a shard; see ``ShardFiles``."""
        shard, location = self._manifest.shards[number], self.layout.locate_file(number)
        stat = self._files.stat(shard.file, location)
        check_size(stat.size, shard.bytes, location)
        self._load_checksums(number)
        start = shard.bytes - shard.footer_bytes
        for is_last_try in (False, True):  # it may have come wrong
            try:
                footer = self._files.read(shard.file, start, shard.bytes, location)
                check_footer(footer, location, shard)
                break
            except CorruptShardError:
                if is_last_try:
                    raise
        return stat

    def offset_ranges(self, number: int, request: ShardRequest) -> Iterator[Ranges]:
        """Yield the ranges of the offsets of strings; offsets of numbers follow from lengths."""
        shard, local = self._manifest.shards[number], request.spans[:, 0]
        for name in request.names:
            if not kind_of(self.fields[name]).is_array:
                begins = shard.buffers[name][1][0] + local * _OFFSET_BYTES
                yield np.stack([begins, begins + 2 * _OFFSET_BYTES], axis=1)

    def fill_offsets(self, number: int, request: ShardRequest, content: Any) -> None:
        """Write the offsets of the numbers of a request, by their lengths."""
        shard, local = self._manifest.shards[number], request.spans[:, 0]
        for name in request.names:
            field = self.fields[name]
            if field.axis is not None:
                position = shard.buffers[name][1][0]
                stored = np.frombuffer(content, "<i8", shard.sequences + 1, position)
                offsets = self._find_offsets(number, field.axis)
                stored[local], stored[local + 1] = offsets[local], offsets[local + 1]

    def build_fields(
        self, shards: range, contents: Sequence[Any], drop: DropFn, *, reuses_bits: bool = True
    ) -> StoreFields:
        """Return the fields over the bytes of some shards; see ``ShardFields``."""

        def drop_with_checksums(number: int) -> str | None:
            self._drop_checksums(number)  # either may be damaged
            return drop(number)

        manifest = self._manifest.select(shards)
        layout = self.layout.select(shards, drop_with_checksums)
        each = [each for each in map(self._load_checksums, shards) if each is not None]
        bits, first_bit = self._bits if reuses_bits else None, self._first_bits[shards.start]
        found = load_checksums(manifest, each, layout.lengths_of, bits, first_bit)
        return build_fields(manifest, layout, contents, found)

    def make_request(self, number: int) -> CacheRequest:
        """Return the request of a shard to the cache."""
        shard = self._manifest.shards[number]
        return CacheRequest(shard.file, shard.bytes, shard.sha256)

    def _find_offsets(self, number: int, axis: str) -> NDArray[np.int64]:
        """Return the offsets of the sequences of a shard, int64 (sequences+1,)."""
        found = self._offsets.get((number, axis))
        if found is None:
            first, stop = self.layout.shard_offsets[number : number + 2]
            found = np.zeros(stop - first + 1, dtype=np.int64)
            np.cumsum(self.layout.lengths_of[axis][first:stop], out=found[1:])
            if len(self._offsets) >= _MAX_KEPT_OFFSETS:
                self._offsets.clear()
            self._offsets[number, axis] = found
        return found

    def _load_checksums(self, number: int) -> Any | None:
        """Return the bytes of a shard's checksums; None if they are not compared."""
        file = self._manifest.shards[number].checksums
        if file is None or not self._is_verified:
            return None
        found = self._checksums.get(number)
        if found is None:
            request = CacheRequest(file.file, file.bytes, file.sha256)
            location = locate_checksums(self._files.location, number, file)
            found = self._checksums[number] = self._cache.read_bytes(request, location)
        return found

    def _drop_checksums(self, number: int) -> None:
        file = self._manifest.shards[number].checksums
        if file is not None and self._checksums.pop(number, None) is not None:
            location = locate_checksums(self._files.location, number, file)
            self._cache.drop(file.sha256, location)


def read_manifest(files: RemoteFiles) -> Manifest:
    """Return the manifest of a remote store.

    Raises:
        MissingShardError: If it does not exist.
        RemoteReadError: If it cannot be read.
        DataError: If it is invalid.
    """
    location = DataLocation(dataset=files.location, file=MANIFEST, file_kind="manifest")
    stat = files.stat(MANIFEST, location)
    check_manifest_size(stat.size, location)
    return parse_manifest(files.read(MANIFEST, 0, stat.size, location), location)


def file_exists(files: RemoteFiles, name: str) -> bool:
    """Return whether a file exists.

    Raises:
        RemoteReadError: If the request fails.
    """
    try:
        files.stat(name)
    except MissingShardError:
        return False
    return True


def open_remote(
    location: str | os.PathLike[str],
    *,
    verify: str | None = None,
    remote: str | Remote | None = None,
) -> Store:
    """Open a store behind a URL; every shard's size is checked, only lengths are read.

    A folder without a manifest, but with Arrow or Parquet files, is opened by ``open_foreign``.

    Args:
        location: The URL of its folder.
        verify: When checksums are compared; see ``open_arrow``.
        remote: Options of reading.

    Raises:
        ConfigError: If the location is invalid, or what it needs is not installed.
        RemoteReadError: If it cannot be read.
        MissingShardError: If a shard is missing, or there is nothing.
        CorruptShardError: If a shard has another size, or the lengths are damaged.
        IncompleteDatasetError: If its writing was never finished.
        DataError: If it is not a store, or its manifest is invalid.
    """
    files = make_remote_files(os.fspath(location), resolve_remote(remote))
    try:
        manifest = read_manifest(files)
    except MissingShardError as error:
        return _open_without_manifest(files, error, location, verify, remote)
    _check_shard_sizes(files, manifest)
    return open_from_manifest(
        files, manifest, resolve_verify_mode(verify, manifest.checksums, files.location), None
    )


def open_from_manifest(
    files: RemoteFiles, manifest: Manifest, verify: str, bits: SharedBits | None
) -> ShardStore:
    """Open a store by its manifest; ``bits`` are those of the process that pickled the store."""
    lengths_of = {axis: _load_lengths(files, manifest, axis, verify) for axis in manifest.lengths}
    bits = choose_bits(verify, bits, manifest, manifest.fingerprint)
    shards = ArrowShards(files, manifest, lengths_of, verify != "off", bits)
    info = StoreInfo(
        label="RemoteStore", location=files.location, fields=manifest.fields, verify=verify,
        bits=bits, manifest=manifest, make_fingerprint=lambda: manifest.fingerprint,
        linked_axes=manifest.linked_axes,
        reopen=lambda _: (open_from_manifest, (files, manifest, verify, bits)),
    )  # fmt: skip
    return ShardStore(info, ShardsOnDemand(shards, shards))


def _load_lengths(files: RemoteFiles, manifest: Manifest, axis: str, verify: str) -> NDArray[Any]:
    """Return the lengths along an axis; a copy in the cache that is damaged is fetched again."""
    cache, dataset = make_cache(files), files.location
    lengths_file, location = manifest.lengths[axis], locate_lengths(dataset, manifest, axis)
    dtype = np.dtype(lengths_file.dtype).newbyteorder("<")
    size = manifest.sequences * dtype.itemsize
    request = CacheRequest(lengths_file.file, size, lengths_file.sha256)
    lengths = np.frombuffer(cache.read_bytes(request, location), dtype=dtype)
    if verify == "off":
        return lengths
    try:
        check_lengths(lengths, dataset, manifest, axis)
    except CorruptShardError:
        cache.drop(lengths_file.sha256, location)
        lengths = np.frombuffer(cache.read_bytes(request, location), dtype=dtype)
        check_lengths(lengths, dataset, manifest, axis)
    return lengths


def _check_shard_sizes(files: RemoteFiles, manifest: Manifest) -> None:
    """Raise if a shard is missing or of another size: by a listing, else one by one."""
    try:
        sizes: Mapping[str, int | None] = files.sizes()
    except (MissingShardError, RemoteReadError):  # web servers
        sizes = {}

    def check(number: int) -> None:
        shard = manifest.shards[number]
        location = locate_shard(files.location, number, shard)
        size = sizes.get(shard.file)
        stat = files.stat(shard.file, location) if size is None else FileStat(size, None)
        check_size(stat.size, shard.bytes, location)

    ForkSafeThreadPool(files.remote.connections).map(check, range(len(manifest.shards)))


def _open_without_manifest(
    files: RemoteFiles,
    missing: MissingShardError,
    location: str | os.PathLike[str],
    verify: str | None,
    remote: str | Remote | None,
) -> Store:
    """Open the Arrow or Parquet files of a location that has no manifest.

    Raises:
        IncompleteDatasetError: If files of a store exist.
        MissingShardError: If there is nothing, or a web server does not list files.
        RemoteReadError: If the files cannot be listed now.
        DataError: If there are other files.
    """
    data_location = DataLocation(dataset=files.location, file=MANIFEST, file_kind="manifest")
    try:
        names = files.names()
    except (MissingShardError, RemoteReadError) as error:
        if error.details.get("transient"):  # whether there are files is not known
            raise
        if check_url(os.fspath(location)) in WEB:
            raise data_location.make_error(
                MissingShardError,
                "is not there. Check the location. A web server does not list files: name those "
                "that are not a store, as 'x.parquet' or 'x-{000..017}.tar'",
            ) from None
        if isinstance(error, MissingShardError):
            raise _make_nothing_error(files) from None
        raise missing from None
    store_files = [name for name in names if STORE_FILES.names.fullmatch(name)]
    if store_files:
        raise data_location.make_error(
            IncompleteDatasetError,
            describe_missing_manifest(len(store_files)),
        )
    if any(map(is_data_file, names)):
        from seqdata.storage.foreign.store import open_foreign  # it opens local files, too

        return open_foreign(location, verify=verify, remote=remote)
    if DATASET_DICT in names:
        content = files.read(DATASET_DICT, 0, files.stat(DATASET_DICT).size)
        refuse_dataset_dict(files.location, files.location, content, names)
    found = find_listed(files.location, (), files.folders(), is_data_file)
    if not names and found.folders:
        raise DataLocation(dataset=files.location).make_error(
            DataError, f"must hold files, but holds folders only{describe_folders(found)}"
        )
    if not names:
        raise _make_nothing_error(files)
    raise DataLocation(dataset=files.location).make_error(
        DataError,
        describe_other_files(names),
    )


def _make_nothing_error(files: RemoteFiles) -> DataError:
    return DataLocation(dataset=files.location).make_error(
        MissingShardError, "is not there: no file or folder has this name. Check the URL"
    )
