"""The Arrow store: mapped shards, opened by their manifest and read without pyarrow.

Place in the flow: a location becomes a store. Reads: manifest, lengths, spans. Makes: columns over
mapped bytes.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from seqdata.errors import ConfigError, DataError, IncompleteDatasetError, must_be
from seqdata.kernel.dispatch import get_kernel
from seqdata.protocols import Store
from seqdata.storage.arrow.manifest import (
    MANIFEST,
    STORE_FILES,
    Manifest,
    describe_missing_manifest,
    describe_other_files,
)
from seqdata.storage.arrow.manifest_parser import load_manifest
from seqdata.storage.arrow.mapped_files import (
    MappedFiles,
    count_checksums,
    lay_fields,
    load_checksums,
    map_files,
)
from seqdata.storage.data_location import DataLocation, ShardLayout
from seqdata.storage.integrity.verify import resolve_verify_mode
from seqdata.storage.local_files import check_fingerprint, is_remote, local_path, refuse_remote
from seqdata.storage.remote.options import Remote
from seqdata.storage.shared_memory import SharedBits
from seqdata.storage.store import ShardStore, StoreFacts, StoreFields
from seqdata.storage.writing.finished_shards import count_unfinished
from seqdata.storage.writing.staging_dir import find_staging_dirs

_ARROW_MAGIC = b"ARROW1"


def open_arrow(
    location: str | os.PathLike[str],
    *,
    verify: str | None = None,
    remote: str | Remote | None = None,
) -> Store:
    """Open a store that ``write_arrow`` wrote.

    Every shard's size and footer are checked, and the lengths; no data is read.

    Args:
        location: Its folder: a path or a URL.
        verify: When checksums of the data are compared: ``"first_read"``, ``"always"``, or
            ``"off"``: never. None: at the first read, where the store has checksums.
        remote: How a URL is read; None: through the cache.

    Raises:
        ConfigError: If the location is not there, or ``verify`` is not possible.
        IncompleteDatasetError: If its writing was never finished.
        MissingShardError: If a shard is not there.
        CorruptShardError: If a shard is not what was written.
        DataError: If it is not a store, or its manifest is invalid.
    """
    if is_remote(location):
        from seqdata.storage.arrow.open_remote import open_remote  # local stores do without

        return open_remote(location, verify=verify, remote=remote)
    refuse_remote(location, remote)
    return open_local(location, verify=verify)


def open_local(location: str | os.PathLike[str], *, verify: str | None = None) -> ShardStore:
    """Open a store on this machine; see ``open_arrow``."""
    root = local_path(location)
    if not os.path.lexists(root / MANIFEST):  # a dangling link has its own message
        raise _make_no_store_error(root)
    manifest = load_manifest(root)
    mode = resolve_verify_mode(verify, manifest.checksums, str(root))
    return _open(root, manifest, mode, None, manifest.fingerprint)


def _open(
    root: Path, manifest: Manifest, verify: str, bits: SharedBits | None, fingerprint: str
) -> ShardStore:
    """Open a store by its manifest; ``bits`` are those of the process that sent it here."""
    mapped = map_files(root, manifest, get_kernel(), verify=verify != "off")
    if verify == "first_read":
        count = count_checksums(manifest)
        if bits is None or (bits.count, bits.fingerprint) != (count, fingerprint):
            bits = SharedBits(count, fingerprint)
    bits_in_use = bits if verify == "first_read" else None
    names = [shard.file for shard in manifest.shards]
    offsets = [0, *itertools.accumulate(shard.sequences for shard in manifest.shards)]
    locate = functools.partial(_locate_shard, str(root), names)
    layout = ShardLayout(str(root), names, offsets, mapped.lengths_of, locate)
    checksums = load_checksums(manifest, mapped, bits_in_use) or {}
    fields = lay_fields(manifest, layout, mapped.shards, checksums)
    facts = StoreFacts(
        label="ArrowStore", location=str(root), fields=manifest.fields, verify=verify,
        bits=bits_in_use, manifest=manifest, folder=root, make_fingerprint=lambda: fingerprint,
        reopen=lambda _: (_reopen, (str(root), verify, bits_in_use, fingerprint)),
        populate=functools.partial(_populate, manifest, mapped, fields),
    )  # fmt: skip
    return ShardStore(facts, fields)


def _reopen(location: str, verify: str, bits: SharedBits | None, fingerprint: str) -> ShardStore:
    root = Path(location)
    manifest = load_manifest(root)
    check_fingerprint(DataLocation(dataset=location), manifest.fingerprint, fingerprint)
    return _open(root, manifest, verify, bits, fingerprint)


def _populate(
    manifest: Manifest,
    mapped: MappedFiles,
    fields: StoreFields,
    first: int,
    stop: int,
    names: Iterable[str],
) -> None:
    """Read sequences ahead into memory; see ``ShardStore.populate``."""
    shard_offsets, engine = fields.layout.shard_offsets, get_kernel()
    for source in [source for name in names if (source := fields.sources[name].stored)]:
        for i, (shard, mapping) in enumerate(zip(manifest.shards, mapped.shards, strict=True)):
            low = max(first, shard_offsets[i]) - shard_offsets[i]
            high = min(stop, shard_offsets[i + 1]) - shard_offsets[i]
            if low >= high:
                continue
            position, size = shard.buffers[source.name][0]
            if source.extents is not None:
                at = shard.buffers[source.name][1][0]
                engine.populate(mapping, at + 8 * low, at + 8 * high + 8)
                begins, ends = source.extents[i]
                low, high = int(begins[low]), int(ends[high - 1])
            until = min(position + high * source.width, position + size)
            engine.populate(mapping, position + max(0, low) * source.width, until)


def _locate_shard(location: str, names: Sequence[str], shard: int) -> DataLocation:
    return DataLocation(dataset=location, shard=shard, file=names[shard], verify=True)


def _make_no_folder_error(root: Path) -> DataError:
    """Return the error about a location that is not a folder."""
    location = DataLocation(dataset=str(root))
    if not root.is_file():
        return location.make_error(
            DataError,
            f"must be a store's folder with {MANIFEST!r}, but is a pipe, a device or a socket. "
            "Check the path",
        )
    try:
        with open(root, "rb") as file:
            arrow = file.read(len(_ARROW_MAGIC)) == _ARROW_MAGIC
    except OSError as error:
        return location.make_error(
            DataError, f"cannot be read ({error.strerror}). Check its permissions"
        )
    found = "a single Arrow file" if arrow else "a file that is not an Arrow store"
    return location.make_error(
        DataError,
        f"must be a store's folder with {MANIFEST!r}, but is {found}. Turn it into one with "
        "`seqdata write`, or name the backend that reads it",
    )


def _make_no_store_error(root: Path) -> ConfigError | DataError:
    """Return the error about a location without a manifest: what is there instead."""
    if root.is_symlink() and not root.exists():
        target = f"a link to {os.readlink(root)!r}, which is not there"
        return ConfigError(must_be(f"{root}:", "a store's folder", target, "Check the path"))
    if not root.exists():
        parent = root.parent if root.parent.is_dir() else None
        have = sorted(path.name for path in parent.iterdir())[:5] if parent else []
        found = f"{parent} holds {', '.join(have) or 'nothing'}" if parent else "nor is its parent"
        found = f"not there ({found})"
        return ConfigError(must_be(f"{root}:", "a store's folder", found, "Check the path"))
    if not root.is_dir():
        return _make_no_folder_error(root)
    location = DataLocation(dataset=str(root), file=MANIFEST, file_kind="manifest")
    names = sorted(path.name for path in root.iterdir())
    own = [name for name in names if STORE_FILES.names.fullmatch(name)]
    if find_staging_dirs(root):
        shards, sequences = count_unfinished(root)
        finished = f" {shards} finished shards ({sequences} sequences) are there." if shards else ""
        return location.make_error(
            IncompleteDatasetError,
            f"is not there. It is written last: writing was not finished.{finished} Repeat the "
            f"same call or command: it continues {'after them' if shards else 'where it stopped'}",
            shards=shards, sequences=sequences,
        )  # fmt: skip
    if own:
        return location.make_error(
            IncompleteDatasetError,
            describe_missing_manifest(len(own)),
        )
    return DataLocation(dataset=str(root)).make_error(DataError, describe_other_files(names))
