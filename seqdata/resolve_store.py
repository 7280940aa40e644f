"""The store of whatever holds sequences: a location, several, a store, a Dataset, tables, lists.

Place in the flow: ``open_store``, Loader, DataModule and all that takes data begin here. Reads:
locations. Makes: stores.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from seqdata.errors import ConfigError
from seqdata.host import PluginHost
from seqdata.open_location import open_location
from seqdata.protocols import Opener, Store
from seqdata.readers.tables import iter_groups
from seqdata.required_members import STORE_MEMBERS, missing_members
from seqdata.storage.concat import concat_stores
from seqdata.storage.dataset import DatasetStore
from seqdata.storage.dataset_items import as_mapping
from seqdata.storage.indexed.formats import FileFormat
from seqdata.storage.inputs import Axes, is_table, to_arrow_table
from seqdata.storage.memory import MemoryStore
from seqdata.storage.remote.options import Remote
from seqdata.storage.views import SequenceStore, as_sequence_store

_TORCH_DATASET = "torch.utils.data.dataset"
_TORCH_LOADER = "torch.utils.data.dataloader"


def open_store(  # noqa: PLR0913
    location: Any,
    *,
    backend: str | Opener | FileFormat | None = None,
    verify: str | None = None,
    schema: Mapping[str, Any] | None = None,
    index: str | None = None,
    remote: str | Remote | None = None,
    host: PluginHost | None = None,
    lengths: Any = None,
    group: str | None = None,
    axes: Axes | None = None,
) -> SequenceStore:
    """Open whatever holds sequences, reading no data yet that is not in memory.

    Args:
        location: A path or a URL: a folder that ``write_store`` wrote; an Arrow, Feather or Parquet
            file that others wrote, or a folder of them; or a form that an installed plugin reads. A
            list of these, or of stores, which become one store. Or data in memory: a list of arrays
            or dicts, a pandas, Polars or Arrow table, a torch Dataset with its ``lengths``.
        backend: Name of a backend, a ``FileFormat`` (``seqdata.backends``), or a function that
            opens a location; None: chosen by the location's form.
        verify: When checksums of the data are looked at: ``"first_read"``: once in a run, shared
            by its worker processes; ``"always"``: at each read; ``"off"``: never. None is
            ``first_read`` where the store has checksums. Sizes, footers and the manifest are
            checked in any case.
        schema: What fields hold, for backends that must be told; of tar shards: extension -> type.
        index: ``"build"``: make the index that a backend reads by, where there is none.
        remote: How a URL is read: ``"cache"`` (None): shards as a whole, kept on this machine;
            ``"ranges"``: only the bytes that a batch needs; or a ``Remote`` with more to say.
        host: Where names are looked up; None: the installed plugins.
        lengths: Timesteps of each item of a torch Dataset, or a function that returns them.
        group: Column whose equal values make a sequence, of a table with a row per timestep.
        axes: Of data in memory: field -> axis; None: a value or vector per sequence.

    Raises:
        ConfigError: If nothing lies there, or an argument is invalid or does not go with the data.
        PluginError: If the backend is not installed or broken.
        DataError: If what lies there is not whole.

    Examples:
        >>> open_store([[1, 2, 3], [4]]).lengths.tolist()
        [3, 1]
    """
    options = {
        "backend": backend, "verify": verify, "schema": schema, "index": index, "remote": remote,
        "host": host,
    }  # fmt: skip
    passed = [name for name, value in options.items() if value is not None and name != "host"]
    locations = [location] if is_location(location) else location if are_locations(location) else []
    if passed and not locations:
        raise ConfigError(
            f"open_store: `{passed[0]}` goes with a path or URL, but the data is a "
            f"{type(location).__name__}. Leave it out"
        )
    if locations:
        _refuse_for_locations({"lengths": lengths, "group": group, "axes": axes})
        return _open_locations(location, options)
    return resolve_store(location, lengths=lengths, group=group, axes=axes, host=host)


def _refuse_for_locations(passed: Mapping[str, Any]) -> None:
    """Refuse what goes with data in memory only."""
    advice = {
        "lengths": "It is for a torch Dataset; of what is stored they are known. Leave it out",
        "group": "Read the table (e.g. pd.read_parquet) and pass it with `group`, or write a store "
        "once: `seqdata write TABLE OUT --group COLUMN`",
        "axes": "Of what is stored they are known: leave it out, or pass it to `write_store`",
    }
    for name, value in passed.items():
        if value is not None:
            raise ConfigError(
                f"open_store: `{name}` goes with data in memory, but the data is a path. "
                f"{advice[name]}"
            )


def resolve_store(
    data: Any,
    *,
    lengths: Any = None,
    names: Sequence[str] | None = None,
    group: str | None = None,
    axes: Axes | None = None,
    host: PluginHost | None = None,
) -> SequenceStore:
    """Return the store of whatever a user may pass as data.

    Args:
        data: A location, a store, or a list of these; sequences in memory: a list of arrays (field
            ``x``), tuples or dicts, or a pandas, Polars or Arrow table; or, with ``lengths``, a
            map-style Dataset.
        lengths: Timesteps of each item of a Dataset, or a function that gives them.
        names: Of the parts of its items, where they are tuples of as many parts.
        group: The column whose equal values make a sequence, of a table with a row per timestep.
        axes: Of data in memory: field -> axis.
        host: Where a backend is looked up.

    Raises:
        ConfigError: If it is none of these, or ``lengths`` or ``group`` do not go with it.
    """
    if _is_loader(data):
        raise ConfigError(
            f"dataset: a {type(data).__name__} makes batches itself, but sequences are needed. "
            "Pass its dataset: loader.dataset, with `lengths`"
        )
    if group is not None:
        return MemoryStore.of(*group_rows(data, group, axes))
    if is_map_style(data) and (lengths is not None or _needs_lengths(data)):
        if lengths is None:
            raise ConfigError(
                f"dataset: a {type(data).__name__} has no lengths to plan with; pass `lengths`: an "
                "array with the timesteps of each item, or a function that gives those of an item"
            )
        return DatasetStore.of(data, lengths, names=_match_names(data, names))
    if lengths is not None:
        raise ConfigError(
            f"dataset: `lengths` are given for a {type(data).__name__}, must go with a Dataset "
            "only; leave them out: they are known"
        )
    if is_location(data) or are_locations(data):
        return _open_locations(data, {"host": host})
    if is_store(data):
        return as_sequence_store(cast(Store, data))
    if data is None:
        raise ConfigError(
            "data: must be a path, a store, or sequences, but is None. Pass what holds the "
            "sequences; a function that loads it may lack its `return`"
        )
    store = MemoryStore.of(data, axes)
    part_names = _match_names(data, names) if isinstance(data, list | tuple) else None
    return (
        store
        if part_names is None
        else store.rename(dict(zip(store.fields, part_names, strict=True)))
    )


def _open_locations(data: Any, options: Mapping[str, Any]) -> SequenceStore:
    """Open a location, or several as one store."""
    if is_location(data):
        return open_location(data, **options)
    stores: list[Store] = []
    for number, item in enumerate(data):
        if is_store(item):
            stores.append(item)
            continue
        if not is_location(item):
            raise ConfigError(
                f"data: a list of paths or stores must hold nothing else, but item {number} is a "
                f"{type(item).__name__}. Open it first, with open_store"
            )
        try:
            stores.append(open_location(item, **options))
        except ConfigError as error:
            raise ConfigError(
                f"data: item {number} of the list: {error}. A list of texts is a list of paths; "
                "text as data is encoded first, e.g. np.frombuffer(text.encode(), np.uint8)"
            ) from error
    return concat_stores(stores)


def resolve_rows(data: Any, axes: Axes | None = None, group: str | None = None) -> tuple[Any, Any]:
    """Return data in memory as a writer takes it, with its axes; anything else as it is.

    Raises:
        ConfigError: If ``group`` does not go with it.
    """
    if group is not None:
        return group_rows(data, group, axes)
    if is_map_style(data) and _needs_lengths(data):
        return _iter_items(data), axes
    return data, axes


def group_rows(data: Any, group: str, axes: Axes | None) -> tuple[Iterator[Any], Axes | None]:
    """Return a sequence for the rows of each value of a column, and the axes of fields.

    Raises:
        ConfigError: If this is not a table, or there is no such column.
    """
    if not is_table(data):
        raise ConfigError(
            f"`group` is {group!r}, but the data is a {type(data).__name__}: it goes with a "
            "pandas, Polars or Arrow table with a row per timestep. Leave it out, or read the "
            "table first"
        )
    single = [name for name, axis in (axes or {}).items() if axis is None]
    return iter_groups(to_arrow_table(data), group, single), axes


def is_location(data: object) -> bool:
    """Return whether data is a path or a URL."""
    return isinstance(data, str | os.PathLike)


def is_store(data: object) -> bool:
    """Return whether data has what the contract of a store asks for."""
    return isinstance(data, SequenceStore) or not missing_members(data, STORE_MEMBERS)


def are_locations(data: object) -> bool:
    """Return whether data is a list of locations and stores, as its first item tells."""
    if not isinstance(data, list | tuple) or not data:
        return False
    first = data[0]
    return is_location(first) or (not isinstance(first, np.ndarray | dict) and is_store(first))


def is_map_style(data: Any) -> bool:
    """Return whether data has a length and items by number, and is nothing that we know better."""
    if missing_members(data, ("__getitem__", "__len__")) or is_store(data):
        return False
    return not (isinstance(data, bytes | Mapping | np.ndarray | Sequence) or is_table(data))


def _is_loader(data: Any) -> bool:
    """Return whether data is a torch DataLoader, without importing torch."""
    return any(base.__module__ == _TORCH_LOADER for base in type(data).__mro__)


def _needs_lengths(data: Any) -> bool:
    """Return whether map-style data cannot be taken into memory: torch's, or not to be iterated."""
    torch_like = any(base.__module__ == _TORCH_DATASET for base in type(data).__mro__)
    return torch_like or not isinstance(data, Iterable)


def _iter_items(dataset: Any) -> Iterator[Mapping[str, Any]]:
    for number in range(len(dataset)):
        yield as_mapping(dataset[number], None)


def _match_names(data: Any, names: Sequence[str] | None) -> Sequence[str] | None:
    first = data[0] if names is not None and len(data) else None
    return names if isinstance(first, tuple) and len(first) == len(names or ()) else None
