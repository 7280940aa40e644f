"""``seqdata stats``: the fields, shards and lengths of a store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from seqdata.api import open_store
from seqdata.cli._report.console import (
    backend_option,
    format_bytes,
    format_examples,
    iter_table,
    join_locations,
    json_option,
    keep_whole,
    print_report,
    report_errors,
    stores_argument,
)
from seqdata.cli._report.statistics import (
    MAX_BYTES_UNASKED,
    LengthStats,
    ValueCounts,
    compute_length_stats,
    count_float_bytes,
    count_values,
    find_date_ranges,
)
from seqdata.logical_types import Categories, describe_codes
from seqdata.protocols import Field, Store
from seqdata.storage.concat import ConcatStore
from seqdata.storage.local_files import is_remote, local_path
from seqdata.storage.remote.urls import redact_secrets
from seqdata.storage.store_repr import format_dtype

_BAR_WIDTH = 40


@click.command(
    short_help="Show fields, lengths and shards of a store.",
    epilog=format_examples(
        "seqdata stats store/",
        "seqdata stats store/ --values",
        "seqdata stats store/ --json",
        "seqdata stats books-1/ books-2/",
    ),
)
@stores_argument
@backend_option
@click.option(
    "--values/--no-values",
    "show_values",
    default=None,
    help="Count NaN and infinite values [default: of local data, up to 1 GiB of floats].",
)
@json_option
@report_errors
def stats(
    stores: tuple[str, ...], backend: str | None, show_values: bool | None, as_json: bool
) -> None:
    """Show the fields, shards and lengths of STORE, and which values are not finite.

    Several stores with the same fields are shown as one.
    """
    opened_store = open_store(join_locations(stores), backend=backend)
    info = describe_store(stores, opened_store)
    lengths = {axis: compute_length_stats(item) for axis, item in opened_store.lengths_of.items()}
    if show_values is None:
        is_local = not any(map(is_remote, stores))
        show_values = is_local and count_float_bytes(opened_store) <= MAX_BYTES_UNASKED
    values = count_values(opened_store) if show_values else None
    dates = find_date_ranges(opened_store) if show_values else {}
    plain = {
        **info,
        "lengths": {axis: asdict(figures) for axis, figures in lengths.items()},
        "values": None if values is None else {name: asdict(item) for name, item in values.items()},
    }
    if dates:
        plain["dates"] = {name: {"first": low, "last": high} for name, (low, high) in dates.items()}
    lines = _iter_lines(opened_store, info, lengths, values, dates)
    print_report(plain, lines, as_json=as_json)


def _iter_lines(
    store: Store,
    info: Mapping[str, Any],
    lengths: Mapping[str, LengthStats],
    values: Mapping[str, ValueCounts] | None,
    dates: Mapping[str, tuple[str, str]],
) -> Iterator[str | Text]:
    total_bytes = sum(shard["bytes"] or 0 for shard in info["shards"])
    count = len(info["shards"])
    shards = f"{count} shard{'s' if count != 1 else ''}"
    yield (
        f"{info['location']}: {_format_sequences(len(store))} in {shards}"
        + (f", {format_bytes(total_bytes)}" if total_bytes else "")
    )
    yield from _iter_fields_table(store)
    for axis, figures in lengths.items():
        yield from _iter_length_lines(axis, figures)
    for name, field in store.fields.items():
        if isinstance(field.logical, Categories):
            count = len(field.logical.values)
            yield f"{name}: {count:,} strings: {describe_codes(field.logical.values)}"
        if name in dates:
            yield f"{name}: {' to '.join(dates[name])}"
    yield from _iter_value_lines(values)
    yield f"fingerprint {store.fingerprint}"


def describe_store(locations: Sequence[str], store: Store) -> dict[str, Any]:
    """Return information about a store, without its lengths, as plain data.

    Args:
        locations: Location of the store; several for a store that joins them.
        store: The store.
    """
    stores: Sequence[Store] = [store]
    if isinstance(store, ConcatStore) and len(store.stores) == len(locations):
        stores = store.stores
    return {
        "location": ", ".join(map(redact_secrets, locations)),
        "sequences": len(store),
        "fingerprint": store.fingerprint,
        "fields": {name: _field_to_plain(field) for name, field in store.fields.items()},
        "shards": [
            {"name": name, "bytes": size}
            for location, part in zip(locations, stores, strict=False)
            for name, size in zip(part.shards, find_sizes(location, part.shards), strict=True)
        ],
    }


def _field_to_plain(field: Field) -> dict[str, Any]:
    plain: dict[str, Any] = {"dtype": field.dtype, "shape": field.shape, "axis": field.axis}
    return plain if field.logical is None else plain | {"logical": field.logical.to_plain()}


def find_sizes(location: str, names: Sequence[str]) -> list[int | None]:
    """Return the sizes of a store's files in bytes; None for a file that is remote or not found.

    Args:
        location: A file or a folder; files of a glob are not found.
        names: Names of the shards: file names, or paths below the folder.
    """
    if is_remote(location):
        return [None] * len(names)
    path = local_path(location)
    if path.is_file() and len(names) == 1:
        return [_file_size(path)]
    return [_file_size(path / name) for name in names]


def _file_size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _format_sequences(count: int) -> str:
    return f"{count:,} sequence{'s' if count != 1 else ''}"


def _iter_fields_table(store: Store) -> Iterator[Text]:
    titles = ("field", "dtype", "shape", "axis")
    rows = [
        (name, format_dtype(field), format_shape(field), field.axis or "(per sequence)")
        for name, field in store.fields.items()
    ]
    return iter_table(titles, rows, left=titles)


def format_shape(field: Field) -> str:
    """Return the shape of one sequence's values, like ``[T, 80]``."""
    steps = [] if field.axis is None else ["T"]
    return f"[{', '.join([*steps, *map(str, field.shape)])}]"


def format_field(name: str, field: Field) -> str:
    """Return a field with its dtype and, for an array, its shape: ``x float32 [T, 80]``."""
    shape = format_shape(field)
    return f"{name} {format_dtype(field)}" + ("" if shape == "[]" else f" {shape}")


def _iter_value_lines(values: Mapping[str, ValueCounts] | None) -> Iterator[str | Text]:
    if values is None:
        yield "values: not read; pass --values to count NaN and infinities"
    elif values:
        bad = {name: count for name, count in values.items() if count.nan or count.inf}
        yield "values: all finite" if not bad else "values that are not finite:"
        for name, count in bad.items():
            yield Text(
                f"  {name}: {count.nan:,} NaN, {count.inf:,} infinite, in "
                f"{_format_sequences(count.sequences)}",
                style="yellow",
            )


def _iter_length_lines(axis: str, figures: LengthStats) -> Iterator[str | Text]:
    yield f"Lengths along {axis!r}: {figures.total:,} timesteps"
    titles = ("min", "median", "mean", "p95", "max", "empty")
    cells = (
        f"{figures.shortest:,}",
        f"{figures.median:,.0f}",
        f"{figures.mean:,.1f}",
        f"{figures.p95:,.0f}",
        f"{figures.longest:,}",
        f"{figures.empty:,}",
    )
    yield from iter_table(titles, [cells])
    max_count = max(length_bin.count for length_bin in figures.histogram)
    names = [
        f"{length_bin.first:,}"
        if length_bin.first == length_bin.last
        else f"{length_bin.first:,}-{length_bin.last:,}"
        for length_bin in figures.histogram
    ]
    width = max(map(len, names))
    widest = max(len(f"{length_bin.count:,}") for length_bin in figures.histogram)
    for name, length_bin in zip(names, figures.histogram, strict=True):
        bar = "█" * -(-length_bin.count * _BAR_WIDTH // max_count)
        yield keep_whole(f"  {name:>{width}}  {length_bin.count:>{widest},}  {bar}".rstrip())
