"""Tar shards as input of ``seqdata write``: each is read once, and no index is written."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from seqdata import SeqDataWarning
from seqdata.backends import (
    ReadOptions,
    ShardStore,
    SourceFile,
    default_axis,
    find_key,
    open_once,
)
from seqdata_webdataset.indexed_format import IndexedTar

_SAMPLES_PER_READ = 64  # sequences per read


def read_tar(files: Iterable[SourceFile], options: ReadOptions) -> Iterator[dict[str, Any]]:
    """Yield the samples of tar shards; files with other suffixes are skipped.

    A field is named by its extension, and ``id`` is the key, unless members have that extension:
    these are kept, with a warning.

    Args:
        files: The files, in order.
        options: Must be empty: shards have no options.

    Raises:
        ConfigError: If an option is given.
        DataError: If a shard is damaged, or does not hold samples.
    """
    options.one_field("webdataset")
    lost = False
    for file in files:
        if file.path.suffix.lower() != ".tar":
            continue
        store = open_once(file.path, IndexedTar())
        if not lost and "id" in store.fields and find_key(store.fields, "id") is None:
            lost = True  # once, not for each shard
            _warn_of_lost_keys(file.path)
        yield from _iter_samples(store)


def _warn_of_lost_keys(path: Path) -> None:
    """Warn that keys are left out, as they are where a store with such a field is written."""
    warnings.warn(
        f"{path}: keys are left out: its members '.id' become the field 'id', which does not hold "
        "texts. To keep the keys, open the shards, `rename` the field, and pass that to "
        "`write_store`",
        SeqDataWarning,
        stacklevel=3,
    )


def _iter_samples(store: ShardStore) -> Iterator[dict[str, Any]]:
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
