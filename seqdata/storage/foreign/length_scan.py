"""How long the sequences of foreign files are, counted once and kept beside the data.

Bytes in which lengths lie open are just looked at; what is compressed is decoded for it once, one
unit at a time. Place in the flow: between opening files and planning. Reads: list columns. Makes:
lengths.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.storage.digest_trailer import keep_sealed, read_sealed
from seqdata.storage.foreign.arrow_columns import Kind, row_lengths
from seqdata.storage.foreign.table_file import TableFile
from seqdata.storage.lengths import narrow
from seqdata.storage.limits import check_size

CACHE = ".seqdata-lengths-"
_LENGTH = 8  # bytes of one row's, while they are counted


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """What had to be read to plan.

    Attributes:
        rows: int64 (units,), of all files in order.
        lengths: Ragged column -> timesteps of each row, integers (rows,).
        widths: Nested column -> narrowest and widest timestep; (0, 0) where there is none.
    """

    rows: NDArray[np.int64]
    lengths: Mapping[str, NDArray[Any]]
    widths: Mapping[str, tuple[int, int]]


def survey(
    folder: Path, files: Sequence[TableFile], kinds: Mapping[str, Kind], digest: str
) -> Survey:
    """Count the rows and lengths of files.

    Args:
        folder: Where the count is kept, if anything had to be decoded for it and it can be written.
        files: The files.
        kinds: Ragged column -> what it holds.
        digest: Of the files; a count of other files is never taken.

    Raises:
        DecodeError: If a sequence is missing; naming column and row.
        CorruptShardError: If a file is damaged.
        LimitError: If there are very many rows for the bytes of a file.
    """
    cache = folder / f"{CACHE}{digest}.npz"
    decodes = not all(file.mapped for file in files)
    units = sum(file.units for file in files)
    if decodes and (known := _load(cache, kinds, units)) is not None:
        return known
    found = _count(files, kinds)
    if decodes:
        _save(cache, found)
    return found


@dataclass(slots=True)
class _Counting:
    lengths: list[NDArray[np.int64]] = field(default_factory=list)
    widths: list[tuple[int, int]] = field(default_factory=list)


def _count(files: Sequence[TableFile], kinds: Mapping[str, Kind]) -> Survey:
    rows: list[int] = []
    counting = {name: _Counting() for name in kinds}
    for file in files:
        of_file = 0
        for unit in range(file.units):
            count = 0
            for name, kind in kinds.items():
                where = file.place_of(unit, name)
                lengths, widths = row_lengths(where, file.column(unit, name), kind)
                counting[name].lengths.append(lengths)
                if widths is not None:
                    counting[name].widths.append(widths)
                count = len(lengths)
            rows.append(count)
            of_file += count
            check_size(file.place, file.size, _LENGTH * len(kinds) * of_file)
    none = np.empty(0, dtype=np.int64)
    return Survey(
        np.array(rows, dtype=np.int64),
        {name: narrow(np.concatenate([none, *one.lengths])) for name, one in counting.items()},
        {name: _range(one.widths) for name, one in counting.items() if kinds[name].nested},
    )


def _range(widths: list[tuple[int, int]]) -> tuple[int, int]:
    if not widths:
        return 0, 0
    return min(low for low, _ in widths), max(high for _, high in widths)


def _save(cache: Path, found: Survey) -> None:
    content: dict[str, Any] = {"rows": found.rows}
    content |= {f"lengths/{name}": lengths for name, lengths in found.lengths.items()}
    content |= {f"widths/{name}": np.array(widths) for name, widths in found.widths.items()}
    file = io.BytesIO()
    np.savez(file, **content)
    keep_sealed(cache, file.getvalue())  # counted again next time where it cannot be kept


def _load(cache: Path, kinds: Mapping[str, Kind], units: int) -> Survey | None:
    """Return the count that was kept; None if there is none, or it cannot be true."""
    content = read_sealed(cache)
    if content is None:
        return None
    size = len(content)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as kept:
            rows = _array(kept, "rows", size)
            lengths = {name: _array(kept, f"lengths/{name}", size) for name in kinds}
            nested = [name for name, kind in kinds.items() if kind.nested]
            widths = {name: _array(kept, f"widths/{name}", size) for name in nested}
    except (ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile):
        return None
    if rows.shape != (units,) or rows.dtype != np.int64 or (rows < 0).any():
        return None
    count = int(rows.sum())
    whole = all(one.shape == (count,) and one.dtype.kind == "u" for one in lengths.values())
    whole = whole and all(one.shape == (2,) and one.dtype.kind == "i" for one in widths.values())
    pairs = {name: (int(one[0]), int(one[1])) for name, one in widths.items()} if whole else {}
    return Survey(rows, lengths, pairs) if whole else None


def _array(kept: zipfile.ZipFile, name: str, size: int) -> NDArray[Any]:
    """Give one array of the archive, which must be as ``numpy.savez`` writes it.

    Raises:
        ValueError: If it is not.
        KeyError: If it is not there.
    """
    about = kept.getinfo(f"{name}.npy")
    if about.compress_type != zipfile.ZIP_STORED or about.flag_bits & 1:
        raise ValueError(f"{name} is compressed or encrypted")  # sizes would be a matter of trust
    if about.file_size != about.compress_size or about.file_size > size:
        raise ValueError(f"{name} leads out of the file")
    file = io.BytesIO(kept.read(about))
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError(f"{name} is of another version")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.hasobject or len(shape) != 1:
        raise ValueError(f"{name} holds no numbers")
    return np.frombuffer(file.getvalue(), dtype, offset=file.tell(), count=shape[0])
