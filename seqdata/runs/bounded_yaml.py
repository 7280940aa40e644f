"""YAML that may be anybody's: how much it stands for is counted before it is loaded.

An alias repeats what its anchor stands for, so that a few lines can stand for billions of values,
which nobody notices until they are looked through.
"""

from __future__ import annotations

from typing import Any

import yaml

from seqdata.errors import LimitError

MAX_VALUES = 50_000
"""Values that a file may stand for: scalars, lists and mappings, each alias with all of its own."""
MAX_DEPTH = 64
"""Lists and mappings inside of one another."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_plain(content: bytes, where: str) -> Any:
    """Return the plain values of a YAML file.

    Args:
        content: Its bytes.
        where: Its path, for errors.

    Raises:
        LimitError: If it stands for more than ``MAX_VALUES`` values, or nests too deeply.
        yaml.YAMLError: If it is no YAML.
    """
    check_events(yaml.parse(content, _LOADER), where)
    return yaml.load(content, _LOADER)


def check_events(events: Any, where: str) -> None:
    """Refuse a file that stands for too much; no more events are read than values are allowed.

    Args:
        events: As ``yaml.parse`` gives them.
        where: The file's path, for errors.

    Raises:
        LimitError: If it does.
    """
    sizes: dict[str, int] = {}  # of what each anchor stands for
    open_collections: list[tuple[str | None, int]] = []  # anchor, and values before it began
    values = 0
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise _make_limit_error(
                    where, "holds a list or mapping that holds itself", "hold none"
                )
            values += sizes[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            values += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            open_collections.append((event.anchor, values))
            sizes.pop(event.anchor, None)  # an anchor may be given again
            values += 1
            if len(open_collections) > MAX_DEPTH:
                raise _make_limit_error(where, f"nests deeper than {MAX_DEPTH}", "be flatter")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, values_before = open_collections.pop()
            if anchor is not None:
                sizes[anchor] = values - values_before
        if values > MAX_VALUES:
            raise _make_limit_error(
                where, f"stands for more than {MAX_VALUES} values", "stand for no more than that"
            )


def _make_limit_error(where: str, problem: str, rule: str) -> LimitError:
    return LimitError(f"{where}: {problem}, must {rule}, as what a fit wrote; pass that file")
