"""Description of the data of a DataModule: for people, and the sizes that a model needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import numpy as np

from seqdata.fitting.labels import FittedLabels
from seqdata.fitting.statistics import Statistics
from seqdata.fitting.vocabulary import FIRST_ID, FittedVocabulary
from seqdata.loading.pictures import chart_planned
from seqdata.planning.build import describe_policy
from seqdata.plotting.page import render_figure, render_line, render_object, render_table
from seqdata.protocols import Field
from seqdata.runs.data_sources import DataSources
from seqdata.runs.options import DataKind, DataOptions
from seqdata.storage.fields import kind_of


def measure_sizes(
    options: DataOptions, sources: DataSources, label: str | None
) -> dict[str, dict[str, int]]:
    """Return ``features``, ``vocabulary`` and ``classes``: field -> number.

    Args:
        options: Options of the DataModule.
        sources: Its stores.
        label: Field of labels, which is not a feature; None: there is none.
    """
    sizes: dict[str, dict[str, int]] = {"features": {}, "vocabulary": {}, "classes": {}}
    kinds: tuple[DataKind, ...] = get_args(DataKind)
    store = next(filter(None, map(sources.get_store, kinds)), None)
    if store is None:
        return sizes
    statistics = options.statistics if isinstance(options.statistics, Statistics) else None
    for name, field in store.fields.items():
        if options.fields is not None and name not in options.fields:
            continue
        fitted = statistics[name] if statistics is not None and name in statistics else None
        if isinstance(fitted, FittedLabels):
            sizes["classes"][name] = len(fitted.classes)
        elif isinstance(fitted, FittedVocabulary):
            sizes["vocabulary"][name] = len(fitted.tokens) + FIRST_ID
        elif categories := _find_categories(field):
            sizes["vocabulary"][name] = len(categories)
        elif name != label and kind_of(field).is_array and (fitted or _is_float(field)):
            sizes["features"][name] = int(np.prod(field.shape))
    return sizes


def _is_float(field: Field) -> bool:
    return np.dtype(field.dtype).kind == "f"


def format_title(name: str, options: DataOptions) -> str:
    """Return the name of a DataModule, its kinds of data and its policy.

    Args:
        name: Name of its class.
        options: Its options.
    """
    kinds = [
        kind
        for kind in get_args(DataKind)
        if options.get_locations(kind) and options.find_part(kind) in (None, kind)
    ]
    batching = options.batching
    if not isinstance(batching, str):
        batching = describe_policy(batching, brief=True)
    return f"{name}({', '.join(kinds)}; {batching})"


def describe_opened(title: str, sources: DataSources) -> str:
    """Return a title, and a line for each kind of data that ``setup`` has opened.

    Args:
        title: The first line.
        sources: The stores of a DataModule; none is opened.
    """
    lines = [f"  {kind}: {', '.join(map(str, row))}" for kind, *row in _iter_opened(sources)]
    return "\n".join([title, *lines])


def format_opened(title: str, options: DataOptions, sources: DataSources) -> str:
    """Return the opened kinds of data as HTML for notebooks, with histograms and statistics.

    Args:
        title: The title.
        options: Options of the DataModule.
        sources: Stores of the DataModule; none is opened.
    """
    rows = list(_iter_opened(sources))
    if not rows:
        return render_object(title, [render_line("nothing is opened: call setup() first")])
    elements = [render_table(("data", "sequences", "steps"), rows)]
    for kind in get_args(DataKind):
        for engine in sources.get_engines(kind):
            elements += map(render_figure, chart_planned(engine))
    if isinstance(options.statistics, Statistics):
        elements.append(options.statistics._repr_html_())
    return render_object(title, elements)


def _iter_opened(sources: DataSources) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the sequences and the steps of each loader that ``setup`` has made."""
    for kind in get_args(DataKind):
        for engine in sources.get_engines(kind):
            yield (
                engine.options.name or kind,
                f"{len(engine.index):,} sequences",
                f"{engine.num_steps:,} steps",
            )


def _find_categories(field: Field) -> Any:
    return getattr(getattr(field, "logical", None), "values", None)


def describe_sources(title: str, options: DataOptions, sources: DataSources) -> str:
    """Open the data, and return its description: a line per kind, notes, and statistics.

    Args:
        title: The first line.
        options: Options of the DataModule.
        sources: Its stores.
    """
    return "\n".join([title, *_iter_lines(options, sources)])


def _iter_lines(options: DataOptions, sources: DataSources) -> Iterator[str]:
    noted: list[str] = []
    for kind in get_args(DataKind):
        part = options.find_part(kind)
        if part is not None and part != kind:
            continue  # predict, which is test
        store = sources.get_store(kind)
        if store is None:
            continue
        lengths = ", ".join(
            f"{int(np.sum(values, dtype=np.int64)):,} along {axis!r}"
            for axis, values in store.lengths_of.items()
        )
        yield f"  {kind}: {len(store):,} sequences, {lengths}"
        noted += [note for note in sources.notes.get(kind, ()) if note not in noted]
    for note in noted:
        yield f"  {note}"
    if options.split is not None:
        yield f"  split: {dict(options.split)}"
    for note in sources.split_notes:
        yield f"  {note}"
    if isinstance(options.statistics, Statistics):
        yield f"  fitted on train: {options.statistics!r}"
