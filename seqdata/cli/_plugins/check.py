"""The checks of ``seqdata plugins check``, which are those of the conformance kit."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from seqdata.errors import PluginError
from seqdata.host import default_host

_KIT = "seqdata_testing"


def check_backend(name: str, location: str) -> Iterator[Any]:
    """Yield the results of the checks of a backend on data; each has name, state and text.

    Args:
        name: Name of the backend.
        location: The data.

    Raises:
        PluginError: If the backend or the conformance kit is not installed.
    """
    default_host().backend(name)
    try:
        kit = importlib.import_module(f"{_KIT}.locations")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != _KIT:
            raise
        raise PluginError(
            "plugins check: needs the package seqdata-testing, which has the checks, but it is not "
            "installed; pip install 'lightning-seqdata[testing]'"
        ) from error
    yield from kit.check_location(location, name)
