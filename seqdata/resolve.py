"""Resolution of arguments of users: of data to stores, of names to policies and collators.

Loader, DataModule, ``seqdata.api`` and the command begin here, with what users pass.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from seqdata.arguments import is_sequence, select_options, takes_option
from seqdata.detect import LocationLike, detect_backend_at, find_backend, refuse_binary_file
from seqdata.errors import ConfigError, PluginError, SeqDataError, did_you_mean, must_be
from seqdata.host import PluginHost, default_host
from seqdata.linked_axes import Axis
from seqdata.planning.policy import as_policy, find_base_policy
from seqdata.protocols import Collator, Opener, Policy, Store
from seqdata.readers.groups import iter_groups, refuse_order_alone
from seqdata.readers.missing import Missing, refuse_missing_alone
from seqdata.readers.row_tables import find_table_files, find_table_kind
from seqdata.readers.source import ReadOptions
from seqdata.storage.concat import concat_stores, find_item_stores
from seqdata.storage.dataset import DatasetStore
from seqdata.storage.dataset_items import DatasetItems
from seqdata.storage.indexed.file_format import FileFormat
from seqdata.storage.inputs import Axes, is_table, to_arrow_table
from seqdata.storage.linking import Clocks, name_axes, resolve_clocks, split_clocks
from seqdata.storage.memory import MemoryStore
from seqdata.storage.parts import PartsStore, join_parts
from seqdata.storage.remote.options import Remote, select_remote
from seqdata.storage.views import SequenceStore, as_sequence_store, link_axes

_TORCH_DATASET = "torch.utils.data.dataset"
_TORCH_LOADER = "torch.utils.data.dataloader"

CollatorLike = Collator | Callable[[list[dict[str, Any]]], Any]
"""A collator, or a torch ``collate_fn``."""

POLICY_MEMBERS = ("axis", "num_batches", "plan")
STORE_MEMBERS = ("base_numbers", "fields", "fingerprint", "keys", "lengths", "lengths_of", "read")


def resolve_store(  # noqa: PLR0913
    data: Any,
    *,
    lengths: Any = None,
    names: Sequence[str] | None = None,
    group: str | None = None,
    order: str | None = None,
    missing: Missing | None = None,
    axes: Mapping[str, Any] | None = None,
    rates: Clocks | None = None,
    as_items: bool = False,
    remote: str | Remote | None = None,
    host: PluginHost | None = None,
) -> SequenceStore:
    """Return the store of data that a user passes.

    Args:
        data: A location, a store, or a list of these; sequences in memory: a list of arrays (field
            ``x``), tuples or dicts, or a pandas, Polars or Arrow table; or, with ``lengths``, a
            map-style Dataset.
        lengths: Number of timesteps of each item of a Dataset, or a function that returns it.
        names: Names of the elements of items, if these are tuples of the same length.
        group: The column whose equal values make a sequence, of a table with a row per timestep.
        order: The column by which the rows of a group are sorted; None if they are in order.
        missing: The rule for missing values of a table with ``group``.
        axes: Field -> axis, for data in memory; field or axis -> ``Axis``, for any data.
        rates: Field or axis -> sampling rate.
        as_items: Whether data with ``lengths``, also a list, has items for a ``collate_fn``.
        remote: Access to a URL, of a table with ``group``.
        host: The plugin host that finds a backend.

    Raises:
        ConfigError: If the data is none of these, or an argument does not fit it.
    """
    clocks, names_of_axes = split_clocks(rates, axes)
    if as_items and lengths is not None and (is_map_style(data) or is_sequence(data)):
        names = None if is_sequence(data) else _match_names(data, names)
        return DatasetStore.from_dataset(data, lengths, names=names, axes=axes, may_be_opaque=True)
    is_stored = is_location(data) or are_locations(data) or is_store(data)
    if is_stored and group is order is missing is None:
        refuse_axes_of_locations(names_of_axes)
    else:
        names_of_axes = name_axes(clocks, names_of_axes)
    refuse_missing_alone(missing, group)
    if group is not None or order is not None:
        store = open_groups(data, group, order, missing, names_of_axes, remote=remote, host=host)
    else:
        store = _resolve_data(data, lengths, names, names_of_axes, host)
    return add_clocks(store, clocks)


def add_clocks(store: SequenceStore, clocks: Mapping[str, Axis]) -> SequenceStore:
    """Return a store whose axes have clocks; the store itself if none are given.

    Args:
        store: Any store.
        clocks: Field or axis -> clock.

    Raises:
        ConfigError: If there is no such field or axis, or an axis has two clocks.
    """
    if not clocks:
        return store
    return link_axes(store, resolve_clocks(store.fields, store.lengths_of, clocks))


def refuse_axes_of_locations(axes: Axes | None) -> None:
    """Raise ConfigError if axes are named for data whose axes are known.

    Raises:
        ConfigError: If ``axes`` is given.
    """
    if axes is not None:
        raise ConfigError(
            "`axes` is for data in memory, but the data is a path, URL or store, whose axes are "
            "known. Leave it out, or pass it to `write_store`"
        )


def _resolve_data(
    data: Any,
    lengths: Any,
    names: Sequence[str] | None,
    axes: Axes | None,
    host: PluginHost | None,
) -> SequenceStore:
    """Return the store of data whose axes have no clocks yet; see ``resolve_store``."""
    if _is_loader(data):
        raise ConfigError(
            f"dataset: a {type(data).__name__} makes batches itself, but sequences are needed. "
            "Pass its dataset: loader.dataset, with `lengths`"
        )
    if is_map_style(data) and (lengths is not None or _needs_lengths(data)):
        if lengths is None:
            raise ConfigError(
                f"dataset: a {type(data).__name__} has no lengths to plan with; pass `lengths`: an "
                "array with the number of timesteps of each item, or a function that returns it"
            )
        return DatasetStore.from_dataset(data, lengths, names=_match_names(data, names), axes=axes)
    if lengths is not None:
        raise ConfigError(
            "dataset: `lengths` are for a Dataset only, but the data is a "
            f"{type(data).__name__}, whose lengths are known. Leave them out."
        )
    if is_location(data) or are_locations(data):
        return open_locations(data, {"host": host})
    if is_store(data):
        return as_sequence_store(cast(Store, data))
    if data is None:
        raise ConfigError(
            "data: must be a path, a store, or sequences, but is None. Pass the data; a function "
            "that loads it may lack its `return`"
        )
    store = MemoryStore.from_sequences(data, axes)
    part_names = _match_names(data, names) if isinstance(data, list | tuple) else None
    if part_names is None:
        return store
    return store.rename(dict(zip(store.fields, part_names, strict=True)))


def resolve_parts(
    data: Mapping[str, Any],
    policy: Policy,
    lengths: Any = None,
    names: Sequence[str] | None = None,
    **clocks: Any,
) -> PartsStore:
    """Return named data as the parts of one store, for a policy that draws from them.

    Args:
        data: Name -> data that ``resolve_store`` takes.
        policy: Policy that draws from the parts.
        lengths: Lengths of the items of Datasets: name -> lengths, or a function of an item.
        names: As in ``resolve_store``.
        **clocks: ``axes``, ``rates`` and ``as_items`` of every part, as in ``resolve_store``.

    Raises:
        ConfigError: If the policy does not draw from parts, a part is invalid or empty, or parts
            have other fields than the first.
    """
    if not as_policy(find_base_policy(policy)).policies:
        raise ConfigError(
            f"data: {len(data)} named stores need a policy that draws from them, but `batching` is "
            f"a {type(policy).__name__}. Pass Mix({{name: weight, ...}}, policy), or Zip({{name: "
            "policy, ...}), or one store."
        )
    parts: dict[str, Store] = {}
    as_items = bool(clocks.get("as_items"))
    for name, part in data.items():
        own_lengths = lengths.get(name) if isinstance(lengths, Mapping) else lengths
        if callable(own_lengths) and not takes_lengths(part, as_items=as_items):
            own_lengths = None
        try:
            parts[name] = resolve_store(part, lengths=own_lengths, names=names, **clocks)
        except SeqDataError as error:
            raise type(error).at(f"data: part {name!r}: {error}", **error.details) from error
    have_items = as_items and all(map(find_item_stores, parts.values()))
    read_together = not as_policy(policy).zips_parts and not have_items
    return join_parts(parts, read_together=read_together)


def resolve_rows(
    data: Any,
    axes: Axes | None = None,
    group: str | None = None,
    order: str | None = None,
    missing: Missing | None = None,
) -> tuple[Any, Any]:
    """Return the sequences for a writer and their axes; ``group`` or ``order`` group rows.

    Raises:
        ConfigError: If ``group`` or ``order`` does not fit the data.
    """
    refuse_missing_alone(missing, group)
    if group is not None or order is not None:
        return group_rows(data, group, order, missing, axes)
    if is_map_style(data) and _needs_lengths(data):
        return DatasetItems(data), axes
    return data, axes


def resolve_policy(
    policy: str | Policy,
    options: Mapping[str, Any] | None = None,
    *,
    host: PluginHost | None = None,
) -> Policy:
    """Return a policy by its name, or the passed policy.

    Args:
        policy: A policy, or the name of one.
        options: Keyword arguments for a named policy.
        host: The plugin host that finds names.

    Raises:
        ConfigError: If an argument is missing or unknown, or this is not a policy.
        PluginError: If the name is unknown, or its plugin's factory does not return a policy.
    """
    if isinstance(policy, str):
        factory = (host or default_host()).policy(policy)
        resolved = _call_factory("policy", policy, factory, options or {})
        if missing_names := find_missing_members(resolved, POLICY_MEMBERS):
            raise PluginError(
                f"policy {policy!r}: its factory must return a Policy, but returned a "
                f"{type(resolved).__name__} without {', '.join(missing_names)}. Report it to the "
                "author of the plugin."
            )
        return cast(Policy, resolved)
    if options:
        raise ConfigError(
            f"policy {policy!r}: options {dict(options)!r} are for a named policy only. Pass "
            "them to the policy itself."
        )
    if isinstance(policy, type) or find_missing_members(policy, POLICY_MEMBERS):
        raise ConfigError(
            must_be("`batching`", "a policy or the name of one", f"{policy!r}", "E.g. Bucketed(64)")
        )
    return policy


def resolve_collator(collator: str | CollatorLike, *, host: PluginHost | None = None) -> Collator:
    """Return a collator by its name, or the passed collator.

    A function of one argument is a torch ``collate_fn``, which receives a list of samples.

    Raises:
        ConfigError: If this is not a collator.
        PluginError: If the name is unknown, or its plugin's factory does not return a collator.
    """
    if isinstance(collator, str):
        resolved = _call_factory(
            "collator", collator, (host or default_host()).collator(collator), {}
        )
        if not callable(resolved):
            raise PluginError(
                f"collator {collator!r}: its factory must return a callable, but returned a "
                f"{type(resolved).__name__}. Report it to the author of the plugin."
            )
        return cast(Collator, resolved)
    if isinstance(collator, type) or not callable(collator):
        raise ConfigError(
            must_be("`collator`", "a collator or the name of one", f"{collator!r}", "E.g. 'padded'")
        )
    if not _takes_one_argument(collator):
        return cast(Collator, collator)
    from seqdata.collators.collate_fn import Samples  # torch is imported only if needed

    return Samples(cast(Callable[..., Any], collator))


def is_collate_fn(collator: Any) -> bool:
    """Return whether a collator is a torch ``collate_fn``: a function of one argument."""
    if isinstance(collator, str | type) or not callable(collator):
        return False
    return hasattr(collator, "collate_fn") or _takes_one_argument(collator)


def choose_collator(
    collator: CollatorLike | str | None, collate_fn: Callable[[list[Any]], Any] | None
) -> CollatorLike | str | None:
    """Return the collator of the two arguments.

    Raises:
        ConfigError: If both are given, or the function does not take one argument.
    """
    if collate_fn is None:
        return collator
    if collator is not None:
        raise ConfigError(
            "loader: `collator` and `collate_fn` cannot both be given. Leave one of them out"
        )
    if not is_collate_fn(collate_fn):
        needed = "a function of one argument, a list of items"
        raise ConfigError(must_be("loader: `collate_fn`", needed, f"{collate_fn!r:.200}"))
    return collate_fn


def open_location(
    location: LocationLike,
    *,
    backend: str | Opener | FileFormat | None = None,
    verify: str | None = None,
    schema: Mapping[str, Any] | None = None,
    index: str | None = None,
    remote: str | Remote | None = None,
    host: PluginHost | None = None,
) -> SequenceStore:
    """Open a path or URL, without reading data; see ``open_store``.

    A store that has only the members of the protocol is wrapped, so that every store can be
    inspected and selected from.

    Args:
        location: A path or a URL.
        backend: Name of a backend, a ``FileFormat``, or a function that opens a location; None:
            found from the location.
        verify: Time at which checksums of the data are compared.
        schema: Types of fields, for backends that need them.
        index: ``"build"``: build the index that a backend needs, if it is missing.
        remote: Access to a URL.
        host: The plugin host that finds names; None: the installed plugins.

    Raises:
        ConfigError: If there is no such data, or an argument is invalid.
        PluginError: If the backend is not installed or broken.
        DataError: If the data is incomplete.
    """
    host = host or default_host()
    name = detect_backend_at(location, remote, host) if backend is None else backend
    if name == "arrow" and backend is None:
        refuse_binary_file(location)
    opener = find_backend(name, location, host)
    options = {"schema": schema, "index": index, "remote": remote, "verify": verify}
    always = {"verify": options.pop("verify")} if takes_option(opener, "verify") else {}
    store = opener(location, **always, **select_options("open_store", opener, name, options))
    if isinstance(store, SequenceStore):
        return store
    if missing_names := find_missing_members(store, STORE_MEMBERS):
        raise PluginError(
            f"backend {name!r}: must return a Store, but returned a {type(store).__name__} "
            f"without {', '.join(missing_names)}. Report it to the author of the plugin."
        )
    return as_sequence_store(store)


def open_groups(
    data: Any,
    group: str | None,
    order: str | None,
    missing: Missing | None,
    axes: Axes | None,
    *,
    backend: str | Opener | FileFormat | None = None,
    verify: str | None = None,
    remote: str | Remote | None = None,
    host: PluginHost | None = None,
) -> SequenceStore:
    """Return the store of a table with a row per timestep: in memory, or as a backend reads it.

    Args:
        data: A table, in memory or in files.
        group: The column whose equal values make a sequence.
        order: The column by which the rows of a group are sorted; None if they are in order.
        missing: The rule for missing values.
        axes: Field -> axis; None: one value per sequence.
        backend: The backend; None: the one that an installed package offers for such a table, else
            it is read into memory.
        verify: Time at which checksums of the data are compared.
        remote: Access to URLs, whose files are fetched.
        host: The plugin host that finds names.

    Raises:
        ConfigError: If the data is not a table, there is no such column, or the backend does not
            take `group`.
    """
    host = host or default_host()
    refuse_order_alone(order, group)
    if backend is None and missing != "drop":  # which only memory can
        backend = find_table_backend(data, host, remote)
    if backend is None:
        rows, axes = group_rows(data, group, order, missing, axes, host, remote=remote)
        return MemoryStore.from_sequences(rows, axes)
    opener = find_backend(backend, "table", host)
    options = {
        "verify": verify, "group": group, "order": order, "missing": missing, "axes": axes,
        "remote": remote,
    }  # fmt: skip
    return as_sequence_store(opener(data, **select_options("open_store", opener, backend, options)))


def find_table_backend(
    data: Any, host: PluginHost, remote: str | Remote | None = None
) -> str | None:
    """Return the backend that a package offers for a table with a row per timestep, if any."""
    if not host.table_claims():
        return None
    if is_stream(data):
        return host.backend_of_tables("stream")
    if is_location(data):
        data = [data]
    if not are_locations(data) or not all(map(is_location, data)):
        return None
    kinds = {find_table_kind(each, remote) for each in data}
    return host.backend_of_tables(kinds.pop()) if len(kinds) == 1 else None


def is_stream(data: Any) -> bool:
    """Return whether data is a stream of Arrow batches or a Polars LazyFrame."""
    is_lazy = any(
        base.__name__ == "LazyFrame" and base.__module__.partition(".")[0] == "polars"
        for base in type(data).__mro__
    )
    return is_lazy or (hasattr(data, "__arrow_c_stream__") and not is_table(data))


def group_rows(
    data: Any,
    group: str | None,
    order: str | None,
    missing: Missing | None,
    axes: Axes | None,
    host: PluginHost | None = None,
    *,
    remote: str | Remote | None = None,
) -> tuple[Iterator[Any], Axes | None]:
    """Return an iterator over the sequences of a table's groups, and the axes of fields.

    Args:
        data: A table, in memory or in files.
        group: The column whose equal values make a sequence.
        order: The column by which the rows of a group are sorted; None if they are in order.
        missing: The rule for missing values.
        axes: Field -> axis; None: one value per sequence.
        host: The plugin host that finds readers.
        remote: Access to URLs, whose files are fetched.

    Raises:
        ConfigError: If the data is not a table, or there is no such column.
    """
    refuse_order_alone(order, group)
    single = [name for name, axis in (axes or {}).items() if axis is None]
    if is_location(data) or (are_locations(data) and all(map(is_location, data))):
        options = ReadOptions(group=group, order=order, per_sequence=tuple(single), missing=missing)
        locations = [data] if is_location(data) else data
        found = find_table_files(locations, remote=remote)
        read = (host or default_host()).reader(found.kind)
        return found.hold(read(found.files, options)), axes
    if not is_table(data):
        raise ConfigError(
            f"`group` is {group!r}, but the data is a {type(data).__name__}: it is for a pandas, "
            "Polars or Arrow table with a row per timestep, or the path of one. Leave it "
            "out, or read the table first"
        )
    return iter_groups(to_arrow_table(data), str(group), single, order, missing), axes


def is_location(data: object) -> bool:
    """Return whether data is a path or a URL."""
    return isinstance(data, str | os.PathLike)


def is_store(data: object) -> bool:
    """Return whether data has the members of a store."""
    return isinstance(data, SequenceStore) or not find_missing_members(data, STORE_MEMBERS)


def are_locations(data: object) -> bool:
    """Return whether data is a list of locations and stores, judged by its first item."""
    if not is_sequence(data) or not data:
        return False
    first = data[0]
    return is_location(first) or (not isinstance(first, np.ndarray | dict) and is_store(first))


def is_map_style(data: Any) -> bool:
    """Return whether data has a length and items by index, and is not of a known type."""
    if find_missing_members(data, ("__getitem__", "__len__")) or is_store(data):
        return False
    return not (isinstance(data, bytes | Mapping | np.ndarray | Sequence) or is_table(data))


def takes_lengths(data: Any, *, as_items: bool) -> bool:
    """Return whether lengths may be given by a function of an item.

    Args:
        data: A Dataset, or, with ``as_items``, a list of items for a ``collate_fn``.
        as_items: Whether a list may be one of items.
    """
    return is_map_style(data) or (as_items and is_sequence(data) and not are_locations(data))


def find_missing_members(obj: object, members: Iterable[str]) -> list[str]:
    """Return the members that an object does not have."""
    present = set(dir(obj))  # not hasattr: it would compute properties
    return [member for member in members if member not in present]


def open_locations(data: Any, options: Mapping[str, Any]) -> SequenceStore:
    """Return the store of a location, or of a list of locations and stores."""
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
            remote = select_remote(options.get("remote"), item, filter(is_location, data))
            stores.append(open_location(item, **{**options, "remote": remote}))
        except ConfigError as error:
            text = f"data: item {number} of the list: {error}"
            if isinstance(item, str) and not os.path.exists(item):  # it may be data, not a path
                text = f"{text.rstrip('.')}. A list of strings is a list of paths; encode text "
                text += "that is data, e.g. np.frombuffer(text.encode(), np.uint8)"
            raise ConfigError(text) from error
    return concat_stores(stores)


def _is_loader(data: Any) -> bool:
    """Return whether data is a torch DataLoader, without importing torch."""
    return any(base.__module__ == _TORCH_LOADER for base in type(data).__mro__)


def _needs_lengths(data: Any) -> bool:
    """Return whether map-style data needs ``lengths``: a torch Dataset, or not iterable."""
    torch_like = any(base.__module__ == _TORCH_DATASET for base in type(data).__mro__)
    return torch_like or not isinstance(data, Iterable)


def _match_names(data: Any, names: Sequence[str] | None) -> Sequence[str] | None:
    first = data[0] if names is not None and len(data) else None
    return names if isinstance(first, tuple) and len(first) == len(names or ()) else None


def _takes_one_argument(function: Callable[..., Any]) -> bool:
    """Return whether a function must be given exactly one argument."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # written in C, without a signature
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [
        parameter
        for parameter in parameters
        if parameter.kind in kinds and parameter.default is parameter.empty
    ]
    is_variadic = any(
        parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters
    )
    return len(required) == 1 and not is_variadic


def _call_factory(
    kind: str, name: str, factory: Callable[..., Any], options: Mapping[str, Any]
) -> Any:
    signature = inspect.signature(factory)
    try:
        signature.bind(**options)
    except TypeError as error:
        message = re.sub(r"required argument: '(\w+)'", r"required argument: `\1`", str(error))
        unknown = [option for option in options if option not in signature.parameters]
        hint = did_you_mean(unknown[0], signature.parameters) if unknown else ""
        raise ConfigError(
            f"{kind} {name!r}: {message}. It takes "
            f"{', '.join(signature.parameters) or 'nothing'}{'; ' if hint else ''}{hint}"
        ) from error
    return factory(**options)
