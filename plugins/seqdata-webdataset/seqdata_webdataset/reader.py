"""Tar shards as input of ``seqdata write``: each is read once, and no index is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from seqdata.backends import (
    ReadOptions,
    SourceFile,
    default_axis,
    open_once,
)
from seqdata_webdataset.indexed_format import IndexedTar

_SAMPLES_PER_READ = 64  # sequences per read


def read_tar(files: Iterable[SourceFile], options: ReadOptions) -> Iterator[dict[str, Any]]:
    """Yield the samples of tar shards; files with other suffixes are skipped.

    A field is named by its extension, and ``id`` is the key.

    Args:
        files: The files, in order.
        options: Must be empty: shards have no options.

    Raises:
        ConfigError: If an option is given.
        DataError: If a shard is damaged, or does not hold samples.
    """
    options.one_field("webdataset")
    for file in files:
        if file.path.suffix == ".tar":
            yield from _iter_samples(file.path)


def _iter_samples(path: Path) -> Iterator[dict[str, Any]]:
    store = open_once(path, IndexedTar())
    names = list(store.fields)
    axis = default_axis(store.lengths_of)
    for first in range(0, len(store), _SAMPLES_PER_READ):
        numbers = np.arange(first, min(first + _SAMPLES_PER_READ, len(store)))
        spans = np.zeros((len(numbers), 3), dtype=np.int64)
        spans[:, 0], spans[:, 2] = numbers, store.lengths_of[axis][numbers]
        columns = store.read(spans, names, axis=axis)
        for at, key in enumerate(store.keys(numbers)):
            yield {"id": key, **{name: _get_value(store.fields[name].axis, columns[name], at)
                                 for name in names}}  # fmt: skip


def _get_value(axis: str | None, column: Any, at: int) -> Any:
    value = column[at]
    return value[0] if axis is None and isinstance(value, np.ndarray) else value
