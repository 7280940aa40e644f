"""Sources of ``seqdata doctor --leaks``: the parts of a run, and the statistics it uses.

A run file names both. Another YAML file names parts by path, as the data of LightningCLI does, or
the split that makes them, and files of statistics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from seqdata.api import concat, open_store, split
from seqdata.errors import ConfigError, must_be
from seqdata.fitting.statistics import Statistics
from seqdata.protocols import Store
from seqdata.resolve import is_store

KINDS: tuple[Literal["train", "val", "test"], ...] = ("train", "val", "test")
_RUN_FILE_MARK = b"\n# /// seqdata-run\n"


@dataclass(frozen=True, slots=True)
class LeakSources:
    """Parts and statistics to check.

    Attributes:
        parts: Name -> store: ``train``, ``val``, ``test``, or ``val.english`` of several.
        statistics: Name of the file or argument -> statistics.
        by: Fields whose values must not be in two parts; empty: fields with usual names of groups.
        time: Field of timestamps; None: a field with a usual name of timestamps.
    """

    parts: Mapping[str, Store]
    statistics: Mapping[str, Statistics]
    by: tuple[str, ...] = field(default=())
    time: str | None = None


def read_sources(path: Path, backend: str | None) -> LeakSources:
    """Read a run file, or another YAML file that names parts.

    Raises:
        ConfigError: If it is neither, or does not name a training part and another part or
            statistics.
        DataError: If data is incomplete.
    """
    plain = _load(path)
    sources = _read_run(path, backend) if plain is None else _read_parts(path, plain, backend)
    names = {name.partition(".")[0] for name in sources.parts}
    if "train" not in names or (len(names) < 2 and not sources.statistics):
        found = ", ".join(sources.parts) or "none"
        needed = "`train` and one of `val`, `test` and `statistics`"
        raise ConfigError(f"{path}: must name {needed}, but names {found}.")
    return sources


def _load(path: Path) -> dict[str, Any] | None:
    """Return the content of a file that names parts; None for a run file."""
    try:
        content = path.read_bytes()
        if _RUN_FILE_MARK in content:
            return None
        plain = yaml.safe_load(content)
    except (OSError, yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(
            f"{path}: must be a YAML file that can be read, but is not ({error}). Pass the "
            "seqdata-run.yaml of a run, or a file with `train` and `val`."
        ) from error
    for key in ("data", "init_args"):  # of LightningCLI
        inner = plain.get(key) if isinstance(plain, dict) else None
        plain = inner if isinstance(inner, dict) else plain
    if not isinstance(plain, dict):
        needed = "a mapping with `train` and `val`"
        raise ConfigError(must_be(str(path), needed, f"{plain!r:.80}"))
    return plain


def _read_run(path: Path, backend: str | None) -> LeakSources:
    # torch is imported only for a run
    from seqdata.runs.run_file import RunFile

    file, parts = RunFile.read(path), dict[str, Store]()
    if file.data.get("split"):
        raise ConfigError(
            f"{path}: must name its parts as `train`, `val` and `test`, but makes them by `split`. "
            "Pass a YAML file with `split`, a mapping with `store` and `parts`."
        )
    reader = file.make_reader(path)
    for kind in KINDS:
        for argument, plain in file.list_locations(kind).items():
            found = file.open_location(plain, argument, reader, backend)
            if not is_store(found):
                options = file.make_opening_options(found, reader)
                chosen = {} if backend is None else {"backend": backend}
                found = open_store(found, **{**options, **chosen})
            parts[argument] = found
    statistics = {
        f"{option} of {path.name}": found
        for option in ("transform", "eval_transform", "statistics")
        for found in _find_statistics(file.data.get(option))
    }
    return LeakSources(parts, statistics)


def _find_statistics(plain: Any) -> Iterator[Statistics]:
    """Yield the statistics in an argument of a run file."""
    if isinstance(plain, Mapping):
        if isinstance(plain.get("content"), str) and "fitted_on" in plain:
            fitted_on = dict(plain["fitted_on"])
            yield Statistics(plain["content"], str(plain.get("digest", "")), fitted_on)
            return
        plain = list(plain.values())
    if isinstance(plain, list):
        for value in plain:
            yield from _find_statistics(value)


def _read_parts(path: Path, plain: Mapping[str, Any], backend: str | None) -> LeakSources:
    if not set(KINDS) & plain.keys() and "split" not in plain:
        found = ", ".join(map(str, plain)) or "none"
        raise ConfigError(
            f"{path}: must have at least one of the keys train, val, test and split, but has "
            f"{found}."
        )
    parts = _make_split(path, plain["split"], backend) if "split" in plain else {}
    for kind in KINDS:
        value = plain.get(kind)
        named = value.items() if isinstance(value, Mapping) else [(None, value)]
        for name, location in named:
            if location is not None:
                key = kind if name is None else f"{kind}.{name}"
                parts[key] = _open(path, location, backend)
    files = plain.get("statistics", plain.get("stats")) or []
    files = files if isinstance(files, list) else [files]
    statistics = {str(file): Statistics.load(_resolve(path, str(file))) for file in files}
    by = plain.get("by") or []
    by = tuple(map(str, by)) if isinstance(by, list) else (str(by),)
    time = plain.get("time")
    return LeakSources(parts, statistics, by, None if time is None else str(time))


def _make_split(path: Path, plain: Any, backend: str | None) -> dict[str, Store]:
    if not isinstance(plain, Mapping) or not {"store", "parts"} <= plain.keys():
        needed = "a mapping with `store` and `parts`"
        raise ConfigError(must_be(f"{path}: `split`", needed, f"{plain!r:.80}"))
    options = {key: value for key, value in plain.items() if key not in ("store", "parts")}
    try:
        return dict(split(_open(path, plain["store"], backend), plain["parts"], **options))
    except TypeError as error:
        raise ConfigError(
            f"{path}: `split` must have options that the function `split` takes ({error})."
        ) from error


def _open(path: Path, location: Any, backend: str | None) -> Store:
    if isinstance(location, list):
        return concat([_open(path, each, backend) for each in location])
    return open_store(_resolve(path, str(location)), backend=backend)


def _resolve(path: Path, location: str) -> str:
    """Return a location of the file, below the folder of the file if it exists there."""
    if "://" in location:
        return location
    beside = path.parent / location
    return str(beside) if beside.exists() else location
