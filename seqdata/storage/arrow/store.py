"""The Arrow store: mapped shards, opened by their manifest and read without pyarrow.

Every file is checked against the manifest. Place in the flow: a location becomes a store. Reads:
manifest, lengths, spans. Makes: columns over mapped bytes.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import (
    ConfigError,
    CorruptShardError,
    DataError,
    IncompleteDatasetError,
    must_be,
)
from seqdata.kernel.dispatch import get_kernel
from seqdata.protocols import Store
from seqdata.storage.arrow.manifest import (
    MANIFEST,
    STORE_FILES,
    ArrowShard,
    Manifest,
    describe_missing_manifest,
    describe_other_files,
    load_manifest,
)
from seqdata.storage.columns import BufferSource
from seqdata.storage.data_location import DataLocation, ShardLayout
from seqdata.storage.fields import field_width, kind_of
from seqdata.storage.integrity.checksums import ChecksumFile
from seqdata.storage.integrity.verify import FieldChecksums, resolve_verify_mode
from seqdata.storage.local_files import (
    check_fingerprint,
    is_remote,
    local_path,
    map_opened,
    open_inside,
    refuse_remote,
)
from seqdata.storage.remote.options import Remote
from seqdata.storage.shared_memory import SharedBits
from seqdata.storage.store import ShardStore, StoreFields, StoreInfo
from seqdata.storage.writing.shards import count_unfinished
from seqdata.storage.writing.staging_dir import find_staging_dirs


@dataclass(frozen=True, slots=True, eq=False)
class MappedFiles:
    """The files of a store.

    Attributes:
        shards: Per shard, its bytes.
        lengths_of: Axis -> number of timesteps of each sequence, integers (sequences,).
        checksums: Per shard, the bytes of its checksums; none if they are not compared.
    """

    shards: Sequence[Any]
    lengths_of: Mapping[str, NDArray[Any]]
    checksums: Sequence[Any]


def map_files(root: Path, manifest: Manifest, *, verify: bool) -> MappedFiles:
    """Map all files of a store.

    Args:
        root: Its folder.
        manifest: The manifest.
        verify: Whether checksums are compared: of lengths now, of values when they are read.

    Raises:
        MissingShardError: If a file is missing.
        CorruptShardError: If a file differs from what was written.
    """
    shards = []
    for i, shard in enumerate(manifest.shards):
        location = locate_shard(root, i, shard)
        shards.append(map_file(root, shard.file, shard.bytes, location))
        check_footer(get_footer(shards[-1], shard), location, shard)
    lengths_of = {axis: _map_lengths(root, manifest, axis) for axis in manifest.lengths}
    if not verify:
        return MappedFiles(shards, lengths_of, ())
    for axis, lengths in lengths_of.items():
        check_lengths(lengths, root, manifest, axis)
    checksums = [
        map_file(root, file.file, file.bytes, locate_checksums(root, i, file))
        for i, shard in enumerate(manifest.shards)
        if (file := shard.checksums) is not None
    ]
    return MappedFiles(shards, lengths_of, checksums)


def count_checksums(shard: ArrowShard) -> int:
    """Return the number of checksums of all fields of a shard."""
    places = {} if shard.checksums is None else shard.checksums.places
    return sum(ranges[0][1] // 4 for ranges in places.values())


def choose_bits(
    verify: str, bits: SharedBits | None, manifest: Manifest, fingerprint: str
) -> SharedBits | None:
    """Return the bits of verified checksums, for ``first_read``.

    Args:
        verify: When checksums are compared: off, first_read or always.
        bits: Bits of the process that pickled the store.
        manifest: Manifest of the store.
        fingerprint: Its fingerprint.
    """
    if verify != "first_read":
        return None
    return SharedBits.reuse(bits, sum(map(count_checksums, manifest.shards)), fingerprint)


def load_checksums(
    manifest: Manifest,
    mappings: Sequence[Any],
    lengths_of: Mapping[str, NDArray[Any]],
    bits: SharedBits | None = None,
    first_bit: int = 0,
) -> dict[str, FieldChecksums]:
    """Return the checksums of each field; none if nothing is verified.

    Args:
        manifest: The manifest.
        mappings: Per shard, the bytes of its checksums; none if they are not compared.
        lengths_of: Axis -> lengths to compare with those in the shards.
        bits: One bit per checksum: shard by shard, field by field; None: verify each time.
        first_bit: Bit of the first checksum of the first shard.
    """
    spec, checksums = manifest.checksums, {}
    if spec is None or not mappings:
        return {}
    files = [shard.checksums for shard in manifest.shards if shard.checksums is not None]
    counts = map(count_checksums, manifest.shards)
    starts = list(itertools.accumulate(counts, initial=first_bit))[:-1]
    for name, field in manifest.fields.items():
        loaded = [
            _load_arrays(mapping, file.places[name])
            for file, mapping in zip(files, mappings, strict=True)
        ]
        values, offsets = zip(*loaded, strict=True)
        checksums[name] = FieldChecksums(
            spec.algorithm, spec.bytes_per_checksum, values, offsets,
            tuple(file.file for file in files), None if bits is None else bits.buffer,
            tuple(starts), None if field.axis is None else lengths_of.get(field.axis),
        )  # fmt: skip
        starts = [start + len(sums) for start, sums in zip(starts, values, strict=True)]
    return checksums


def _load_arrays(
    mapping: Any, ranges: Sequence[tuple[int, int]]
) -> tuple[NDArray[np.uint32], NDArray[np.int64] | None]:
    """Return the checksums of a field of one shard, and their offsets if it has any."""
    (position, size), *more = ranges
    values = np.frombuffer(mapping, "<u4", size // 4, position if size else 0)
    return values, np.frombuffer(mapping, "<i8", more[0][1] // 8, more[0][0]) if more else None


def make_source(
    name: str,
    manifest: Manifest,
    layout: ShardLayout,
    mappings: Sequence[Any],
    checksums: Mapping[str, FieldChecksums],
) -> BufferSource:
    """Return the source of a field over its buffers; the parser has checked their positions."""
    field = manifest.fields[name]
    dtype = kind_of(field).stored_dtype(field)
    width = field_width(field)
    values: list[NDArray[Any]] = []
    offsets: list[NDArray[np.int64]] = []
    file_offsets = []
    for mapping, shard in zip(mappings, manifest.shards, strict=True):
        (position, size), *more = shard.buffers[name]
        count = size // width * (width // dtype.itemsize)
        flat = np.frombuffer(mapping, dtype=dtype, count=count, offset=position if count else 0)
        values.append(flat.reshape(size // width, *field.shape) if field.shape else flat)
        file_offsets.append(position)
        for at, _ in more:
            offsets.append(
                np.frombuffer(mapping, dtype=np.int64, count=shard.sequences + 1, offset=at)
            )
    return BufferSource.from_arrays(
        name, field, layout, values, offsets or None, file_offsets, checksums.get(name)
    )


def build_fields(
    manifest: Manifest,
    layout: ShardLayout,
    mappings: Sequence[Any],
    checksums: Mapping[str, FieldChecksums],
) -> StoreFields:
    """Return the fields of a manifest over mapped shards.

    Args:
        manifest: The manifest.
        layout: Shards, lengths and ids of its sequences.
        mappings: Per shard, its bytes.
        checksums: Field -> its checksums; other fields are not verified.
    """

    def make(name: str, layout: ShardLayout) -> BufferSource:
        return make_source(name, manifest, layout, mappings, checksums)

    return StoreFields.from_sources(layout, manifest.fields, manifest.key, make)


def locate_shard(root: Path | str, i: int, shard: ArrowShard) -> DataLocation:
    """Return the location of a shard, for an error."""
    return DataLocation(dataset=str(root), shard=i, file=shard.file, verify=True)


def make_layout(
    location: str, manifest: Manifest, lengths_of: Mapping[str, NDArray[Any]]
) -> ShardLayout:
    """Return the layout of the shards of a store."""
    shards = manifest.shards
    starts = [0, *itertools.accumulate(shard.sequences for shard in shards)]
    return ShardLayout(
        location, [shard.file for shard in shards], starts, lengths_of,
        lambda i: locate_shard(location, i, shards[i]),
    )  # fmt: skip


def locate_checksums(root: Path | str, i: int, file: ChecksumFile) -> DataLocation:
    """Return the location of a shard's checksums, for an error."""
    file_kind = f"checksums of shard {i}"
    return DataLocation(
        dataset=str(root), shard=i, file=file.file, file_kind=file_kind, verify=True
    )


def locate_lengths(root: Path | str, manifest: Manifest, axis: str) -> DataLocation:
    """Return the location of the lengths along an axis, for an error."""
    file = manifest.lengths[axis].file
    return DataLocation(dataset=str(root), file=file, file_kind="lengths", axis=axis)


def map_file(root: Path, name: str, bytes_: int, location: DataLocation) -> Any:
    """Map a file after its size was checked.

    Args:
        root: The store's folder.
        name: Name of the file.
        bytes_: Its size by the manifest.
        location: Location of the file, for errors.

    Raises:
        MissingShardError: If it does not exist.
        CorruptShardError: If its size differs.
    """
    with open_inside(root, name, replace(location, offset=0, length=bytes_)) as (descriptor, size):
        check_size(size, bytes_, location)
        return map_opened(
            descriptor, size, location, ", or write the store again with larger shards"
        )


def get_footer(mapping: Any, shard: ArrowShard) -> memoryview:
    """Return the bytes of the footer of a mapped shard."""
    return memoryview(mapping)[shard.bytes - shard.footer_bytes :]


def check_size(size: int, expected: int, location: DataLocation) -> None:
    """Raise if the size of a file differs from what was written.

    Raises:
        CorruptShardError: If it does.
    """
    if size != expected:
        shorter, longer = sorted((size, expected))
        have, them = ("has", "it") if location.file_kind is None else ("have", "them")
        raise replace(location, offset=shorter, length=longer - shorter).make_error(
            CorruptShardError,
            f"must have {expected} bytes, but {have} {size}. Restore {them}, or write the store "
            "again",
            expected=expected, found=size,
        )  # fmt: skip


def check_footer(footer: bytes | memoryview, location: DataLocation, shard: ArrowShard) -> None:
    """Compare the digest of a shard's footer, which differs between all shards.

    Raises:
        CorruptShardError: If it differs.
    """
    start = shard.bytes - shard.footer_bytes
    found = hashlib.sha256(footer).hexdigest()
    if found != shard.footer_sha256:
        raise replace(location, offset=start, length=shard.footer_bytes).make_error(
            CorruptShardError,
            f"must have a footer with SHA-256 {shard.footer_sha256[:16]}…, but has one with "
            f"{found[:16]}…: it is another file, or damaged. Restore it, or write the store again",
            expected=shard.footer_sha256, found=found,
        )  # fmt: skip


def _map_lengths(root: Path, manifest: Manifest, axis: str) -> NDArray[Any]:
    """Map the lengths along an axis; their values are not checked."""
    lengths_file = manifest.lengths[axis]
    dtype = np.dtype(lengths_file.dtype).newbyteorder("<")
    location = locate_lengths(root, manifest, axis)
    bytes_ = manifest.sequences * dtype.itemsize
    return np.frombuffer(map_file(root, lengths_file.file, bytes_, location), dtype=dtype)


def check_lengths(lengths: NDArray[Any], root: Path | str, manifest: Manifest, axis: str) -> None:
    """Compare the lengths along an axis with their checksum, and their sum with the shards.

    Batches are allocated by the lengths.

    Raises:
        CorruptShardError: If either differs.
    """
    _check_lengths_checksum(lengths, root, manifest, axis)
    total = sum(shard.timesteps[axis] for shard in manifest.shards)
    longest, found = int(lengths.max(initial=0)), int(lengths.sum(dtype=np.uint64))
    if longest > total or found != total:
        raise locate_lengths(root, manifest, axis).make_error(
            CorruptShardError,
            f"must add up to {total} timesteps as in the shards, but add up to {found}, the "
            f"longest being {longest}. Restore them, or write the store again",
            expected=total, found=found,
        )  # fmt: skip


def _check_lengths_checksum(
    lengths: NDArray[Any], root: Path | str, manifest: Manifest, axis: str
) -> None:
    expected, spec = manifest.lengths[axis].checksum, manifest.checksums
    if spec is None or expected is None:
        return
    computed = np.empty(1, dtype=np.uint32)
    get_kernel().checksums(lengths, np.array([0, lengths.nbytes]), computed, spec.algorithm)
    found = int(computed[0])
    if found != expected:
        raise replace(
            locate_lengths(root, manifest, axis), offset=0, length=lengths.nbytes
        ).make_error(
            CorruptShardError,
            f"must have {spec.algorithm} {expected:08x}, but have {found:08x}. Restore them, or "
            "write the store again",
            expected=f"{expected:08x}",
            found=f"{found:08x}",
        )


_ARROW_MAGIC = b"ARROW1"


def open_arrow(
    location: str | os.PathLike[str],
    *,
    verify: str | None = None,
    remote: str | Remote | None = None,
) -> Store:
    """Open a store that ``write_arrow`` wrote.

    The size of every shard is checked, and its footer if the store is local; lengths are compared
    with their checksums unless ``verify="off"``. No other data is read. A folder at a URL that has
    no manifest, but Arrow or Parquet files, is opened by ``open_foreign``.

    Args:
        location: Its folder: a path or a URL.
        verify: When checksums of the data are compared: ``"first_read"``, ``"always"``, or
            ``"off"``: never. None: at the first read, where the store has checksums.
        remote: Options of reading a URL; None: whole shards through the cache.

    Raises:
        ConfigError: If a local folder does not exist, or ``verify`` is not possible.
        IncompleteDatasetError: If its writing was never finished.
        MissingShardError: If a shard is missing, or nothing is at a URL.
        CorruptShardError: If a shard or the lengths are not what was written.
        DataError: If it is not a store, or its manifest is invalid.
        RemoteReadError: If a file at a URL cannot be read.
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
    """Open a store by its manifest; ``bits`` are those of the process that pickled the store."""
    mapped = map_files(root, manifest, verify=verify != "off")
    bits = choose_bits(verify, bits, manifest, fingerprint)
    layout = make_layout(str(root), manifest, mapped.lengths_of)
    checksums = load_checksums(manifest, mapped.checksums, mapped.lengths_of, bits)
    fields = build_fields(manifest, layout, mapped.shards, checksums)
    info = StoreInfo(
        label="ArrowStore", location=str(root), fields=manifest.fields, verify=verify,
        bits=bits, manifest=manifest, folder=root, make_fingerprint=lambda: fingerprint,
        reopen=lambda _: (_reopen, (str(root), verify, bits, fingerprint)),
        populate=functools.partial(_populate, manifest, mapped, fields),
        linked_axes=manifest.linked_axes,
    )  # fmt: skip
    return ShardStore(info, fields)


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
    """Return the error about a location without a manifest, with what exists there."""
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
