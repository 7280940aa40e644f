"""Options that some backends take and others do not.

Place in the flow: opening and writing hand on what was given. Reads: signatures. Makes: arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from seqdata.errors import ConfigError


def taken(
    where: str, opener: Callable[..., Any], name: object, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Give those options that are not None, if the backend takes them.

    Raises:
        ConfigError: If it does not.
    """
    there = {option: value for option, value in given.items() if value is not None}
    takes = inspect.signature(opener).parameters if there else {}
    for option, value in there.items():
        if option not in takes:
            raise ConfigError(
                f"{where}: `{option}` is {value!r}, must be left out: backend {name!r} takes "
                "none; leave it out"
            )
    return there
