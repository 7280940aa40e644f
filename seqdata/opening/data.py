"""The store of whatever a user may pass as data: a location, a Dataset, tables, lists.

Place in the flow: Loader and DataModule begin here. Reads: locations. Makes: stores.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from seqdata.errors import ConfigError
from seqdata.host import PluginHost
from seqdata.opening.members import STORE_MEMBERS, missing
from seqdata.opening.stores import open_store
from seqdata.protocols import Store
from seqdata.storage.dataset import DatasetStore
from seqdata.storage.memory import MemoryStore
from seqdata.storage.tables import is_frame

_TORCH_DATASET = "torch.utils.data.dataset"
_TORCH_LOADER = "torch.utils.data.dataloader"


def store_of(
    data: Any,
    *,
    lengths: Any = None,
    names: Sequence[str] | None = None,
    host: PluginHost | None = None,
) -> Store:
    """Give the store of whatever a user may pass as data.

    Args:
        data: A location, a store, or sequences in memory: a list of arrays (field ``x``) or of
            dicts, or a pandas, Polars or Arrow table, a row per sequence; or, with ``lengths``, a
            map-style Dataset.
        lengths: Timesteps of each item of a Dataset, or a function that gives them.
        names: Of the parts of its items, where they are tuples of as many parts.
        host: Where a backend is looked up.

    Raises:
        ConfigError: If it is none of these, or ``lengths`` do not go with it.
    """
    if _is_loader(data):
        raise ConfigError(
            f"dataset: a {type(data).__name__} makes batches itself, but sequences are needed. "
            "Pass its dataset: loader.dataset, with `lengths`"
        )
    if is_map_style(data) and (lengths is not None or _needs_lengths(data)):
        if lengths is None:
            raise ConfigError(
                f"dataset: a {type(data).__name__} has no lengths to plan with; pass `lengths`: an "
                "array with the timesteps of each item, or a function that gives those of an item"
            )
        return DatasetStore.of(data, lengths, names=_names_of_parts(data, names))
    if lengths is not None:
        raise ConfigError(
            f"dataset: `lengths` are given for a {type(data).__name__}, must go with a Dataset "
            "only; leave them out: they are known"
        )
    if isinstance(data, str | os.PathLike):
        return open_store(data, host=host)
    if not missing(data, STORE_MEMBERS):
        return cast(Store, data)
    return MemoryStore.of(data)


def is_map_style(data: Any) -> bool:
    """Tell whether data has a length and items by number, and is nothing that we know better."""
    if missing(data, ("__getitem__", "__len__")) or not missing(data, STORE_MEMBERS):
        return False
    return not (isinstance(data, bytes | Mapping | np.ndarray | Sequence) or is_frame(data))


def _is_loader(data: Any) -> bool:
    """Return whether data is a torch DataLoader, without importing torch."""
    return any(one.__module__ == _TORCH_LOADER for one in type(data).__mro__)


def _needs_lengths(data: Any) -> bool:
    """Tell whether map-style data cannot be taken into memory: torch's, or not to be iterated."""
    torch_like = any(one.__module__ == _TORCH_DATASET for one in type(data).__mro__)
    return torch_like or not isinstance(data, Iterable)


def _names_of_parts(data: Any, names: Sequence[str] | None) -> Sequence[str] | None:
    first = data[0] if names is not None and len(data) else None
    return names if isinstance(first, tuple) and len(first) == len(names or ()) else None
