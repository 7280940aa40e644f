"""The manifest of a store: its schema, its files, and their digests; and its parser.

``seqdata.json`` in the store's folder is written last and is the commit. It is untrusted when it is
read: every position is checked before anything is mapped.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any

from seqdata.errors import ConfigError, DataError, FingerprintMismatch, LimitError
from seqdata.linked_axes import Axis, as_axis
from seqdata.logical_types import LogicalType, parse_logical_type
from seqdata.protocols import Field
from seqdata.storage.data_location import DataLocation
from seqdata.storage.fields import (
    FIELD_DTYPES,
    MAX_WIDTH,
    field_width,
    find_key,
    kind_of,
    list_axes,
)
from seqdata.storage.find_files import STORE_MANIFEST
from seqdata.storage.integrity.checksums import ChecksumFile, ChecksumSpec
from seqdata.storage.limits import MAX_FOOTER
from seqdata.storage.local_files import is_plain_name, open_inside
from seqdata.storage.writing.staging_dir import StoreFiles

MANIFEST = STORE_MANIFEST
STORE_FILES = StoreFiles(
    MANIFEST, re.compile(r"part-\d{5,}\.(arrow|crc)|lengths-[A-Za-z0-9_-]+\.u(32|64)")
)
FORMAT = "seqdata"
VERSION = 1
DIGEST_PLACEHOLDER = "0" * 64  # placeholder for the digest of a text while it is computed
RATES = "rates"
"""Key of the sampling rates of axes."""
_FINGERPRINTED_KEYS = ("format", "version", "sequences", "key", "fields", "lengths", "shards")


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthsFile:
    """The lengths of all sequences along one axis: a raw little-endian array in one file."""

    file: str
    dtype: str
    sha256: str
    checksum: int | None = None  # of the whole file, by the manifest's algorithm


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
        timesteps: Axis -> number of timesteps of all its sequences.
        buffers: Field -> (position, bytes) of its values, then of its offsets if it has any.
        checksums: The file and ranges of its checksums; None if it has none.
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
        key: The ``str`` field of ids; None: a sequence is named by its index.
        sequences: Number of sequences.
        lengths: Axis -> its file of lengths.
        shards: Shards, in the order of their sequences.
        checksums: Algorithm and block size of checksums; None: no shard has checksums.
        statistics: Statistics of blocks of sequences; None: none were computed.
        shuffle: The seed of the random order of its sequences; None if they are in the given order.
        linked_axes: Axis -> its sampling rate and offset, of the axes where they are known.
    """

    fields: Mapping[str, Field]
    key: str | None
    sequences: int
    lengths: Mapping[str, LengthsFile]
    shards: tuple[ArrowShard, ...]
    checksums: ChecksumSpec | None = None
    statistics: Mapping[str, Any] | None = None
    shuffle: int | None = None
    linked_axes: Mapping[str, Axis] = dataclass_field(default_factory=dict)

    def select(self, shards: range) -> Manifest:
        """Return the manifest of some shards, for reading them."""
        chosen = self.shards[shards.start : shards.stop]
        return replace(self, shards=chosen, sequences=sum(shard.sequences for shard in chosen))

    @property
    def fingerprint(self) -> str:
        """Digest of schema, lengths, ids and content, through the digests of the files (32 hex)."""
        return compute_fingerprint(_to_json(self))


def compute_fingerprint(content: Mapping[str, Any]) -> str:
    """Return the digest of the entries of a manifest about the data (32 hex digits)."""
    chosen = {name: content.get(name) for name in _FINGERPRINTED_KEYS}
    if RATES in content:  # stores without have the digest of earlier releases
        chosen[RATES] = content[RATES]
    return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:32]


def _to_json(manifest: Manifest) -> dict[str, Any]:
    linked = {axis: clock.to_plain() for axis, clock in sorted(manifest.linked_axes.items())}
    return ({RATES: linked} if linked else {}) | {
        "format": FORMAT,
        "version": VERSION,
        "sequences": manifest.sequences,
        "key": manifest.key,
        "fields": {name: _field_to_json(field) for name, field in manifest.fields.items()},
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


def _field_to_json(field: Field) -> dict[str, Any]:
    plain: dict[str, Any] = {"dtype": field.dtype, "shape": list(field.shape), "axis": field.axis}
    return plain if field.logical is None else plain | {"logical": field.logical.to_plain()}


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
                    name: [list(pair) for pair in ranges]
                    for name, ranges in checksum_file.places.items()
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
        "finished, or not everything was copied. Write the store again, or copy the rest"
    )


MAX_MANIFEST = 256 << 20  # bytes
MAX_SEQUENCES = 1 << 48
MAX_DIMENSIONS = 32
MAX_BYTES_PER_CHECKSUM = 1 << 30  # bytes
_UINT32_VALUES = 1 << 32
_MAX_SEED = (1 << 64) - 1
_LENGTH_DTYPES = ("uint32", "uint64")
_TYPE_NAMES = {dict: "an object", list: "a list", str: "text", int: "an integer"}


def load_manifest(root: Path) -> Manifest:
    """Read and check the manifest in a folder.

    Raises:
        DataError: If it is not a manifest, is of another version, or has invalid entries.
        FingerprintMismatch: If it was changed after it was written.
        MissingShardError: If it does not exist.
        LimitError: If it is larger than ``MAX_MANIFEST``.
    """
    location = DataLocation(dataset=str(root), file=MANIFEST, file_kind="manifest")
    with open_inside(root, MANIFEST, location) as (descriptor, size):
        check_manifest_size(size, location)
        with open(descriptor, "rb", closefd=False) as file:
            text = file.read()
    return parse_manifest(text, location)


def check_manifest_size(size: int, location: DataLocation) -> None:
    """Raise if a manifest is too large.

    Raises:
        LimitError: If it is larger than ``MAX_MANIFEST``.
    """
    if size > MAX_MANIFEST:
        raise location.make_error(
            LimitError,
            f"must have at most {MAX_MANIFEST} bytes, but has {size}. Write the store again with "
            "larger shards",
        )


def parse_manifest(text: bytes, location: DataLocation) -> Manifest:
    """Parse and check the text of a manifest.

    Args:
        text: JSON.
        location: The file.

    Raises:
        DataError: If it is not a manifest, is of another version, or has invalid entries.
        FingerprintMismatch: If its fingerprint is not that of its content.
    """
    reader = _ManifestReader(location)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise reader.make_error("text", f"is not JSON ({error})", "be a manifest") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        has_format = isinstance(document, dict) and "format" in document
        found = f"is {document['format']!r:.80}" if has_format else "is missing"
        raise reader.make_error("format", found, f"be {FORMAT!r}")
    if document.get("version") != VERSION:
        raise location.make_error(
            DataError,
            f"version must be {VERSION}, but is {document.get('version')!r}. Install the release "
            "of lightning-seqdata that wrote it",
        )
    manifest = reader.read_manifest(document)
    reader.check_digest("fingerprint", document, compute_fingerprint(document))
    if manifest.checksums is not None or "digest" in document:  # older stores have neither
        recorded = reader.require(document, "digest", str, "manifest")
        reader.check_digest("digest", document, compute_digest(text, recorded))
    return manifest


@dataclass(frozen=True, slots=True)
class _ManifestReader:
    """Turns JSON into checked values; errors name the path of an invalid one."""

    location: DataLocation

    def make_error(self, path: str, found: str, required: str) -> DataError:
        return self.location.make_error(
            DataError,
            f"{path} must {required}, but {found}. Restore the manifest, or write the store again",
        )

    def require(self, entry: Any, name: str, kind: type, path: str) -> Any:
        if type(entry) is not dict:
            raise self.make_error(path, f"is a {type(entry).__name__}", "be an object")
        if name not in entry:
            raise self.make_error(path, "does not", f"have {name!r}")
        value = entry[name]
        if type(value) is not kind:
            raise self.make_error(
                f"{path}, {name!r},", f"is a {type(value).__name__}", f"be {_TYPE_NAMES[kind]}"
            )
        return value

    def check_digest(self, name: str, document: dict[str, Any], computed: str) -> None:
        recorded = self.require(document, name, str, "manifest")
        if recorded != computed:
            raise self.location.make_error(
                FingerprintMismatch,
                f"{name} must be {computed!r} by its content, but is {recorded!r}: it was changed "
                "after writing. Restore it, or write the store again",
            )

    def read_count(self, entry: Any, name: str, path: str, maximum: int = 1 << 62) -> int:
        value: int = self.require(entry, name, int, path)
        if not 0 <= value <= maximum:
            raise self.make_error(f"{path}, {name!r},", f"is {value}", f"be in [0, {maximum}]")
        return value

    def read_file_name(self, entry: Any, path: str) -> str:
        name: str = self.require(entry, "file", str, path)
        if not is_plain_name(name):
            raise self.make_error(f"{path}, 'file',", f"is {name!r}", "be a name inside the folder")
        return name

    def read_manifest(self, document: dict[str, Any]) -> Manifest:
        fields = {
            name: self.read_field(plain, f"field {name!r}")
            for name, plain in self.require(document, "fields", dict, "manifest").items()
        }
        key = document.get("key")
        if key is not None and find_key(fields, str(key)) != key:
            raise self.make_error("'key'", f"is {key!r}", "be a 'str' field or null")
        axes = list_axes(fields)
        lengths = self.require(document, "lengths", dict, "manifest")
        if not axes:
            raise self.make_error("'fields'", "have none", "have at least one field with an axis")
        if set(lengths) != set(axes):
            raise self.make_error(
                "'lengths'", f"has axes {sorted(lengths)}", f"have {sorted(axes)}"
            )
        shards = self.require(document, "shards", list, "manifest")
        manifest = Manifest(
            fields=fields,
            key=key,
            sequences=self.read_count(document, "sequences", "manifest", MAX_SEQUENCES),
            lengths={
                axis: self.read_lengths(lengths[axis], f"lengths of {axis!r}") for axis in axes
            },
            shards=tuple(self.read_shard(entry, i, fields, axes) for i, entry in enumerate(shards)),
            statistics=self.read_optional(document, "statistics"),
            shuffle=self.read_seed(document),
            linked_axes=self.read_rates(document, axes),
        )
        found = sum(shard.sequences for shard in manifest.shards)
        if found != manifest.sequences or not found:
            raise self.make_error(
                "'sequences'",
                f"is {manifest.sequences}",
                f"be {found}, the sum over its shards" if found else "be at least 1 in its shards",
            )
        checksums = self.read_optional(document, "checksums")
        return manifest if checksums is None else self.read_checksums(manifest, checksums)

    def read_optional(self, document: dict[str, Any], name: str) -> Mapping[str, Any] | None:
        if name not in document:
            return None
        value: dict[str, Any] = self.require(document, name, dict, "manifest")
        return value

    def read_rates(self, document: dict[str, Any], axes: list[str]) -> dict[str, Axis]:
        clocks = self.read_optional(document, RATES) or {}
        for axis, entry in clocks.items():
            self.require(entry, "rate", type(entry["rate"]) if "rate" in entry else int, repr(axis))
        if not set(clocks) <= set(axes):
            raise self.make_error(f"{RATES!r}", f"has axes {sorted(clocks)}", f"have only {axes}")
        try:
            return {axis: as_axis(clocks[axis], f"{RATES} of {axis!r}") for axis in clocks}
        except ConfigError as error:
            raise self.make_error(f"{RATES!r}", f"is invalid ({error})", "hold rates") from error

    def read_seed(self, document: dict[str, Any]) -> int | None:
        if "shuffle" not in document:
            return None
        return self.read_count(document, "shuffle", "manifest", _MAX_SEED)

    def read_field(self, entry: Any, path: str) -> Field:
        dtype = self.require(entry, "dtype", str, path)
        shape = self.require(entry, "shape", list, path)
        axis = entry.get("axis")
        if dtype not in FIELD_DTYPES:
            raise self.make_error(path, f"has dtype {dtype!r}", f"have one of {FIELD_DTYPES}")
        is_array = kind_of(Field(dtype)).is_array
        if axis is not None and (type(axis) is not str or not is_array):
            raise self.make_error(
                path, f"has axis {axis!r}", "have a name or null as axis (text: null)"
            )
        if len(shape) > MAX_DIMENSIONS or any(type(size) is not int or size < 1 for size in shape):
            required = f"have sizes of at least 1, {MAX_DIMENSIONS} at most"
            raise self.make_error(path, f"has shape {shape}", required)
        field = Field(dtype, tuple(shape), axis, self.read_logical(entry, dtype, path))
        if shape and not is_array:
            raise self.make_error(path, f"has shape {shape}", f"have no shape as {dtype!r}")
        if shape and field_width(field) >= MAX_WIDTH:
            raise self.make_error(path, f"has shape {shape}", f"take less than {MAX_WIDTH} bytes")
        return field

    def read_logical(self, entry: Any, dtype: str, path: str) -> LogicalType | None:
        if "logical" not in entry:
            return None
        logical = parse_logical_type(entry["logical"])
        if logical is None or logical.dtype != dtype:
            required = f"be a known logical type of {dtype!r}"
            raise self.make_error(f"{path}, 'logical',", f"is {entry['logical']!r:.80}", required)
        return logical

    def read_lengths(self, entry: Any, path: str) -> LengthsFile:
        dtype = self.require(entry, "dtype", str, path)
        if dtype not in _LENGTH_DTYPES:
            raise self.make_error(
                path, f"has dtype {dtype!r}", f"have one of {sorted(_LENGTH_DTYPES)}"
            )
        digest = self.require(entry, "sha256", str, path)
        return LengthsFile(file=self.read_file_name(entry, path), dtype=dtype, sha256=digest)

    def read_shard(
        self, entry: Any, i: int, fields: Mapping[str, Field], axes: list[str]
    ) -> ArrowShard:
        path = f"shard {i}"
        timesteps = self.require(entry, "timesteps", dict, path)
        buffers = self.require(entry, "buffers", dict, path)
        if set(buffers) != set(fields):
            raise self.make_error(path, f"has fields {sorted(buffers)}", f"have {sorted(fields)}")
        if set(timesteps) != set(axes):
            found = f"has axes {sorted(timesteps)}"
            raise self.make_error(f"{path}, 'timesteps',", found, f"have {sorted(axes)}")
        shard = ArrowShard(
            file=self.read_file_name(entry, path),
            sequences=self.read_count(entry, "sequences", path, MAX_SEQUENCES),
            bytes=self.read_count(entry, "bytes", path),
            footer_bytes=self.read_count(entry, "footer_bytes", path),
            footer_sha256=self.require(entry, "footer_sha256", str, path),
            sha256=self.require(entry, "sha256", str, path),
            timesteps={axis: self.read_count(timesteps, axis, path) for axis in axes},
            buffers={
                name: self.read_ranges(buffers[name], f"{path}, {name!r},") for name in fields
            },
        )
        most = min(shard.bytes, MAX_FOOTER)  # a footer is read in one piece
        if shard.footer_bytes > most:
            raise self.make_error(
                path, f"has one of {shard.footer_bytes}", f"have a footer of at most {most} bytes"
            )
        for name, field in fields.items():
            self.check_buffers(shard, name, field, f"{path}, buffers of {name!r},")
        return shard

    def read_checksums(self, manifest: Manifest, entry: Mapping[str, Any]) -> Manifest:
        """Return a manifest with the entries of its checksums."""
        path = "'checksums'"
        spec = ChecksumSpec(
            algorithm=self.require(entry, "algorithm", str, path),
            bytes_per_checksum=self.read_count(entry, "block", path, MAX_BYTES_PER_CHECKSUM),
        )
        lengths = self.require(entry, "lengths", dict, path)
        files = self.require(entry, "shards", list, path)
        if set(lengths) != set(manifest.lengths):
            raise self.make_error(
                f"{path}, 'lengths',",
                f"has axes {sorted(lengths)}",
                f"have {sorted(manifest.lengths)}",
            )
        if len(files) != len(manifest.shards) or spec.bytes_per_checksum < 1:
            raise self.make_error(
                path,
                f"has {len(files)} in blocks of {spec.bytes_per_checksum}",
                f"have {len(manifest.shards)} shards in blocks of at least 1 byte",
            )
        shards = [
            replace(
                shard, checksums=self.read_checksum_file(entry, i, shard, spec.bytes_per_checksum)
            )
            for i, (entry, shard) in enumerate(zip(files, manifest.shards, strict=True))
        ]
        axes = {
            axis: replace(
                lengths_file,
                checksum=self.read_count(lengths, axis, f"{path}, 'lengths'", _UINT32_VALUES - 1),
            )
            for axis, lengths_file in manifest.lengths.items()
        }
        return replace(manifest, checksums=spec, shards=tuple(shards), lengths=axes)

    def read_checksum_file(
        self, entry: Any, i: int, shard: ArrowShard, bytes_per_checksum: int
    ) -> ChecksumFile:
        path = f"checksums of shard {i}"
        ranges_json = self.require(entry, "places", dict, path)
        if set(ranges_json) != set(shard.buffers):
            raise self.make_error(
                path, f"has fields {sorted(ranges_json)}", f"have {sorted(shard.buffers)}"
            )
        size = self.read_count(entry, "bytes", path)
        ranges = {
            name: self.read_ranges(ranges_json[name], f"{path}, {name!r},")
            for name in shard.buffers
        }
        for name, field_ranges in ranges.items():
            self.check_checksums(shard, name, field_ranges, size, bytes_per_checksum)
        return ChecksumFile(
            file=self.read_file_name(entry, path),
            bytes=size,
            sha256=self.require(entry, "sha256", str, path),
            places=ranges,
        )

    def check_checksums(
        self,
        shard: ArrowShard,
        name: str,
        ranges: tuple[tuple[int, int], ...],
        size: int,
        bytes_per_checksum: int,
    ) -> None:
        """Check that checksums are inside of their file, and their number fits the bytes."""
        most = shard.sequences + shard.buffers[name][0][1] // bytes_per_checksum
        sizes = [bytes_ for _, bytes_ in ranges]
        is_valid = sizes == [4 * shard.sequences] or (
            len(sizes) == 2
            and sizes[0] % 4 == 0
            and shard.sequences < sizes[0] // 4 <= most
            and sizes[1] == 8 * (shard.sequences + 1)
        )
        for position, bytes_ in ranges:
            is_valid = (
                is_valid and position >= 0 and position % 8 == 0 and bytes_ <= size - position
            )
        if not is_valid:
            raise self.make_error(
                f"checksums of shard {shard.file!r}, {name!r},",
                f"are {ranges!r}",
                f"lie in {size} bytes and be one for each of {shard.sequences} sequences, or one "
                f"for each {bytes_per_checksum} bytes of them",
            )

    def read_ranges(self, entry: Any, path: str) -> tuple[tuple[int, int], ...]:
        pairs: list[tuple[int, int]] = []
        for pair in entry if type(entry) is list else [entry]:
            if type(pair) is not list or [type(bound) for bound in pair] != [int, int]:
                raise self.make_error(path, f"are {entry!r}", "be pairs of position and bytes")
            pairs.append((pair[0], pair[1]))
        return tuple(pairs)

    def check_buffers(self, shard: ArrowShard, name: str, field: Field, path: str) -> None:
        """Check that buffers are inside of the file and their sizes fit the counts."""
        ranges = shard.buffers[name]
        offsets = (shard.sequences + 1) * 8
        count = shard.sequences if field.axis is None else shard.timesteps[field.axis]
        expected: tuple[int, ...] = (count * field_width(field), offsets)
        if not kind_of(field).is_array:
            expected = (ranges[0][1] if ranges else 0, offsets)
        elif field.axis is None:
            expected = expected[:1]
        is_valid = tuple(size for _, size in ranges) == expected
        for position, size in ranges:
            is_valid = is_valid and position >= 0 and 0 <= size <= shard.bytes - position
        if not is_valid:
            raise self.make_error(
                path, f"are {ranges!r}", f"lie in {shard.bytes} bytes and take {expected} bytes"
            )
