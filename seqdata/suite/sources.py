"""Sources and parts of the DataModules of the suite."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seqdata.detect import holds_store
from seqdata.errors import ConfigError, must_be
from seqdata.host import default_host
from seqdata.readers.source import find_file_kind
from seqdata.resolve import is_location, is_store
from seqdata.runs.options import SPLIT_OPTIONS
from seqdata.storage.arrow.manifest import MANIFEST
from seqdata.storage.local_files import is_remote
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.urls import redact_url


def find_backend(name: str, needed_by: str, otherwise: str = "") -> Any:
    """Return the backend of an optional package.

    Args:
        name: Name of the backend, of the package ``seqdata-{name}``.
        needed_by: Beginning of the message if the package is missing.
        otherwise: End of the message: an alternative without the package.

    Raises:
        ConfigError: If the package is not installed.
    """
    backend = default_host().find("backend", name)
    if backend is None:
        package = f"seqdata-{name}"
        raise ConfigError(
            f"{needed_by} needs the package {package}, which is not installed. "
            f"pip install {package}{otherwise}"
        )
    return backend


def as_names(owner: str, argument: str, value: Any) -> tuple[str, ...]:
    """Return a string, or a sequence of strings, as a tuple.

    Raises:
        ConfigError: If it is neither.
    """
    names = (value,) if isinstance(value, str) else value
    is_names = isinstance(names, Sequence) and all(isinstance(name, str) for name in names)
    if not is_names:
        raise ConfigError(
            must_be(
                f"{owner}: `{argument}`", "a string or a list of strings", repr(value),
                "Pass e.g. ['a', 'b']",
            )
        )  # fmt: skip
    return tuple(names)


def is_grouped(source: Any, remote: Remote | str | None = None) -> bool:
    """Return whether a source is a table whose rows must be grouped, not a store of sequences.

    A URL with the suffix of a table is a table; at any other URL, a store's manifest is looked for.

    Args:
        source: A table or a store, or its location.
        remote: Access to a URL.

    Raises:
        ConfigError: If the URL or ``remote`` is invalid.
        RemoteReadError: If the URL cannot be read.
    """
    if is_store(source):
        return False
    if not is_location(source):
        return True
    if is_remote(source):
        is_table = find_file_kind(redact_url(os.fspath(source))) is not None
        return is_table or not holds_store(source, remote)
    return not (Path(source) / MANIFEST).is_file()


def list_parts(split: Mapping[str, Any]) -> list[Any]:
    """Return the fractions or ranges of a split, without its options."""
    return [value for name, value in split.items() if name not in SPLIT_OPTIONS]
