"""The index of an opened table: fields, groups, and the positions of their rows.

It is made by one pass over the table, or read from its cache file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.backends import Field
from seqdata.logical_types import parse_logical_type
from seqdata_frames.grid import Grid

ID = "id"
MASK = "mask"


@dataclass(frozen=True, slots=True, eq=False)
class FrameIndex:
    """The sequences of a table.

    Attributes:
        fields: Name -> field.
        ids: The id of each sequence, ``str``.
        offsets: int64 (sequences+1,), sequence -> its first row.
        statics: Field -> a value per sequence: numbers, strings or bytes.
        dtypes: Column with a value per row -> dtype of its stored values.
        grid: The grid of timesteps; None: each row is one.
        is_sorted: Whether rows are read from a copy that was sorted.
        notes: Warnings that are issued at each opening.
    """

    fields: Mapping[str, Field]
    ids: Sequence[Any]
    offsets: NDArray[np.int64]
    statics: Mapping[str, NDArray[Any] | Sequence[Any]]
    dtypes: Mapping[str, np.dtype[Any]]
    grid: Grid | None
    is_sorted: bool
    notes: list[str]

    @property
    def step_offsets(self) -> NDArray[np.int64]:
        """Sequence -> its first timestep in the concatenation of all, int64 (sequences+1,)."""
        return self.offsets if self.grid is None else self.grid.offsets

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the index as plain data and arrays, for ``from_arrays``."""
        arrays: dict[str, NDArray[Any]] = {"offsets": self.offsets}
        info: dict[str, Any] = {
            "fields": {
                name: [field.dtype, list(field.shape), field.axis, _to_plain(field)]
                for name, field in self.fields.items()
            },
            "dtypes": {name: dtype.str for name, dtype in self.dtypes.items()},
            "statics": list(self.statics),
            "is_sorted": self.is_sorted,
            "notes": self.notes,
            "step": None if self.grid is None else self.grid.step,
        }
        _pack(arrays, "ids", self.ids)
        for number, values in enumerate(self.statics.values()):
            if isinstance(values, np.ndarray):
                arrays[f"static{number}"] = values
            else:
                _pack(arrays, f"static{number}", values)
        if self.grid is not None:
            arrays |= {
                "grid_offsets": self.grid.offsets, "first_keys": self.grid.first_keys,
                "grid_rows": self.grid.rows, "missing": self.grid.missing,
            }  # fmt: skip
        return info, arrays

    @classmethod
    def from_arrays(cls, info: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> FrameIndex:
        """Make an index from the values that ``to_arrays`` returned."""
        fields = {
            name: Field(dtype, tuple(shape), axis, parse_logical_type(logical))
            for name, (dtype, shape, axis, logical) in info["fields"].items()
        }
        statics: dict[str, NDArray[Any] | Sequence[Any]] = {}
        for number, name in enumerate(info["statics"]):
            is_text = f"static{number}.ends" in arrays
            is_bytes = fields[name].dtype == "bytes"
            statics[name] = (
                _unpack(arrays, f"static{number}", is_bytes=is_bytes)
                if is_text
                else arrays[f"static{number}"]
            )
        grid = None
        if info["step"] is not None:
            grid = Grid(
                arrays["grid_offsets"], arrays["first_keys"], info["step"], arrays["grid_rows"],
                arrays["missing"],
            )  # fmt: skip
        dtypes = {name: np.dtype(dtype) for name, dtype in info["dtypes"].items()}
        ids = _unpack(arrays, "ids", is_bytes=False)
        offsets, is_sorted, notes = arrays["offsets"], info["is_sorted"], info["notes"]
        return cls(fields, ids, offsets, statics, dtypes, grid, is_sorted, notes)


def _to_plain(field: Field) -> dict[str, Any] | None:
    return None if field.logical is None else field.logical.to_plain()


@dataclass(frozen=True, slots=True, eq=False)
class PackedStrings(Sequence[Any]):
    """Concatenated strings or bytes, each of which is decoded when it is accessed.

    Attributes:
        content: uint8 (bytes,), the bytes of all values.
        ends: int64 (n,), one past the last byte of each value.
        is_bytes: Whether values are bytes; else they are strings in UTF-8.
    """

    content: NDArray[np.uint8]
    ends: NDArray[np.int64]
    is_bytes: bool

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, number: Any) -> Any:
        stop = int(self.ends[number])
        raw = self.content[int(self.ends[number - 1]) if number else 0 : stop].tobytes()
        return raw if self.is_bytes else raw.decode()


def _pack(arrays: dict[str, NDArray[Any]], name: str, texts: Sequence[Any]) -> None:
    if isinstance(texts, PackedStrings):
        arrays[name], arrays[f"{name}.ends"] = texts.content, texts.ends
        return
    encoded = [text.encode() if isinstance(text, str) else text for text in texts]
    arrays[name] = np.frombuffer(b"".join(encoded), dtype=np.uint8)
    arrays[f"{name}.ends"] = np.cumsum([len(text) for text in encoded], dtype=np.int64)


def _unpack(arrays: Mapping[str, NDArray[Any]], name: str, *, is_bytes: bool) -> PackedStrings:
    return PackedStrings(arrays[name], arrays[f"{name}.ends"], is_bytes)
