"""Members whose decoding runs code from the data; decoded only if the user's code names them.

Nothing else can allow them: no environment variable, no URL, no file next to the data.
"""

from __future__ import annotations

import importlib
import io
import pickle
from collections.abc import Collection
from typing import Any

from seqdata import ConfigError, DecodeError
from seqdata.backends import DataLocation
from seqdata_webdataset.tar_headers import last_part

UNSAFE_EXTENSIONS = frozenset({"pyd", "pkl", "pickle", "pth", "pt", "dill", "joblib"})
"""Parts of extensions whose decoders run code from the data."""
PICKLE_EXTENSIONS = ("pyd", "pkl", "pickle")
TORCH_EXTENSIONS = ("pth", "pt")


def check_allowed_names(names: Collection[str] | None) -> frozenset[str]:
    """Return the extensions that the user allows, checked.

    Args:
        names: Last parts of extensions; None: no member is allowed.

    Raises:
        ConfigError: If a name is not an extension that can be allowed.
    """
    if isinstance(names, str):
        raise ConfigError(
            f"webdataset: `unsafe_decoders` must be a set of names, but is {names!r}. Pass for "
            f"example {{{names!r}}}"
        )
    found = frozenset(names or ())
    if odd := sorted(map(repr, found.difference((*PICKLE_EXTENSIONS, *TORCH_EXTENSIONS)))):
        raise ConfigError(
            "webdataset: `unsafe_decoders` must only have "
            f"{', '.join((*PICKLE_EXTENSIONS, *TORCH_EXTENSIONS))}, but has {', '.join(odd)}. "
            "Leave that out: other extensions need no permission, but dill and joblib are never "
            "decoded"
        )
    return found


def is_unsafe(extension: str) -> bool:
    """Return whether any part of an extension is of a format whose decoding runs code."""
    return not UNSAFE_EXTENSIONS.isdisjoint(extension.split("."))


def is_allowed(extension: str, names: frozenset[str]) -> bool:
    """Return whether the members of an unsafe extension may be decoded: each part is named.

    Examples:
        >>> is_allowed("x.pyd", frozenset({"pyd"})), is_allowed("pyd.gz", frozenset({"pyd"}))
        (True, False)
    """
    return (
        last_part(extension) in names
        and UNSAFE_EXTENSIONS.intersection(extension.split(".")) <= names
    )


def read_unsafe(raw: bytes, encoding: str, location: DataLocation) -> Any:
    """Decode a member by running code from it; tensors become arrays.

    Args:
        raw: Its bytes.
        encoding: The last part of its extension.
        location: The location of the member, for errors.

    Raises:
        DecodeError: If decoding fails.
    """
    try:
        if encoding in TORCH_EXTENSIONS:
            torch = importlib.import_module("torch")
            return _to_arrays(torch.load(io.BytesIO(raw), map_location="cpu", weights_only=False))
        return _to_arrays(pickle.loads(raw))
    except Exception as error:  # it may be any: the code is from the data
        raise location.make_error(
            DecodeError,
            f"must match `schema`, but cannot be decoded as .{encoding} ({type(error).__name__}: "
            f"{error}). Restore the shard, or leave the extension out with None in `schema`",
        ) from error


def _to_arrays(found: Any) -> Any:
    """Convert a tensor, or the tensors in a dict, to arrays; return anything else unchanged."""
    if isinstance(found, dict):
        return {name: _to_arrays(value) for name, value in found.items()}
    detach = getattr(found, "detach", None)
    return found if detach is None else detach().cpu().numpy()
