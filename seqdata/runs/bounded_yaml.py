"""Loads untrusted YAML, after counting the values that it expands to.

An alias repeats the values of its anchor, so that a few lines can expand to billions of values.
"""

from __future__ import annotations

from typing import Any

import yaml

from seqdata.errors import LimitError

MAX_VALUES = 50_000
"""Most values of a file: scalars, lists and mappings, each alias expanded."""
MAX_DEPTH = 64
"""Deepest nesting of lists and mappings."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_plain(content: bytes, where: str) -> Any:
    """Return the plain values of a YAML file.

    Args:
        content: The bytes of the file.
        where: Its path, for errors.

    Raises:
        LimitError: If it expands to more than ``MAX_VALUES`` values, or nests too deeply.
        yaml.YAMLError: If it is not YAML.
    """
    check_events(yaml.parse(content, _LOADER), where)
    return yaml.load(content, _LOADER)


def check_events(events: Any, where: str) -> None:
    """Raise if a file expands to too many values; reads at most as many events.

    Args:
        events: The events of ``yaml.parse``.
        where: The file's path, for errors.

    Raises:
        LimitError: If it expands to too many values.
    """
    sizes: dict[str, int] = {}  # values of each anchor
    open_collections: list[tuple[str | None, int]] = []  # anchor, and number of values before it
    values = 0
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise _make_limit_error(
                    where, "contains one", "not contain a list or mapping that contains itself"
                )
            values += sizes[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            values += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            open_collections.append((event.anchor, values))
            sizes.pop(event.anchor, None)  # an anchor may be defined again
            values += 1
            if len(open_collections) > MAX_DEPTH:
                raise _make_limit_error(where, "nests deeper", f"nest {MAX_DEPTH} levels at most")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, values_before = open_collections.pop()
            if anchor is not None:
                sizes[anchor] = values - values_before
        if values > MAX_VALUES:
            raise _make_limit_error(
                where, "expands to more", f"expand to at most {MAX_VALUES} values"
            )


def _make_limit_error(where: str, problem: str, rule: str) -> LimitError:
    return LimitError(f"{where}: must {rule}, but {problem}. Pass the file that a fit wrote")
