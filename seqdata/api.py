"""The functions for data: open a store, write one, split it, join several.

``measure_lengths`` is in ``seqdata.loading``, since it runs transforms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from seqdata.arguments import select_options, takes_option
from seqdata.detect import TAR, LocationLike
from seqdata.errors import ConfigError, check_flags, must_be, warn
from seqdata.host import PluginHost, default_host
from seqdata.linked_axes import Axis
from seqdata.protocols import Opener, Store, SupportsWriting
from seqdata.readers.groups import refuse_order_alone
from seqdata.readers.missing import Missing
from seqdata.resolve import (
    add_clocks,
    are_locations,
    find_table_backend,
    is_location,
    is_store,
    open_groups,
    open_locations,
    refuse_axes_of_locations,
    resolve_rows,
    resolve_store,
)
from seqdata.storage import splitting
from seqdata.storage.arrow.write import SHARD_BYTES, write_arrow
from seqdata.storage.concat import concat_stores
from seqdata.storage.dataset_items import check_axes
from seqdata.storage.fields import ID_FIELD
from seqdata.storage.find_files import find_split
from seqdata.storage.indexed.file_format import FileFormat
from seqdata.storage.inputs import Axes
from seqdata.storage.linking import Clocks, keep_clocks, name_axes, split_clocks
from seqdata.storage.local_files import is_remote
from seqdata.storage.parts import find_carried_transform
from seqdata.storage.remote.options import Remote
from seqdata.storage.span_store import find_longest_context
from seqdata.storage.splitting import Folds
from seqdata.storage.store_rows import StoreSequences
from seqdata.storage.time_split import TimeUnit, split_along
from seqdata.storage.views import SequenceStore, View, as_sequence_store, with_ids
from seqdata.storage.writing.sharded_writer import is_part_list
from seqdata.storage.writing.table_files import refuse_table_name

if TYPE_CHECKING:
    from concurrent.futures import Executor


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
    id: str | None = None,
    group: str | None = None,
    order: str | None = None,
    missing: Missing | None = None,
    split: str | None = None,
    axes: Mapping[str, Any] | None = None,
    rates: Clocks | None = None,
) -> SequenceStore:
    """Open a dataset, without reading its data into memory (except tables with ``group``).

    Args:
        location: A path, a URL or data in memory. A path or URL is that of a folder from
            ``write_store``, of an Arrow, Feather or Parquet file, of a folder of such files, or of
            anything that an installed plugin reads. Data in memory is a list of arrays or dicts, a
            pandas, Polars or Arrow table, or a torch Dataset with ``lengths``. A list of locations
            or stores becomes one store.
        backend: Name of a backend, a ``FileFormat`` (``seqdata.backends``), or a function that
            opens a location; None: derived from the location.
        verify: Frequency of the comparison of checksums. ``"first_read"``: once in a run, shared by
            its worker processes. ``"always"``: at each read. ``"off"``: never. None:
            ``first_read`` if the store has checksums. Sizes, footers and the manifest are always
            checked.
        schema: Types of fields, for backends that need them; for tar shards, extension -> type.
        index: ``"build"`` builds the index that a backend needs, if it is missing.
        remote: Access to a URL. ``"cache"`` downloads whole shards and keeps them on this machine.
            ``"ranges"`` downloads only the bytes that a batch needs. A ``Remote`` has more options.
            None: ``"cache"``.
        host: Plugin host that finds names; None: the installed plugins.
        lengths: Number of timesteps of each item of a torch Dataset, or a function that returns it.
        id: Field whose values, strings or integers, name the sequences; it remains a field. None:
            the field ``id``, if it exists and has strings. With ``group``, the values of the group
            name the sequences.
        group: Column that identifies the sequence of a row, for a table with a row per timestep.
            The table may also be a path or URL (CSV, JSON lines, Parquet, Arrow), and is read into
            memory. The package ``seqdata-frames`` reads it in parts, and sorts on disk if needed.
        order: Column by which the rows of each group are sorted, such as the time. None: the rows
            of a group must be adjacent, and no column of dates may decrease within a group.
        missing: Treatment of missing values of a table with ``group``: ``"nan"``, ``"drop"`` (drop
            their rows), ``"error"``, or a number that replaces them. None: NaN in columns of
            floats, with a warning, and an error in other columns.
        split: Name of a split, such as ``"train"``, in a folder with several: a saved
            ``DatasetDict``, or files and folders with these names. None: the folder has one split.
        axes: For data in memory, field -> axis, or None for a value or vector per sequence. For any
            data, field or axis -> ``Axis`` (sampling rate and time of the first sample).
        rates: Field or axis -> sampling rate in samples per second. Axes with rates are linked: a
            window or chunk covers the same time on each of them.

    Raises:
        ConfigError: If the data does not exist, or an argument is invalid or does not match it.
        PluginError: If the backend is not installed or broken.
        DataError: If the data is incomplete.
        RemoteReadError: If a URL cannot be read.

    Examples:
        >>> open_store([[1, 2, 3], [4]]).lengths.tolist()
        [3, 1]
    """
    options = {
        "backend": backend, "verify": verify, "schema": schema, "index": index, "remote": remote,
        "host": host,
    }  # fmt: skip
    in_memory = {
        "lengths": lengths, "group": group, "order": order, "missing": missing, "axes": axes,
        "rates": rates,
    }  # fmt: skip
    if split is not None:
        if not is_location(location) or is_remote(location):
            kind = "URL" if is_location(location) else type(location).__name__
            raise ConfigError(
                f"open_store: `split` ({split!r}) is for the path of a folder, but the data is a "
                f"{kind}. Leave it out"
            )
        location = find_split(location, split)
    if id is None:
        return _open(location, options, in_memory)
    if group is not None:
        raise ConfigError(
            f"open_store: `id` and `group` cannot be combined, but are {id!r} and {group!r}: a "
            "group names its sequence. Leave `id` out"
        )
    return with_ids(_open(location, options, in_memory), id)


def write_store(  # noqa: PLR0913
    location: LocationLike,
    sequences: Any,
    *,
    format: str = "arrow",
    axes: Mapping[str, Any] | None = None,
    rates: Clocks | None = None,
    shard_bytes: int = SHARD_BYTES,
    key: str = "id",
    executor: Executor | None = None,
    resume: bool = True,
    progress: bool | Callable[[int, int], None] | None = None,
    overwrite: bool = False,
    remote: Remote | None = None,
    id: str | None = None,
    group: str | None = None,
    order: str | None = None,
    missing: Missing | None = None,
    shuffle: int | None = None,
) -> SequenceStore:
    """Write sequences, completely or not at all, and open the result.

    Args:
        location: Folder that is missing, empty or left by a stopped writer, or a URL.
        sequences: Dicts of arrays, numbers, ``str`` or ``bytes``, with the same fields in all of
            them; arrays, as the field ``x``; a pandas, Polars or Arrow table; a store, view, path,
            list of paths or torch Dataset; or functions that return such data (*parts*) and run on
            the executor.
        format: ``arrow``, or a backend that can write, such as ``webdataset``.
        axes: Field -> axis, or None for a vector per sequence. Other arrays run along ``time``.
            Also field or axis -> ``Axis``, as in ``open_store``.
        rates: Field or axis -> sampling rate, as in ``open_store``; the store keeps the rates.
            None: the rates of ``sequences``, if this is a store.
        shard_bytes: Size in bytes at which a new file begins.
        key: Field of ``str`` that names the sequences, if it exists. With "", indices name the
            sequences, and ids are an ordinary field.
        executor: Executor that writes the shards; None: threads of seqdata. Files do not depend on
            it. One unfinished shard is in memory, or, with an executor, up to 1 GiB of them.
        resume: Whether to continue after complete shards of a stopped writer; False removes them.
        progress: Whether to show a progress bar, or a function (sequences, bytes) that is called
            with both counts; None: a bar if standard error is a terminal.
        overwrite: Whether to replace an existing store, once the new one is complete.
        remote: Access to a URL, as in ``open_store``; None: the defaults. The store is first
            written on this machine.
        id: Field whose values name the sequences, as in ``open_store``; for a generator, ``key``.
        group: Column that identifies the sequence of a row, as in ``open_store``.
        order: Column by which the rows of each group are sorted, as in ``open_store``.
        missing: Treatment of missing values, as in ``open_store``.
        shuffle: Seed of a random order of writing; None: the given order. Ids do not change. Data
            without random access, such as a generator, is first copied to disk.

    Raises:
        ConfigError: If an argument is invalid, there is no sequence, or the location is not empty.
        DataError: If fields of a sequence differ from those of the first, if a sequence changed, or
            if the disk is full.
        RemoteReadError: If a URL cannot be reached.
        WorkerDiedError: If the executor failed.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_store(f"{folder}/store", [{"x": [1, 2, 3]}, {"x": [4]}]).lengths.tolist()
        [3, 1]
    """
    check_flags("write_store", resume=resume, overwrite=overwrite)
    refuse_table_name("write_store", location)
    options: dict[str, Any] = {"remote": remote, "shuffle": _check_seed(shuffle)}
    write, options = _find_writer(format, options)
    clocks, axes = split_clocks(rates, axes)
    if not (is_store(sequences) or is_location(sequences) or are_locations(sequences)):
        axes = name_axes(clocks, axes)
    if id is not None:
        sequences, axes = _open_with_ids(sequences, id, axes, key, group)
    sequences, axes, kept = _prepare_input(sequences, axes, clocks, key, group, order, missing)
    options |= _select_clocks(write, format, kept, is_given=bool(clocks))
    options |= {"shard_bytes": shard_bytes, "executor": executor, "progress": progress}
    options |= {"resume": resume, "overwrite": overwrite}
    return as_sequence_store(write(location, sequences, axes=axes, key=key, **options))


def split(  # noqa: PLR0913
    store: Any,
    parts: Mapping[str, Any],
    *,
    seed: int = 0,
    by: str | None = None,
    exact: bool = False,
    stratify: str | None = None,
    along: str | None = None,
    context: int = 0,
    unit: TimeUnit | None = None,
    lengths: Any = None,
) -> dict[str, View]:
    """Split sequences into parts by a hash of each id or of a field, or along time.

    A sequence stays in its part when data is appended or reordered, and sequences with equal values
    of ``by`` stay together. Hashes of strings, and of the 8 bytes of numbers, are equal on every
    machine. Parts have their fractions approximately. With ``exact``, they have them up to
    rounding, but a few sequences may change their part when data is appended.

    With ``along``, each sequence is cut at dates of a timestamp field, or at timesteps, and each
    piece keeps the id. A part has the timesteps in ``[start, stop)``.

    Args:
        store: A store, a location, or other data that ``open_store`` accepts.
        parts: Name -> fraction of the sequences; fractions add up to 1. With ``along``, name ->
            fraction of each sequence, or range, such as ``"..2024-01-01"`` or ``"100..200"``, or,
            along an axis, ``"-24.."``.
        seed: Seed of the hash; not with ``along``.
        by: Field of ``str``, or of one number per sequence, such as ``"speaker"``; None: the id.
        exact: Whether each part has its rounded fraction of the sequences, or, with ``by``, of the
            values of ``by``.
        stratify: Field as for ``by``, such as ``"label"``. Every part then has its fraction of each
            value, as nearly as whole sequences allow. Implies ``exact``.
        along: Field of timestamps, or axis, along which each sequence is cut.
        context: Number of timesteps before the start of a part that ``Windows`` of this part may
            read, but never as targets.
        unit: Unit of timestamps: ``s``, ``ms``, ``us`` or ``ns``; None: the unit of the first one.
        lengths: Lengths of the items of a torch Dataset.

    Returns:
        Name -> view, in the order of the store.

    Raises:
        ConfigError: If an argument is invalid, or a part is empty.
        DataError: If timestamps of a sequence decrease; the message names the sequence.

    Examples:
        >>> rows = [{"x": [number], "y": number % 2} for number in range(10)]
        >>> parts = split(rows, {"train": 0.8, "val": 0.2}, stratify="y")
        >>> sorted(int(row["y"]) for row in parts["val"])
        [0, 1]
        >>> split([[1, 2, 3]], {"train": "..2", "val": "2.."}, along="time")["val"][0]["x"]
        array([3])
    """
    opened = resolve_store(store, lengths=lengths)
    if along is None:
        _refuse_without("along", {"context": context or None, "unit": unit})
        return splitting.split(opened, parts, seed=seed, by=by, exact=exact, stratify=stratify)
    _refuse_with("along", seed=seed or None, by=by, exact=exact or None, stratify=stratify)
    cut = split_along(opened, parts, along, context=context, unit=unit)
    return splitting.SplitViews({name: View(part) for name, part in cut.items()})


def folds(
    store: Any,
    count: int,
    *,
    seed: int = 0,
    by: str | None = None,
    stratify: str | None = None,
    lengths: Any = None,
) -> Folds:
    """Return the pairs (training view, validation view) of a cross-validation.

    Every sequence is in exactly one validation view. Ids, or the values of ``by``, are ordered by
    the hash of ``split`` and distributed one by one, so that the sizes of folds differ by at most
    one id or value.

    Args:
        store: A store, a location, or other data that ``open_store`` accepts.
        count: Number of folds, at least 2.
        seed: Seed of the hash.
        by: Field of ``str``, or of one number per sequence, whose equal values stay together; None:
            the id.
        stratify: Field of ``str``, or of one number per sequence, each of whose values is
            distributed evenly over the folds.
        lengths: Lengths of the items of a torch Dataset.

    Returns:
        A sequence of ``count`` pairs; each is created on access.

    Raises:
        ConfigError: If ``count`` is not an integer of at least 2; there are fewer sequences, or
            values of ``by``, than folds; a field does not exist; or both ``by`` and ``stratify``
            are given.

    Examples:
        >>> [len(val) for train, val in folds([[1], [2], [3], [4], [5]], 2)]
        [3, 2]
    """
    opened = resolve_store(store, lengths=lengths)
    return splitting.folds(opened, count, seed=seed, by=by, stratify=stratify)


def concat(stores: Sequence[Any]) -> SequenceStore:
    """Return the sequences of several stores as one store, one after the other.

    A sequence keeps its id, and messages have its location, so several stores may have sequences
    with the same id. Sequences without ids are numbered consecutively.

    Args:
        stores: Stores, locations, or other data that ``open_store`` accepts, all with the same
            fields; ``select`` and ``rename`` of a store make them equal.

    Raises:
        ConfigError: If the list is empty, if fields differ (the message shows both), or if the
            stores have different transforms.

    Examples:
        >>> store = concat([[[1, 2], [3]], [[4, 5, 6]]])
        >>> store.lengths.tolist()
        [2, 1, 3]
    """
    if is_location(stores) or is_store(stores) or not isinstance(stores, Sequence):
        raise ConfigError(
            f"concat: stores must be given as a list, but this is a {type(stores).__name__}. Write "
            "concat([first, second])"
        )
    return concat_stores([resolve_store(source) for source in stores])


def _refuse_with(option: str, **passed: Any) -> None:
    for name, value in passed.items():
        if value is not None:
            raise ConfigError(
                f"split: `{name}` cannot be given with `{option}`, but is {value!r}: every "
                "sequence is cut in the same way. Leave one of them out"
            )


def _refuse_without(option: str, passed: Mapping[str, Any]) -> None:
    for name, value in passed.items():
        if value is not None:
            raise ConfigError(
                f"split: `{name}` requires `{option}`, but is {value!r} without it. Pass "
                f"`{option}`, or leave it out"
            )


def _open(location: Any, options: dict[str, Any], in_memory: dict[str, Any]) -> SequenceStore:
    """Open locations by ``options``, and tables and data in memory by ``in_memory``."""
    passed = [name for name, value in options.items() if value is not None and name != "host"]
    locations = [location] if is_location(location) else location if are_locations(location) else []
    is_table = any(in_memory[name] is not None for name in ("group", "order", "missing"))
    if is_table and options["backend"] is not None:
        _refuse_beside_groups({name: options[name] for name in ("schema", "index")}, in_memory)
        _refuse_lengths(in_memory["lengths"])
        clocks, axes = split_clocks(in_memory["rates"], in_memory["axes"])
        table = {name: in_memory[name] for name in ("group", "order", "missing")}
        chosen = {name: options[name] for name in ("backend", "verify", "remote", "host")}
        return add_clocks(open_groups(location, **table, axes=axes, **chosen), clocks)
    if passed and not locations:
        raise ConfigError(
            f"open_store: `{passed[0]}` is for a path or URL, but the data is a "
            f"{type(location).__name__}. Leave it out"
        )
    if locations:
        _refuse_lengths(in_memory["lengths"])
    if locations and not is_table:
        if in_memory["rates"] is None and in_memory["axes"] is None:
            return open_locations(location, options)
        clocks, names = split_clocks(in_memory["rates"], in_memory["axes"])
        refuse_axes_of_locations(names)
        return add_clocks(open_locations(location, options), clocks)
    _refuse_beside_groups({name: options[name] for name in passed if name != "remote"}, in_memory)
    return resolve_store(location, host=options["host"], remote=options["remote"], **in_memory)


def _refuse_beside_groups(options: Mapping[str, Any], in_memory: Mapping[str, Any]) -> None:
    """Raise if an option of stores is passed where the rows of a table are grouped."""
    passed = [name for name in ("group", "order", "missing") if in_memory[name] is not None]
    for name, value in options.items():
        if value is not None:
            raise ConfigError(
                f"open_store: `{name}` opens a store, but `{passed[0]}` reads a table. Leave one "
                "out"
            )


def _refuse_lengths(lengths: Any) -> None:
    """Raise if lengths are passed, which are only for data in memory."""
    if lengths is not None:
        raise ConfigError(
            "open_store: `lengths` is for data in memory, but the data is a path or URL. The "
            "lengths of stored data are known. Leave it out"
        )


def _open_with_ids(
    sequences: Any, id: str, axes: Axes | None, key: str, group: str | None
) -> tuple[SequenceStore, Axes | None]:
    """Return sequences as a store whose ids are the values of a field, and the axes to write."""
    if group is not None or key != ID_FIELD:
        other = f"`group` ({group!r})" if group is not None else f"`key` ({key!r})"
        raise ConfigError(
            f"write_store: `id` ({id!r}) and {other} cannot be combined: both name sequences. "
            "Leave one out"
        )
    if is_part_list(sequences) or isinstance(sequences, Iterator):
        raise ConfigError(
            f"write_store: `id` ({id!r}) is for a store, a path, a list or a table, but the data "
            f"is a {type(sequences).__name__}. Pass `key`, the field that names them"
        )
    is_opened = is_store(sequences) or is_location(sequences) or are_locations(sequences)
    store = with_ids(resolve_store(sequences, axes=None if is_opened else axes), id)
    return store, axes if is_opened else None


def _prepare_input(
    data: Any,
    axes: Mapping[str, str | None] | None,
    clocks: dict[str, Axis],
    key: str,
    group: str | None,
    order: str | None,
    missing: Missing | None,
) -> tuple[Any, Mapping[str, str | None] | None, dict[str, Axis]]:
    """Return sequences in the form that a writer takes, the axes of their fields, their clocks."""
    check_axes(axes)
    refuse_order_alone(order, group)
    if group is not None and missing != "drop" and find_table_backend(data, default_host()):
        data, group, order = open_groups(data, group, order, missing, axes), None, None
        missing = None
    is_located = is_location(data) or are_locations(data)
    if is_store(data) or (is_located and group is None):
        store = resolve_store(data)
        if context := find_longest_context(store):
            raise ConfigError(
                "write_store: the data must have no context (`split(..., context=)`), which a "
                f"store cannot tell from other timesteps, but has up to {context} timesteps of "
                "it. Write a part that was split without `context`, or the store before the split"
            )
        carried = find_carried_transform(store)
        if carried is None:
            store, clocks = add_clocks(store, clocks), {}
        rows = StoreSequences(store, key)
        if carried is not None:
            rows = carried.make_rows(store, carried, key)
        data, axes = rows, {**rows.axes, **(axes or {})}
        kept = keep_clocks(store)
        clocks = {name: kept[name] for name in kept if name in axes.values()} | clocks
    return *resolve_rows(data, axes, group, order, missing), clocks


def _select_clocks(
    write: Any, format: str, kept: Mapping[str, Axis], *, is_given: bool
) -> dict[str, Any]:
    """Return the argument for the clocks of axes, if there are any and the writer records them."""
    if is_given:
        return select_options("write_store", write, format, {"rates": kept})
    if not kept or takes_option(write, "rates"):
        return {"rates": kept} if kept else {}
    warn(
        f"write_store: {format!r} does not record sampling rates, so those of {', '.join(kept)} "
        "are dropped. Pass `rates` when opening it, or write format='arrow'",
    )
    return {}


def _check_seed(shuffle: Any) -> int | None:
    """Return a seed as an ``int``, or None.

    Raises:
        ConfigError: If it is something else.
    """
    if shuffle is None:
        return None
    is_integer = isinstance(shuffle, int | np.integer) and not isinstance(shuffle, bool)
    if not is_integer or not 0 <= shuffle < 1 << 64:
        needed = "an integer in [0, 2**64), the seed of a random order, or None"
        remedy = "Pass for example `shuffle=0`"
        raise ConfigError(must_be("write_store: `shuffle`", needed, repr(shuffle), remedy))
    return int(shuffle)


def _find_writer(
    format: str, options: Mapping[str, Any]
) -> tuple[Callable[..., Store], dict[str, Any]]:
    """Return the writer of a format, and its options that are not None."""
    if format == "arrow":
        return write_arrow, select_options("write_store", write_arrow, format, options)
    backend: object = default_host().find("backend", format) if isinstance(format, str) else None
    if not isinstance(backend, SupportsWriting):
        raise ConfigError(
            must_be(
                "write_store: `format`",
                "'arrow' or an installed backend that writes",
                f"{format!r}",
                f"For {TAR.backend!r}: pip install {TAR.package}",
            )
        )
    return backend.write, select_options("write_store", backend.write, format, options)
