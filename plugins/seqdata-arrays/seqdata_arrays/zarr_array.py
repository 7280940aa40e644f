"""One array of Zarr (v2 or v3): its metadata, the files of its chunks, and their decoder.

Reads: metadata as JSON. Makes: arrays in chunks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import DecodeError
from seqdata_arrays.chunked_array import Bytes, ChunkedArray, MissingCodecError
from seqdata_arrays.filters import inflate
from seqdata_arrays.zarr_folder import ZarrFolder, name_chunks

_TEXT_TYPES = ("string", "fixed_length_utf32", "null_terminated_bytes")
_INFLATED = ("zlib", "gzip")
_NOWHERE = 2**64 - 1  # in the index of a shard: the chunk was never written
_CRC_BYTES = 4


@dataclass(frozen=True)
class ZarrCodecs:
    """The codecs of an array. Implements ``Codec``.

    Attributes:
        configurations: ``numcodecs`` configuration of each, in the order in which they encode.
    """

    configurations: tuple[Mapping[str, Any], ...]

    @cached_property
    def _codecs(self) -> list[Any]:
        from numcodecs.registry import codec_registry, get_codec

        codecs: list[Any] = []
        for each in self.configurations:
            try:
                codecs.append(None if each["id"] in _INFLATED else get_codec(dict(each)))
            except ValueError as error:
                if each["id"] in codec_registry:
                    raise
                raise MissingCodecError(
                    f"its codec {each['id']!r} is not installed. Install the package that adds it "
                    "to numcodecs"
                ) from error
        return codecs

    def __call__(self, stored: Bytes, mask: int, size: int) -> Any:
        """Return the decoded bytes of a chunk.

        Raises:
            MissingCodecError: If a codec is not installed.
            ValueError: If the bytes are damaged.
        """
        del mask
        content: Any = stored
        try:
            for codec in reversed(self._codecs):
                content = inflate(content, size) if codec is None else codec.decode(content)
        except ValueError:
            raise
        except Exception as error:  # codecs are of many libraries
            raise ValueError(f"{type(error).__name__}: {error}") from error
        return np.ascontiguousarray(content).reshape(-1).view(np.uint8)


@dataclass(frozen=True)
class ShardIndexes:
    """Layout of the indexes of shards; an index has the positions of the chunks in its file.

    Attributes:
        per_shard: Number of chunks of a shard along each dimension.
        at_end: Whether the index is at the end of the file, not at its beginning.
        has_checksum: Whether the index ends with a CRC-32C.
    """

    per_shard: tuple[int, ...]
    at_end: bool
    has_checksum: bool

    @property
    def size(self) -> int:
        """Size of an index in bytes."""
        return 16 * math.prod(self.per_shard) + _CRC_BYTES * self.has_checksum

    def locate(self, size: int) -> tuple[int, int]:
        """Return the first byte and one past the last of the index in a file of ``size`` bytes."""
        first = max(0, size - self.size) if self.at_end else 0
        return first, min(size, first + self.size)

    def read(self, content: bytes) -> NDArray[np.uint64]:
        """Return offset and size of each chunk, uint64 (chunks, 2).

        Raises:
            ValueError: If the index is cut off or damaged.
        """
        if len(content) != self.size:
            raise ValueError(f"its index has {len(content)} bytes, not {self.size}")
        if self.has_checksum:
            from numcodecs.registry import get_codec

            try:
                get_codec({"id": "crc32c"}).decode(content)
            except RuntimeError as error:
                raise ValueError(f"its index is damaged: {error}") from error
        pairs = np.frombuffer(content, "<u8", 2 * math.prod(self.per_shard))
        return pairs.reshape(-1, 2).astype(np.uint64)


@dataclass(frozen=True)
class ZarrArray:
    """An array and the files of its chunks.

    Attributes:
        folder: The folder that the path of the array is relative to.
        chunked: The array in chunks.
        prefix: Beginning of the names of its files, such as ``c/``.
        separator: Separator of the numbers in the names.
        shards: Layout of the index of a shard; None: each chunk is a file.
        files: Name of each existing file -> its size in bytes; None: they are not listed.
        indexes: Name of a file -> its index of chunks, of the files read so far.
    """

    folder: ZarrFolder
    chunked: ChunkedArray
    prefix: str
    separator: str
    shards: ShardIndexes | None
    files: Mapping[str, int] | None = field(repr=False)
    indexes: dict[str, NDArray[np.uint64]] = field(default_factory=dict, repr=False)

    def find_file(self, number: int) -> tuple[str, int]:
        """Return the name of the file of a chunk, and the position of the chunk in a shard."""
        where = [int(at) for at in np.unravel_index(number, self.chunked.grid)]
        if self.shards is None:
            return self._name(where), 0
        per = self.shards.per_shard
        name = self._name([at // count for at, count in zip(where, per, strict=True)])
        inside = [at % count for at, count in zip(where, per, strict=True)]
        return name, int(np.ravel_multi_index(inside, per))

    def find_chunk(self, name: str, inside: int, size: int) -> tuple[int, int] | None:
        """Return the first byte and one past the last of a chunk in its file; None: it is missing.

        Args:
            name: Name of the file, whose index is in ``indexes`` if it is a shard.
            inside: Position of the chunk in a shard.
            size: Size of the file in bytes.

        Raises:
            ValueError: If the index of the shard puts the chunk outside the file.
        """
        if self.shards is None:
            return 0, size
        offset, length = map(int, self.indexes[name][inside])
        if offset == _NOWHERE:
            return None
        if offset + length > size:
            raise ValueError(
                f"the shard index puts a chunk at bytes {offset}..{offset + length} of {name!r}, "
                f"which has {size} bytes"
            )
        return offset, offset + length

    def _name(self, where: Sequence[int]) -> str:
        return self.prefix + self.separator.join(map(str, where))


def describe_type(metadata: Mapping[str, Any]) -> tuple[np.dtype[Any] | None, str]:
    """Return the dtype of an array as stored (None: it holds no numbers), and its type's name."""
    stored = metadata["dtype" if metadata["zarr_format"] == 2 else "data_type"]
    name = str(stored.get("name") if isinstance(stored, Mapping) else stored)
    if name in _TEXT_TYPES:
        return None, "strings"
    try:
        dtype = np.dtype(name)
    except TypeError:
        ids = [str(each.get("id")) for each in metadata.get("filters") or ()]
        return None, "strings" if "vlen-utf8" in ids else name
    if dtype.kind in "US" or (dtype.kind == "O" and "vlen-utf8" in str(metadata.get("filters"))):
        return None, "strings"
    return (dtype, dtype.name) if dtype.kind in "biuf" else (None, dtype.name)


def make_array(folder: ZarrFolder, path: str, metadata: Mapping[str, Any]) -> ZarrArray:
    """Return an array of numbers from its metadata.

    Raises:
        DecodeError: If the array does not hold numbers, or uses a feature that is not supported.
    """
    dtype, kind = describe_type(metadata)
    if dtype is None:
        _refuse(path, "numbers", kind)
    if metadata["zarr_format"] == 2:
        return _make_v2(folder, path, metadata, dtype)
    return _make_v3(folder, path, metadata, dtype)


def _make_v2(
    folder: ZarrFolder, path: str, metadata: Mapping[str, Any], dtype: np.dtype[Any]
) -> ZarrArray:
    compressor = metadata.get("compressor")
    codecs = [*(metadata.get("filters") or ()), *([compressor] if compressor else ())]
    chunked = ChunkedArray(
        path, dtype, tuple(metadata["shape"]), tuple(metadata["chunks"]),
        _parse_fill(path, metadata.get("fill_value"), dtype), ZarrCodecs(tuple(codecs)),
        "F" if metadata.get("order") == "F" else "C",
    )  # fmt: skip
    return ZarrArray(folder, chunked, *name_chunks(metadata), None, folder.list_sizes(path))


def _make_v3(
    folder: ZarrFolder, path: str, metadata: Mapping[str, Any], dtype: np.dtype[Any]
) -> ZarrArray:
    if metadata["chunk_grid"]["name"] != "regular":
        _refuse(path, "a regular grid of chunks", metadata["chunk_grid"]["name"])
    chunks = tuple(metadata["chunk_grid"]["configuration"]["chunk_shape"])
    codecs, shards = list(metadata["codecs"]), None
    if codecs[0]["name"] == "sharding_indexed":
        options = codecs[0]["configuration"]
        inner = tuple(options["chunk_shape"])
        per_shard = tuple(whole // part for whole, part in zip(chunks, inner, strict=True))
        names = [each["name"] for each in options["index_codecs"]]
        if len(codecs) > 1:
            _refuse(path, "shards without another codec", repr(codecs[1]["name"]))
        if names not in (["bytes"], ["bytes", "crc32c"]):
            _refuse(path, "shards with an index of bytes and crc32c alone", str(names))
        at_end = options.get("index_location", "end") == "end"
        shards = ShardIndexes(per_shard, at_end, has_checksum="crc32c" in names)
        codecs, chunks = list(options["codecs"]), inner
    order: Literal["C", "F"] = "C"
    if codecs[0]["name"] == "transpose":
        turned = list(codecs.pop(0)["configuration"]["order"])
        if turned != list(range(len(chunks)))[::-1]:
            _refuse(path, "chunks in C or F order", f"the order {turned}")
        order = "F"
    serializer = codecs.pop(0)
    if serializer["name"] != "bytes":
        _refuse(path, "chunks of plain bytes", f"the codec {serializer['name']!r}")
    if (serializer.get("configuration") or {}).get("endian", "little") == "big":
        dtype = dtype.newbyteorder(">")
    configurations = [_translate(each) for each in codecs]
    chunked = ChunkedArray(
        path, dtype, tuple(metadata["shape"]), chunks,
        _parse_fill(path, metadata.get("fill_value"), dtype), ZarrCodecs(tuple(configurations)),
        order,
    )  # fmt: skip
    return ZarrArray(folder, chunked, *name_chunks(metadata), shards, folder.list_sizes(path))


def _translate(codec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``numcodecs`` configuration of a codec of Zarr v3."""
    name = str(codec["name"]).removeprefix("numcodecs.")
    options = dict(codec.get("configuration") or {})
    if name == "blosc":
        options.pop("typesize", None)
        shuffles = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
        options["shuffle"] = shuffles.get(options.get("shuffle", "noshuffle"), -1)
    if name == "zstd":
        options.pop("checksum", None)
    return {"id": name, **options}


def _parse_fill(path: str, value: Any, dtype: np.dtype[Any]) -> bytes:
    """Return one element of the fill value, as stored.

    Raises:
        DecodeError: If the fill value does not match the dtype.
    """
    native = dtype.newbyteorder("=")
    if isinstance(value, str) and value.startswith("0x"):
        raw = bytes.fromhex(value[2:])
        return np.frombuffer(raw, native.newbyteorder(">"))[:1].astype(dtype).tobytes()
    try:
        number = 0 if value is None else float(value) if isinstance(value, str) else value
        return np.asarray(number).reshape(()).astype(dtype).tobytes()
    except (TypeError, ValueError):
        _refuse(path, f"a fill value of {dtype.name}", repr(value))


def _refuse(path: str, needed: str, found: str) -> NoReturn:
    raise DecodeError.at(
        f"array {path!r} must have {needed}, but has {found}. Write it again, or leave it out with "
        "`fields`"
    )
