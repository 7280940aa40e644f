"""Columns in the names of folders, as Hive, Spark and Polars write them: ``label=0/0.parquet``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import unquote

Value = int | str | None
_FOLDER = re.compile(r"([^=]+)=(.*)", re.DOTALL)
_NULL = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile(r"[+-]?\d{1,18}", re.ASCII)


def find_partitions(names: Sequence[str]) -> list[Mapping[str, Value]]:
    """Return the columns of each file that the folders above it name.

    A column is of integers if all its values are, else of texts; a missing value is None.

    Args:
        names: Paths of files below their data set.

    Examples:
        >>> find_partitions(["day=01/a.parquet", "day=02/b.parquet"])
        [{'day': 1}, {'day': 2}]
    """
    texts = [_parse_folders(name) for name in names]
    columns = {column for found in texts for column in found}
    whole = {column for column in columns if all(map(_WHOLE.fullmatch, _present(texts, column)))}
    return [
        {
            column: int(text) if column in whole and text is not None else text
            for column, text in found.items()
        }
        for found in texts
    ]


def _present(texts: Sequence[Mapping[str, str | None]], column: str) -> Iterator[str]:
    """Yield the texts of a column that are not missing."""
    for found in texts:
        if (text := found.get(column)) is not None:
            yield text


def _parse_folders(name: str) -> dict[str, str | None]:
    if "=" not in name:
        return {}
    found = filter(None, map(_FOLDER.fullmatch, name.split("/")[:-1]))
    return {unquote(each[1]): None if each[2] == _NULL else unquote(each[2]) for each in found}
