"""Validation of a user's format: its suffixes, and the ``FileIndex`` that it returns."""

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
from seqdata.storage.indexed.file_format import Extents, FileFormat, FileIndex
from seqdata.storage.limits import MAX_ROWS


@functools.lru_cache(maxsize=256)
def native_name(dtype: str) -> str:
    """Return the name of a stored dtype when it is read."""
    return dtype if dtype in FIELD_DTYPES else np.dtype(dtype).name


def check_suffixes(format: FileFormat) -> None:
    """Raise if the suffixes of a format name no files.

    Raises:
        PluginError: If they do not.
    """
    suffixes = format.suffixes
    if not isinstance(suffixes, tuple | list) or not all(
        isinstance(suffix, str) and suffix[:1] == "." and suffix[1:] for suffix in suffixes
    ):
        raise PluginError.at(
            f"{type(format).__name__}: `suffixes` must be a tuple of texts that begin with a dot, "
            f"such as ('.rec',), but is {suffixes!r}. Tell its author"
        )


def count_sequences(found: FileIndex, where: str) -> int:
    """Return how many sequences a file holds.

    Raises:
        PluginError: If its fields have different numbers of sequences, or invalid names.
    """
    for name in found.fields:
        if not isinstance(name, str) or name in ("", "id"):
            raise _make_error(where, "names of fields must be texts, not empty and not 'id'", name)
    counts = {name: len(extents.begins) for name, extents in found.fields.items()}
    if found.ids is not None:
        counts["ids"] = len(found.ids)
    if len(set(counts.values())) > 1:
        raise PluginError.at(
            f"{where}: fields and ids must have the same number of sequences, but have {counts}. "
            "Tell its author"
        )
    return next(iter(counts.values()))


def check_has_axis(found: FileIndex, where: str) -> None:
    """Raise if no field runs along an axis.

    Raises:
        PluginError: If none does.
    """
    if all(extents.axis is None for extents in found.fields.values()):
        raise PluginError.at(
            f"{where}: at least one field must run along an axis, but {', '.join(found.fields)} "
            "do not. Tell its author"
        )


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
        _check_text(extents, where)
        return
    if not (isinstance(extents.shape, tuple | list) and all(map(_is_whole, extents.shape))):
        raise _make_error(where, "`shape` must be a tuple of integers", extents.shape)
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
    if extents.values is not None:
        _check_values(np.asarray(extents.values), np.dtype(dtype), where)
    if extents.lengths is not None:
        _check_lengths(np.asarray(extents.lengths), count, where)
    if extents.decoder is None and extents.values is None:
        _check_sizes(extents, value_sizes(extents), width, where)


def _check_text(extents: Extents, where: str) -> None:
    if extents.axis is not None or extents.shape or extents.decoder is not None:
        raise _make_error(
            where, "texts must have `axis`=None, no shape and no decoder", extents.axis
        )
    if extents.values is not None:
        raise PluginError.at(
            f"{where}: texts must have no `values` (they are read from the file), but have some. "
            "Tell its author"
        )


def _check_lengths(lengths: NDArray[Any], count: int, where: str) -> None:
    low, high = lengths.min(initial=0), lengths.max(initial=0)
    if not _are_integers(lengths, count) or low < 0 or high > MAX_ROWS:
        raise _make_error(
            where, f"`lengths` must be integers ({count},) in [0, {MAX_ROWS}]",
            f"{lengths.dtype} {list(lengths.shape)} from {low} to {high}",
        )  # fmt: skip


def _check_values(values: NDArray[Any], dtype: np.dtype[Any], where: str) -> None:
    """Raise if a dtype does not hold values as they are; fractions may be rounded.

    Raises:
        PluginError: If it does not.
    """
    must = f"`values` must be what {dtype.name} holds"
    if values.dtype.kind not in "biuf":
        raise _make_error(where, must, f"{values.dtype}")
    with np.errstate(all="ignore"):
        converted = values.astype(dtype)
    same = (converted == values) | ((converted != converted) & (values != values))
    if dtype.kind == "f" and values.dtype.kind == "f":
        same |= np.isfinite(converted)
    if not same.all():
        raise _make_error(where, must, values[~same].flat[0].item())


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


def _is_whole(number: object) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


def _are_integers(values: NDArray[Any], count: int) -> bool:
    return values.shape == (count,) and (values.dtype.kind in "iu" or not count)


def _check_sizes(extents: Extents, sizes: NDArray[np.int64], width: int, where: str) -> None:
    bad = sizes % width != 0 if extents.axis is not None else sizes != width
    if extents.lengths is not None:
        bad |= sizes != np.asarray(extents.lengths) * width
    if bad.any():
        at = int(np.argmax(bad))
        must = f"a multiple of {width}" if extents.axis is not None else f"{width}"
        if extents.lengths is not None:
            needed = int(extents.lengths[at]) * width
            must = f"{width} bytes for each timestep of `lengths`, here {needed}"
        raise PluginError.at(
            f"{where}: the values of sequence {at} must have {must} bytes, but have {sizes[at]}. "
            "Tell its author"
        )


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
