"""Reading a manifest without believing it: every name, size and position is checked.

What is not as it must be is an error that names the place in the manifest. Place in the flow:
opening a store starts here. Reads: JSON. Makes: a ``Manifest``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seqdata.errors import DataError, FingerprintMismatch, LimitError
from seqdata.protocols import Field
from seqdata.storage.arrow.manifest import (
    FORMAT,
    MANIFEST,
    VERSION,
    Checking,
    ChecksumFile,
    LengthsFile,
    Manifest,
    Shard,
    fingerprint_of,
    seal_of,
)
from seqdata.storage.data_location import Place
from seqdata.storage.fields import MAX_WIDTH, NUMBERS, TEXTS, axes_of, field_width
from seqdata.storage.limits import MAX_FOOTER
from seqdata.storage.local_files import is_plain_name, open_inside

MAX_MANIFEST = 256 << 20  # bytes
MAX_SEQUENCES = 1 << 48
MAX_DIMENSIONS = 32
MAX_BLOCK = 1 << 30  # bytes
_UINT32 = 1 << 32
_LENGTHS = ("uint32", "uint64")
_KINDS = {dict: "an object", list: "a list", str: "text", int: "a whole number"}


def load_manifest(root: Path) -> Manifest:
    """Read and check the manifest in a folder.

    Raises:
        DataError: If it is none, of another version, or says what cannot be.
        FingerprintMismatch: If it was changed after it was written.
        LimitError: If it is larger than ``MAX_MANIFEST``.
    """
    place = Place(dataset=str(root), file=MANIFEST, part="manifest")
    with open_inside(root, MANIFEST, place) as (descriptor, size):
        check_manifest_size(size, place)
        with open(descriptor, "rb", closefd=False) as file:
            text = file.read()
    return parse_manifest(text, place)


def check_manifest_size(size: int, place: Place) -> None:
    """Refuse a manifest that is too large.

    Raises:
        LimitError: If it is larger than ``MAX_MANIFEST``.
    """
    if size > MAX_MANIFEST:
        raise place.error(
            LimitError,
            f"has {size} bytes, must have at most {MAX_MANIFEST}; write the store again with "
            "larger shards",
        )


def parse_manifest(text: bytes, where: Place) -> Manifest:
    """Check the text of a manifest and give its facts.

    Args:
        text: JSON.
        where: The file.

    Raises:
        DataError: If it is no manifest, of another version, or says what cannot be.
        FingerprintMismatch: If its fingerprint is not that of its content.
    """
    reader = _Reader(where)
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise reader.error("text", f"is no JSON ({error})", "be a manifest") from error
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise reader.error("format", "is missing or another", f"be {FORMAT!r}")
    if whole.get("version") != VERSION:
        raise where.error(
            DataError,
            f"version is {whole.get('version')!r}, must be {VERSION}; install the release of "
            "lightning-seqdata that wrote it",
        )
    manifest = reader.manifest(whole)
    reader.same("fingerprint", whole, fingerprint_of(whole))
    if manifest.checksums is not None or "digest" in whole:  # an older store has neither
        said = reader.need(whole, "digest", str, "manifest")
        reader.same("digest", whole, seal_of(text, said))
    return manifest


@dataclass(frozen=True, slots=True)
class _Reader:
    """Turns JSON into facts, naming the place of whatever is not as it must be."""

    where: Place

    def error(self, place: str, found: str, must: str) -> DataError:
        return self.where.error(
            DataError,
            f"{place} {found}, must {must}; restore the manifest or write the store again",
        )

    def need(self, facts: Any, name: str, kind: type, place: str) -> Any:
        if type(facts) is not dict:
            raise self.error(place, f"is a {type(facts).__name__}", "be an object")
        if name not in facts:
            raise self.error(place, f"lacks {name!r}", "have it")
        value = facts[name]
        if type(value) is not kind:
            raise self.error(
                f"{place}, {name!r},", f"is a {type(value).__name__}", f"be {_KINDS[kind]}"
            )
        return value

    def same(self, name: str, whole: dict[str, Any], found: str) -> None:
        said = self.need(whole, name, str, "manifest")
        if said != found:
            raise self.where.error(
                FingerprintMismatch,
                f"{name} is {said!r}, must be {found!r} by its content; it was changed after "
                "writing, restore it or write the store again",
            )

    def count(self, facts: Any, name: str, place: str, most: int = 1 << 62) -> int:
        value: int = self.need(facts, name, int, place)
        if not 0 <= value <= most:
            raise self.error(f"{place}, {name!r},", f"is {value}", f"be in [0, {most}]")
        return value

    def file(self, facts: Any, place: str) -> str:
        name: str = self.need(facts, "file", str, place)
        if not is_plain_name(name):
            raise self.error(f"{place}, 'file',", f"is {name!r}", "be a name inside of the folder")
        return name

    def manifest(self, whole: dict[str, Any]) -> Manifest:
        fields = {
            name: self.field(one, f"field {name!r}")
            for name, one in self.need(whole, "fields", dict, "manifest").items()
        }
        key = whole.get("key")
        if key is not None and fields.get(str(key)) != Field("str", (), None):
            raise self.error("'key'", f"is {key!r}", "be a 'str' field or null")
        axes = axes_of(fields)
        lengths = self.need(whole, "lengths", dict, "manifest")
        if not axes or set(lengths) != set(axes):
            raise self.error("'lengths'", f"has axes {sorted(lengths)}", f"have {sorted(axes)}")
        shards = self.need(whole, "shards", list, "manifest")
        manifest = Manifest(
            fields=fields,
            key=key,
            sequences=self.count(whole, "sequences", "manifest", MAX_SEQUENCES),
            lengths={axis: self.lengths(lengths[axis], f"lengths of {axis!r}") for axis in axes},
            shards=tuple(self.shard(one, i, fields, axes) for i, one in enumerate(shards)),
            statistics=self.optional(whole, "statistics"),
        )
        found = sum(shard.sequences for shard in manifest.shards)
        if found != manifest.sequences or not found:
            raise self.error(
                "'sequences'", f"is {manifest.sequences}", f"be {found} > 0 as in shards"
            )
        checksums = self.optional(whole, "checksums")
        return manifest if checksums is None else self.checked(manifest, checksums)

    def optional(self, whole: dict[str, Any], name: str) -> Mapping[str, Any] | None:
        if name not in whole:
            return None
        value: dict[str, Any] = self.need(whole, name, dict, "manifest")
        return value

    def field(self, facts: Any, place: str) -> Field:
        dtype = self.need(facts, "dtype", str, place)
        shape = self.need(facts, "shape", list, place)
        axis = facts.get("axis")
        if dtype not in NUMBERS + TEXTS:
            raise self.error(place, f"has dtype {dtype!r}", f"have one of {NUMBERS + TEXTS}")
        if axis is not None and (type(axis) is not str or dtype in TEXTS):
            raise self.error(place, f"has axis {axis!r}", "have a name, or null for text")
        if len(shape) > MAX_DIMENSIONS or any(type(size) is not int or size < 1 for size in shape):
            raise self.error(place, f"has shape {shape}", "have sizes of at least 1")
        field = Field(dtype, tuple(shape), axis)
        if shape and (dtype in TEXTS or field_width(field) >= MAX_WIDTH):
            raise self.error(place, f"has shape {shape}", f"take less than {MAX_WIDTH} bytes")
        return field

    def lengths(self, facts: Any, place: str) -> LengthsFile:
        dtype = self.need(facts, "dtype", str, place)
        if dtype not in _LENGTHS:
            raise self.error(place, f"has dtype {dtype!r}", f"have one of {sorted(_LENGTHS)}")
        digest = self.need(facts, "sha256", str, place)
        return LengthsFile(file=self.file(facts, place), dtype=dtype, sha256=digest)

    def shard(self, facts: Any, i: int, fields: Mapping[str, Field], axes: list[str]) -> Shard:
        place = f"shard {i}"
        timesteps = self.need(facts, "timesteps", dict, place)
        buffers = self.need(facts, "buffers", dict, place)
        if set(buffers) != set(fields) or set(timesteps) != set(axes):
            raise self.error(place, f"has fields {sorted(buffers)}", f"have {sorted(fields)}")
        shard = Shard(
            file=self.file(facts, place),
            sequences=self.count(facts, "sequences", place, MAX_SEQUENCES),
            bytes=self.count(facts, "bytes", place),
            footer_bytes=self.count(facts, "footer_bytes", place),
            footer_sha256=self.need(facts, "footer_sha256", str, place),
            sha256=self.need(facts, "sha256", str, place),
            timesteps={axis: self.count(timesteps, axis, place) for axis in axes},
            buffers={name: self.places(buffers[name], f"{place}, {name!r},") for name in fields},
        )
        if shard.footer_bytes > min(shard.bytes, MAX_FOOTER):  # a footer is read as a whole
            raise self.error(
                place, f"has a footer of {shard.footer_bytes} bytes", "have a shorter one"
            )
        for name, field in fields.items():
            self.check_places(shard, name, field, f"{place}, buffers of {name!r},")
        return shard

    def checked(self, manifest: Manifest, facts: Mapping[str, Any]) -> Manifest:
        """Give a manifest with what is said of its checksums."""
        place = "'checksums'"
        how = Checking(
            algorithm=self.need(facts, "algorithm", str, place),
            block=self.count(facts, "block", place, MAX_BLOCK),
        )
        lengths = self.need(facts, "lengths", dict, place)
        files = self.need(facts, "shards", list, place)
        if set(lengths) != set(manifest.lengths):
            raise self.error(
                f"{place}, 'lengths',",
                f"has axes {sorted(lengths)}",
                f"have {sorted(manifest.lengths)}",
            )
        if len(files) != len(manifest.shards) or how.block < 1:
            raise self.error(
                place,
                f"has {len(files)} shards in blocks of {how.block}",
                f"have {len(manifest.shards)} in blocks of at least 1",
            )
        shards = [
            replace(shard, checksums=self.checksum_file(one, i, shard, how.block))
            for i, (one, shard) in enumerate(zip(files, manifest.shards, strict=True))
        ]
        axes = {
            axis: replace(
                one, checksum=self.count(lengths, axis, f"{place}, 'lengths'", _UINT32 - 1)
            )
            for axis, one in manifest.lengths.items()
        }
        return replace(manifest, checksums=how, shards=tuple(shards), lengths=axes)

    def checksum_file(self, facts: Any, i: int, shard: Shard, block: int) -> ChecksumFile:
        place = f"checksums of shard {i}"
        places = self.need(facts, "places", dict, place)
        if set(places) != set(shard.buffers):
            raise self.error(place, f"has fields {sorted(places)}", f"have {sorted(shard.buffers)}")
        size = self.count(facts, "bytes", place)
        found = {name: self.places(places[name], f"{place}, {name!r},") for name in shard.buffers}
        for name, both in found.items():
            self.check_checksums(shard, name, both, size, block)
        return ChecksumFile(
            file=self.file(facts, place),
            bytes=size,
            sha256=self.need(facts, "sha256", str, place),
            places=found,
        )

    def check_checksums(
        self, shard: Shard, name: str, places: tuple[tuple[int, int], ...], size: int, block: int
    ) -> None:
        """Check that checksums lie in their file, and are as many as the bytes ask for."""
        most = shard.sequences + shard.buffers[name][0][1] // block
        sizes = [bytes_ for _, bytes_ in places]
        good = sizes == [4 * shard.sequences] or (
            len(sizes) == 2
            and sizes[0] % 4 == 0
            and shard.sequences < sizes[0] // 4 <= most
            and sizes[1] == 8 * (shard.sequences + 1)
        )
        for position, bytes_ in places:
            good = good and position >= 0 and position % 8 == 0 and bytes_ <= size - position
        if not good:
            raise self.error(
                f"checksums of shard {shard.file!r}, {name!r},",
                f"are {places!r}",
                f"lie in {size} bytes and be one for each of {shard.sequences} sequences, or one "
                f"for each {block} bytes of them",
            )

    def places(self, facts: Any, place: str) -> tuple[tuple[int, int], ...]:
        pairs: list[tuple[int, int]] = []
        for pair in facts if type(facts) is list else [facts]:
            if type(pair) is not list or [type(one) for one in pair] != [int, int]:
                raise self.error(place, f"are {facts!r}", "be pairs of position and bytes")
            pairs.append((pair[0], pair[1]))
        return tuple(pairs)

    def check_places(self, shard: Shard, name: str, field: Field, place: str) -> None:
        """Check that buffers lie in the file and are as long as the counts ask for."""
        places = shard.buffers[name]
        offsets = (shard.sequences + 1) * 8
        if field.dtype in TEXTS:
            must: tuple[int, ...] = (places[0][1] if places else 0, offsets)
        elif field.axis is not None:
            must = (shard.timesteps[field.axis] * field_width(field), offsets)
        else:
            must = (shard.sequences * field_width(field),)
        good = tuple(size for _, size in places) == must
        for position, size in places:
            good = good and position >= 0 and 0 <= size <= shard.bytes - position
        if not good:
            raise self.error(
                place, f"are {places!r}", f"lie in {shard.bytes} bytes and take {must}"
            )
