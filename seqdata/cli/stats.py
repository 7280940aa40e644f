"""``seqdata stats``: what a store holds.

Place in the flow: a store -> a report.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from seqdata.cli._report.console import backend_option, console, examples, reporting, size
from seqdata.cli._report.non_finite import MOST_BYTES, ValueCounts, count_values, float_bytes
from seqdata.cli._report.statistics import LengthFigures, length_figures
from seqdata.protocols import Field, Store
from seqdata.resolve_store import open_store
from seqdata.storage.remote.urls import is_remote, without_secrets

_BAR = 40


@click.command(
    epilog=examples(
        "seqdata stats store/", "seqdata stats store/ --values", "seqdata stats store/ --json"
    )
)
@click.argument("store")
@backend_option
@click.option(
    "--values/--no-values",
    "wanted",
    default=None,
    help="Count NaN and infinite values [default: of local data, up to 1 GiB of floats].",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@reporting
def stats(store: str, backend: str | None, wanted: bool | None, as_json: bool) -> None:
    """Show the fields, shards and lengths of STORE, and which values are not finite."""
    opened = open_store(store, backend=backend)
    facts = describe_store(store, opened)
    lengths = {axis: length_figures(one) for axis, one in opened.lengths_of.items()}
    if wanted is None:
        wanted = not is_remote(store) and float_bytes(opened) <= MOST_BYTES
    values = count_values(opened) if wanted else None
    if as_json:
        counts = None if values is None else {name: asdict(one) for name, one in values.items()}
        of_axes = {axis: asdict(figures) for axis, figures in lengths.items()}
        click.echo(json.dumps({**facts, "lengths": of_axes, "values": counts}, indent=2))
        return
    out = console()
    whole = sum(shard["bytes"] or 0 for shard in facts["shards"])
    count = len(facts["shards"])
    shards = f"{count} shard{'s' if count != 1 else ''}"
    out.print(
        f"{facts['location']}: {len(opened):,} sequences in {shards}"
        + (f", {size(whole)}" if whole else "")
    )
    out.print(_fields(opened))
    for axis, figures in lengths.items():
        _print_lengths(out, axis, figures)
    _print_values(out, values)
    out.print(f"fingerprint {opened.fingerprint}")


def describe_store(location: str, store: Store) -> dict[str, Any]:
    """Give what is known of a store without its lengths, as plain data."""
    return {
        "location": without_secrets(location),
        "sequences": len(store),
        "fingerprint": store.fingerprint,
        "fields": {name: asdict(field) for name, field in store.fields.items()},
        "shards": [{"name": name, "bytes": _bytes(Path(location) / name)} for name in store.shards],
    }


def _bytes(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _fields(store: Store) -> Table:
    table = Table("field", "dtype", "shape", "axis", title="Fields", title_justify="left")
    for name, field in store.fields.items():
        table.add_row(name, field.dtype, shape_text(field), field.axis or "(per sequence)")
    return table


def shape_text(field: Field) -> str:
    """Return the shape of one sequence's values, like ``[T, 80]``."""
    steps = [] if field.axis is None else ["T"]
    return f"[{', '.join([*steps, *map(str, field.shape)])}]"


def field_text(name: str, field: Field) -> str:
    """Return a field with its dtype and, where it is an array, its shape: ``x float32 [T, 80]``."""
    shape = shape_text(field)
    return f"{name} {field.dtype}" + ("" if shape == "[]" else f" {shape}")


def _print_values(out: Console, values: dict[str, ValueCounts] | None) -> None:
    if values is None:
        out.print("values: not read; pass --values to count NaN and infinities")
    elif values:
        bad = {name: one for name, one in values.items() if one.nan or one.inf}
        out.print("values: all finite" if not bad else "values that are not finite:")
        for name, one in bad.items():
            out.print(
                f"  {name}: {one.nan:,} NaN, {one.inf:,} infinite, in {one.sequences:,} sequences",
                style="yellow",
            )


def _print_lengths(out: Console, axis: str, figures: LengthFigures) -> None:
    out.print(f"Lengths along {axis!r}: {figures.total:,} timesteps")
    table = Table("min", "median", "mean", "p95", "max", "empty")
    table.add_row(
        f"{figures.shortest:,}",
        f"{figures.median:,.0f}",
        f"{figures.mean:,.1f}",
        f"{figures.p95:,.0f}",
        f"{figures.longest:,}",
        f"{figures.empty:,}",
    )
    out.print(table)
    most = max(one.count for one in figures.histogram)
    names = [
        f"{one.first:,}" if one.first == one.last else f"{one.first:,}-{one.last:,}"
        for one in figures.histogram
    ]
    wide = max(map(len, names))
    for name, one in zip(names, figures.histogram, strict=True):
        bar = "█" * -(-one.count * _BAR // most)
        out.print(f"  {name:>{wide}}  {bar:<{_BAR}}  {one.count:,}")
