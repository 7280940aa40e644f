"""Validation of the ``FileIndex`` that a format returns."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import CorruptShardError, PluginError
from seqdata.protocols import Field
from seqdata.storage.data_location import DataLocation
from seqdata.storage.fields import FIELD_DTYPES, MAX_WIDTH, kind_of
from seqdata.storage.indexed.file_format import Extents, FileIndex


@functools.lru_cache(maxsize=256)
def native_name(dtype: str) -> str:
    """Return the name of a stored dtype when it is read."""
    return dtype if dtype in FIELD_DTYPES else np.dtype(dtype).name


def count_sequences(found: FileIndex, where: str) -> int:
    """Return how many sequences a file holds.

    Raises:
        PluginError: If its fields have different numbers of sequences.
    """
    counts = {name: len(extents.begins) for name, extents in found.fields.items()}
    if found.ids is not None:
        counts["ids"] = len(found.ids)
    if len(set(counts.values())) > 1:
        raise PluginError.at(
            f"{where}: fields and ids must have the same number of sequences, but have {counts}. "
            "Tell its author"
        )
    return next(iter(counts.values()))


def check_extents(extents: Extents, count: int, size: int, where: str, place: DataLocation) -> None:
    """Raise if the extents of a field are invalid.

    Args:
        extents: Of all sequences of the file.
        count: How many they are.
        size: Size of the file in bytes.
        where: The format's method and the field, for errors of the format.
        place: The field in the file, for errors of the file.

    Raises:
        PluginError: If they are.
        CorruptShardError: If values end after the file.
    """
    begins, ends = np.asarray(extents.begins), np.asarray(extents.ends)
    try:
        dtype = native_name(extents.dtype) if isinstance(extents.dtype, str) else ""
    except (TypeError, ValueError, SyntaxError):
        dtype = ""
    if dtype not in FIELD_DTYPES:
        raise _make_error(where, f"`dtype` must be one of {', '.join(FIELD_DTYPES)}", extents.dtype)
    if not (_are_integers(begins, count) and _are_integers(ends, count)):
        said = f"{begins.dtype} {list(begins.shape)} and {ends.dtype} {list(ends.shape)}"
        raise _make_error(where, f"`begins` and `ends` must be integers ({count},)", said)
    wrong = (begins < -1) | ((begins >= 0) & (ends < begins))
    if wrong.any():
        at = int(np.argmax(wrong))
        raise _make_error(
            where, "extents must begin at 0 or later, and end where they begin or later",
            f"{begins[at]}..{ends[at]} of sequence {at}",
        )  # fmt: skip
    _check_inside(begins, ends, size, place)
    if not kind_of(Field(dtype)).is_array:
        if extents.axis is not None or extents.shape or extents.decoder is not None:
            raise _make_error(
                where, "texts must have `axis`=None, no shape and no decoder", extents.axis
            )
        return
    width = np.dtype(extents.dtype).itemsize * math.prod(extents.shape)
    if min(extents.shape, default=1) < 1 or width >= MAX_WIDTH:
        raise _make_error(
            where, "`shape` must have at least one number, and less than 2 GiB", extents.shape
        )
    if extents.values is not None and (
        extents.axis is not None or np.shape(extents.values) != (count, *extents.shape)
    ):
        raise _make_error(
            where, f"`values` must be ({count}, *shape), of `axis`=None",
            f"{list(np.shape(extents.values))} of `axis`={extents.axis!r}",
        )  # fmt: skip
    if extents.lengths is not None:
        lengths = np.asarray(extents.lengths)
        if not _are_integers(lengths, count) or int(lengths.min(initial=0)) < 0:
            raise _make_error(
                where, f"`lengths` must be integers ({count},), 0 or more",
                f"{lengths.dtype} {list(lengths.shape)} from {lengths.min(initial=0)}",
            )  # fmt: skip
    if extents.decoder is None and extents.values is None:
        _check_sizes(extents, value_sizes(extents), width, where)


def _check_inside(begins: NDArray[Any], ends: NDArray[Any], size: int, place: DataLocation) -> None:
    outside = (begins >= 0) & (ends > size)
    if outside.any():
        at = int(np.argmax(outside))
        begin, end = int(begins[at]), int(ends[at])
        raise replace(place, offset=begin, length=end - begin).make_error(
            CorruptShardError,
            f"the values of its sequence {at} must end inside of the {size} bytes of the file, but "
            f"end at {end}: it is cut off. Restore it; if it is complete, tell the author of its "
            "format",
            expected=end, found=size,
        )  # fmt: skip


def _are_integers(values: NDArray[Any], count: int) -> bool:
    return values.shape == (count,) and (values.dtype.kind in "iu" or not count)


def _check_sizes(extents: Extents, sizes: NDArray[np.int64], width: int, where: str) -> None:
    bad = sizes % width != 0 if extents.axis is not None else sizes != width
    if extents.lengths is not None:
        bad |= sizes != np.asarray(extents.lengths) * width
    if bad.any():
        at = int(np.argmax(bad))
        must = "a multiple of " if extents.axis is not None else ""
        raise _make_error(
            where, f"values must have {must}{width} bytes, as `lengths` say",
            f"{sizes[at]} of sequence {at}",
        )  # fmt: skip


def _make_error(where: str, must: str, found: object) -> PluginError:
    return PluginError.at(f"{where}: {must}, but is {found!r}. Tell its author")


def clamp_begins(extents: Extents) -> NDArray[np.int64]:
    """Return the begins of values, int64; -1 if a sequence has none and the index keeps none."""
    begins = np.array(extents.begins, dtype=np.int64)
    if extents.values is None:
        return begins
    return np.maximum(begins, 0)  # kept in the index without any bytes


def value_sizes(extents: Extents) -> NDArray[np.int64]:
    """Return the sizes of values in bytes, int64."""
    begins, ends = np.array(extents.begins, dtype=np.int64), np.array(extents.ends, dtype=np.int64)
    sizes: NDArray[np.int64] = np.where(begins < 0, 0, ends - begins)
    return sizes
