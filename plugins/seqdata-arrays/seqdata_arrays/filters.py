"""Decoding of the filters of HDF5, and of the members of ``.npz``.

gzip and shuffle are decoded without HDF5, in any thread. Other filters are decoded by HDF5, from a
file in memory that holds the one chunk, so that no handle of HDF5 outlives a call or a fork. Reads:
stored bytes of a chunk. Makes: its decoded bytes.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata_arrays.chunked_array import MissingCodecError

GZIP, SHUFFLE = 1, 2
ZIP = -8
"""Deflate of a member of a zip archive, which HDF5 does not have; its parameter is the size of the
header before the values.
"""
_FAST = {GZIP, SHUFFLE, ZIP}
_ZLIB, _ZLIB_OR_GZIP, _RAW = 15, 47, -15  # window sizes, which also say what is around the data


def _find_zlib() -> Any:
    """Return ``isal.isal_zlib``, which is faster, or else ``zlib``."""
    try:
        return importlib.import_module("isal.isal_zlib")
    except ImportError:  # not for this processor
        return zlib


fast_zlib = _find_zlib()


@dataclass(frozen=True)
class FilterPipeline:
    """The filters of an array. Implements ``Codec``.

    Attributes:
        filters: (code, flags, parameters) of each, in the order in which they encode.
        dtype: Dtype as stored.
        chunks: Shape of a chunk.
    """

    filters: tuple[tuple[int, int, tuple[int, ...]], ...]
    dtype: str
    chunks: tuple[int, ...]

    def __call__(self, stored: NDArray[np.uint8], mask: int, size: int) -> Any:
        """Return the decoded bytes of a chunk.

        Raises:
            MissingCodecError: If a filter is not installed.
            ValueError: If the bytes are damaged.
        """
        active = [each for at, each in enumerate(self.filters) if not mask >> at & 1]
        if any(code not in _FAST for code, _, _ in active):
            return decode_by_hdf5(self, stored, mask)
        content: Any = stored
        for code, _, parameters in reversed(active):
            if code == GZIP:
                content = inflate(content, size)
            elif code == ZIP:
                content = inflate(content, size + parameters[0], _RAW)[parameters[0] :]
            else:
                content = unshuffle(content, parameters[0] if parameters else 1)
        return content


def inflate(stored: Any, size: int, window: int | None = None) -> bytes:
    """Decompress data of at most ``size`` decompressed bytes.

    Args:
        stored: The compressed bytes.
        size: Maximum number of decompressed bytes.
        window: Window size of zlib; None: zlib or gzip, as the first bytes say.

    Raises:
        ValueError: If the data is damaged or cut off, or decompresses to more bytes.
    """
    if window is None:
        window = _ZLIB_OR_GZIP if bytes(stored[:2]) == b"\x1f\x8b" else _ZLIB
    stream = fast_zlib.decompressobj(window)
    try:
        content: bytes = stream.decompress(stored, size + 1)
        if not stream.eof and len(content) <= size:  # the checksum at the end may be left
            content += stream.decompress(stream.unconsumed_tail, 1)
    except (zlib.error, fast_zlib.error) as error:
        raise ValueError(f"its compressed bytes are damaged: {error}") from error
    if not stream.eof:
        problem = "are cut off" if len(content) <= size else f"decompress to more than {size}"
        raise ValueError(f"its compressed bytes {problem}")
    return content


def unshuffle(content: Any, itemsize: int) -> Any:
    """Undo byte shuffling: the first bytes of all elements, then their second bytes, and so on.

    An incomplete element at the end is not shuffled.
    """
    raw = np.frombuffer(content, np.uint8)
    count = len(raw) // itemsize
    if itemsize <= 1 or count <= 1:
        return raw
    result = np.empty(len(raw), dtype=np.uint8)
    elements = result[: count * itemsize].reshape(count, itemsize)
    for at in range(itemsize):
        elements[:, at] = raw[at * count : (at + 1) * count]
    result[count * itemsize :] = raw[count * itemsize :]
    return result


def decode_by_hdf5(pipeline: FilterPipeline, stored: Any, mask: int) -> NDArray[Any]:
    """Return the bytes of a chunk, uint8, decoded by HDF5; filters of ``mask`` are skipped.

    Raises:
        MissingCodecError: If a filter is not installed.
        ValueError: If the bytes are damaged.
    """
    import h5py

    codes = [code for code, _, _ in pipeline.filters]
    if not all(map(h5py.h5z.filter_avail, codes)):
        with contextlib.suppress(ImportError):
            importlib.import_module("hdf5plugin")
    missing = [code for code in codes if not h5py.h5z.filter_avail(code)]
    if missing:
        raise MissingCodecError(
            f"its HDF5 filter {missing[0]} is not installed. Install the plugin of HDF5 for it; "
            "`pip install hdf5plugin` installs the most common ones"
        )
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk(pipeline.chunks)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    for code, flags, parameters in pipeline.filters:
        _set_filter(properties, code, flags, parameters)
    try:
        with h5py.File(io.BytesIO(), "w") as file:
            space = h5py.h5s.create_simple(pipeline.chunks)
            kind = h5py.h5t.py_create(np.dtype(pipeline.dtype))
            dataset = h5py.Dataset(h5py.h5d.create(file.id, b"x", kind, space, properties))
            dataset.id.write_direct_chunk((0,) * len(pipeline.chunks), bytes(stored), mask)
            found: NDArray[Any] = np.ascontiguousarray(dataset[()])
    except (OSError, RuntimeError) as error:
        raise ValueError(f"HDF5 cannot decode it: {error}") from error
    return found.reshape(-1).view(np.uint8)


def _set_filter(properties: Any, code: int, flags: int, parameters: Sequence[int]) -> None:
    """Add a filter; HDF5 sets the parameters of its built-in filters."""
    import h5py

    if code == h5py.h5z.FILTER_SHUFFLE:
        properties.set_shuffle()
    elif code == h5py.h5z.FILTER_FLETCHER32:
        properties.set_fletcher32()
    elif code == h5py.h5z.FILTER_SZIP:
        properties.set_szip(parameters[0], parameters[1])
    elif code == h5py.h5z.FILTER_NBIT:
        properties.set_filter(code, flags, ())
    elif code == h5py.h5z.FILTER_SCALEOFFSET:
        properties.set_scaleoffset(parameters[0], parameters[1])
    else:
        properties.set_filter(code, flags, tuple(parameters))
