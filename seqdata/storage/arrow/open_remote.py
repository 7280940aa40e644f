"""Remote locations to stores: the manifest and lengths are read, the files are looked for."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from seqdata.errors import DataError, IncompleteDatasetError, MissingShardError, RemoteReadError
from seqdata.kernel.dispatch import get_kernel
from seqdata.protocols import Store
from seqdata.storage.arrow.manifest import (
    MANIFEST,
    STORE_FILES,
    Manifest,
    describe_missing_manifest,
    describe_other_files,
)
from seqdata.storage.arrow.manifest_parser import check_manifest_size, parse_manifest
from seqdata.storage.arrow.mapped_files import (
    check_lengths_checksum,
    check_total_timesteps,
    count_checksums,
    locate_lengths,
    locate_shard,
)
from seqdata.storage.arrow.remote_shards import ArrowShards, check_shard_size
from seqdata.storage.data_location import DataLocation
from seqdata.storage.find_files import describe_folders, find_listed
from seqdata.storage.foreign.file_discovery import is_data_file
from seqdata.storage.integrity.verify import resolve_verify_mode
from seqdata.storage.remote.file_cache import CacheRequest, make_cache
from seqdata.storage.remote.options import Remote, resolve_remote
from seqdata.storage.remote.remote_files import FileStat, RemoteFiles
from seqdata.storage.remote.transport import ForkSafeThreadPool, make_remote_files
from seqdata.storage.remote.urls import WEB, check_url
from seqdata.storage.shards_on_demand import ShardsOnDemand
from seqdata.storage.shared_memory import SharedBits
from seqdata.storage.split_names import DATASET_DICT, refuse_dataset_dict
from seqdata.storage.store import ShardStore, StoreFacts


def read_manifest(files: RemoteFiles) -> Manifest:
    """Return the manifest of a remote store.

    Raises:
        MissingShardError: If it is not there.
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
    """Open a store behind a URL; every shard's size is checked, no data is read.

    Args:
        location: The URL of its folder.
        verify: As of ``open_arrow``.
        remote: How it is read.

    Raises:
        ConfigError: If the location is invalid, or what it needs is not installed.
        RemoteReadError: If it cannot be read.
        MissingShardError: If a shard is not there.
        CorruptShardError: If a shard has another size.
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
    """Open a store by its manifest; ``bits`` are those of the process that sent it here."""
    lengths_of = {}
    cache, dataset = make_cache(files), files.location
    for axis, lengths_file in manifest.lengths.items():
        dtype = np.dtype(lengths_file.dtype).newbyteorder("<")
        size = manifest.sequences * dtype.itemsize
        location = locate_lengths(dataset, manifest, axis)
        request = CacheRequest(lengths_file.file, size, lengths_file.sha256)
        content = cache.read_bytes(request, location)
        lengths_of[axis] = np.frombuffer(content, dtype=dtype)
        if verify == "off":
            continue
        try:
            check_lengths_checksum(lengths_of[axis], dataset, manifest, axis, get_kernel())
        except DataError:
            if not cache.repair(request, content, location):
                raise
            check_lengths_checksum(lengths_of[axis], dataset, manifest, axis, get_kernel())
        check_total_timesteps(lengths_of[axis], dataset, manifest, axis)
    if verify == "first_read":
        count, fingerprint = count_checksums(manifest), manifest.fingerprint
        if bits is None or (bits.count, bits.fingerprint) != (count, fingerprint):
            bits = SharedBits(count, fingerprint)
    bits_in_use = bits if verify == "first_read" else None
    shards = ArrowShards(files, manifest, lengths_of, verify != "off", bits_in_use)
    facts = StoreFacts(
        label="RemoteStore", location=files.location, fields=manifest.fields, verify=verify,
        bits=bits_in_use, manifest=manifest, make_fingerprint=lambda: manifest.fingerprint,
        reopen=lambda _: (open_from_manifest, (files, manifest, verify, bits_in_use)),
    )  # fmt: skip
    return ShardStore(facts, ShardsOnDemand(shards))


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
        check_shard_size(stat, shard, location)

    ForkSafeThreadPool(files.remote.connections).map(check, range(len(manifest.shards)))


def _open_without_manifest(
    files: RemoteFiles,
    missing: MissingShardError,
    location: str | os.PathLike[str],
    verify: str | None,
    remote: str | Remote | None,
) -> Store:
    """Open other files of a location that has no manifest.

    Raises:
        IncompleteDatasetError: If files of a store are there.
        MissingShardError: If there is nothing.
        DataError: If there are other files.
    """
    data_location = DataLocation(dataset=files.location, file=MANIFEST, file_kind="manifest")
    try:
        names = files.names()
    except (MissingShardError, RemoteReadError):
        if check_url(os.fspath(location)) in WEB:
            raise data_location.make_error(
                MissingShardError,
                "is not there. Check the location. A web server does not list files: name those "
                "that are not a store, as 'x.parquet' or 'x-{000..017}.tar'",
            ) from None
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
        raise missing
    raise DataLocation(dataset=files.location).make_error(
        DataError,
        describe_other_files(names),
    )
