"""Reading of spans from the sources of fields.

Place in the flow: stores of files delegate their reads to it. Reads: spans. Makes: columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError
from seqdata.protocols import Field
from seqdata.storage.fields import make_unknown_name_error
from seqdata.storage.store_fields import FieldSource


def check_read(
    location: str,
    fields: Mapping[str, Field],
    axes: Iterable[str],
    spans: NDArray[np.int64],
    names: Iterable[str],
    axis: str,
) -> None:
    """Raise if a request is invalid.

    Raises:
        ConfigError: If a field or the axis does not exist, or spans have another shape.
    """
    if spans.ndim != 2 or spans.shape[1] != 3:
        raise ConfigError(
            f"{location}: `spans` must have shape (n, 3): sequence, start, stop, but have "
            f"{spans.shape}"
        )
    axes = list(axes)
    if axis not in axes:
        raise make_unknown_name_error(location, "axis", axis, axes)
    for name in names:
        if name not in fields:
            raise make_unknown_name_error(location, "field", name, fields)


def read_sources(
    location: str,
    sources: Mapping[str, FieldSource],
    fields: Mapping[str, Field],
    lengths_of: Mapping[str, NDArray[Any]],
    spans: NDArray[np.int64],
    names: Iterable[str],
    axis: str,
) -> dict[str, Any]:
    """Return the columns of a batch; see ``protocols.Store.read``.

    Args:
        location: For messages.
        sources: Field -> its source.
        fields: Name -> field.
        lengths_of: Axis -> timesteps of each sequence.
        spans: int64 (n, 3), C-contiguous.
        names: Of fields.
        axis: The axis that spans cut.

    Raises:
        ConfigError: If a field or the axis does not exist.
    """
    names = list(names)
    check_read(location, fields, lengths_of, spans, names, axis)
    whole: dict[str | None, NDArray[np.int64]] = {axis: spans}
    columns: dict[str, Any] = {}
    for name in names:
        source = sources[name]
        along = fields[name].axis
        if along not in whole:
            whole[along] = whole_spans(spans[:, 0], along, lengths_of)
        columns[name] = source.column(whole[along])
    return columns


def whole_spans(
    numbers: NDArray[np.int64], axis: str | None, lengths_of: Mapping[str, NDArray[Any]]
) -> NDArray[np.int64]:
    """Return the spans of whole sequences; unknown numbers are refused by the read."""
    spans = np.zeros((len(numbers), 3), dtype=np.int64)
    spans[:, 0] = numbers
    spans[:, 2] = 1 if axis is None else lengths_of[axis].take(numbers, mode="clip")
    return spans
