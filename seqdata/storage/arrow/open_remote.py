"""Remote locations to stores: the manifest and lengths are read, the files are looked for.

Place in the flow: the backends for local data hand URLs on to this. Reads: small files, a listing.
Makes: stores.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from seqdata.errors import DataError, IncompleteDatasetError, MissingShardError, RemoteReadError
from seqdata.kernel.dispatch import kernel
from seqdata.protocols import Store
from seqdata.storage.arrow.manifest import MANIFEST, Manifest
from seqdata.storage.arrow.mapped_files import (
    check_lengths,
    check_total,
    count_checksums,
    lengths_place,
    shard_place,
)
from seqdata.storage.arrow.remote_manifest import manifest_at
from seqdata.storage.arrow.remote_store import RemoteStore
from seqdata.storage.arrow.shard_ranges import check_stat
from seqdata.storage.data_location import Place
from seqdata.storage.foreign.file_discovery import SUFFIXES
from seqdata.storage.integrity.verified_bitmap import SharedBits
from seqdata.storage.integrity.verify import mode_of
from seqdata.storage.remote.file_cache import Wanted, cache_of
from seqdata.storage.remote.options import Remote, remote_of
from seqdata.storage.remote.thread_pool import Fetchers
from seqdata.storage.remote.transport import RemoteFiles, Stat, remote_files
from seqdata.storage.remote.urls import WEB, check_url
from seqdata.storage.writing.staging_dir import OWN_FILES


def open_remote(
    location: str | os.PathLike[str],
    *,
    verify: str | None = None,
    remote: str | Remote | None = None,
) -> Store:
    """Open a store that lies elsewhere; every shard's size is looked at, no data is read.

    Args:
        location: The URL of its folder.
        verify: As of ``open_arrow``.
        remote: How it is read.

    Raises:
        ConfigError: If it cannot be meant, or what it needs is not installed.
        RemoteReadError: If it cannot be read.
        MissingShardError: If a shard is not there.
        CorruptShardError: If a shard has another size.
        IncompleteDatasetError: If its writing was never finished.
        DataError: If it is no store, or its manifest cannot be true.
    """
    files = remote_files(os.fspath(location), remote_of(remote))
    try:
        manifest = manifest_at(files)
    except MissingShardError as error:
        return _without_manifest(files, error, location, verify, remote)
    _look_at_shards(files, manifest)
    return with_files(files, manifest, mode_of(verify, manifest.checksums, files.location), None)


def with_files(
    files: RemoteFiles, manifest: Manifest, verify: str, bits: SharedBits | None
) -> RemoteStore:
    """Open a store by its manifest; ``bits`` are those of the process that sent it here."""
    lengths_of = {}
    cache, where = cache_of(files), files.location
    for axis, one in manifest.lengths.items():
        dtype = np.dtype(one.dtype).newbyteorder("<")
        size = manifest.sequences * dtype.itemsize
        place = lengths_place(where, manifest, axis)
        wanted = Wanted(one.file, size, one.sha256)
        content = cache.bytes_of(wanted, place)
        lengths_of[axis] = np.frombuffer(content, dtype=dtype)
        if verify == "off":
            continue
        try:
            check_lengths(lengths_of[axis], where, manifest, axis, kernel())
        except DataError:
            if not cache.mend(wanted, content, place):
                raise
            check_lengths(lengths_of[axis], where, manifest, axis, kernel())
        check_total(lengths_of[axis], where, manifest, axis)
    if verify == "first_read":
        count, of = count_checksums(manifest), manifest.fingerprint
        if bits is None or (bits.count, bits.of) != (count, of):
            bits = SharedBits(count, of)
    kept = bits if verify == "first_read" else None
    return RemoteStore(files, manifest, lengths_of, verify, kept)


def _look_at_shards(files: RemoteFiles, manifest: Manifest) -> None:
    """Refuse shards that are not there or of another size: by a listing, else one by one."""
    try:
        sizes: Mapping[str, int | None] = files.sizes()
    except (MissingShardError, RemoteReadError):  # web servers
        sizes = {}

    def look(number: int) -> None:
        shard = manifest.shards[number]
        place = shard_place(files.location, number, shard)
        size = sizes.get(shard.file)
        stat = files.stat(shard.file, place) if size is None else Stat(size, None)
        check_stat(stat, shard, place)

    Fetchers(files.remote.connections).each(look, range(len(manifest.shards)))


def _without_manifest(
    files: RemoteFiles,
    missing: MissingShardError,
    location: str | os.PathLike[str],
    verify: str | None,
    remote: str | Remote | None,
) -> Store:
    """Open what lies at a location without a manifest, or say what that is."""
    place = Place(dataset=files.location, file=MANIFEST, part="manifest")
    try:
        names = files.names()
    except (MissingShardError, RemoteReadError):
        if check_url(os.fspath(location)) in WEB:
            raise place.error(
                MissingShardError,
                "is not there, must be; check the location. A web server lists no files: what is "
                "no store must be named, as 'x.parquet' or 'x-{000..017}.tar'",
            ) from None
        raise missing from None
    own = [name for name in names if OWN_FILES.fullmatch(name)]
    if own:
        raise place.error(
            IncompleteDatasetError,
            f"is not there, but {len(own)} files of a store are, must be: it is written last; "
            "writing was not finished or not all was copied: write it again, or copy the rest",
        )
    if any(name.endswith(SUFFIXES) for name in names):
        from seqdata.storage.foreign.store import open_foreign  # it opens local files, too

        return open_foreign(location, verify=verify, remote=remote)
    if not names:
        raise missing
    raise Place(dataset=files.location).error(
        DataError,
        f"holds {', '.join(names[:5])} but no {MANIFEST!r}, must be a store's folder; turn the "
        "files into one with `seqdata write`",
    )
