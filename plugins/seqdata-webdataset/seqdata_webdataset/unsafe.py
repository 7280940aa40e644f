"""Members whose reading runs code that they bring: read only where the user's code names them.

Nothing else can name them: no environment variable, no URL, nothing that lies beside the data.
"""

from __future__ import annotations

import importlib
import io
import pickle
from collections.abc import Collection
from typing import Any

from seqdata.backends import DataLocation
from seqdata.errors import ConfigError, DecodeError
from seqdata_webdataset.member_names import UNSAFE_EXTENSIONS, last_part

PICKLE_EXTENSIONS = ("pyd", "pkl", "pickle")
TORCH_EXTENSIONS = ("pth", "pt")


def check_allowed_names(names: Collection[str] | None, dataset: str) -> frozenset[str]:
    """Return what the user allows to be read.

    Args:
        names: Last parts of extensions; None: nothing is.
        dataset: The data set, for messages.

    Raises:
        ConfigError: If there is no such kind.
    """
    if isinstance(names, str):
        raise ConfigError(
            f"{dataset}: `unsafe_decoders` is {names!r}, must be a set of names; e.g. {{{names!r}}}"
        )
    found = frozenset(names or ())
    if odd := sorted(map(repr, found.difference((*PICKLE_EXTENSIONS, *TORCH_EXTENSIONS)))):
        raise ConfigError(
            f"{dataset}: `unsafe_decoders` has {', '.join(odd)}, must be of "
            f"{', '.join((*PICKLE_EXTENSIONS, *TORCH_EXTENSIONS))}; leave it out: other members "
            "are decoded without"
        )
    return found


def is_allowed(extension: str, names: frozenset[str]) -> bool:
    """Return whether the members of an unsafe extension may be read: each unsafe part is named.

    Examples:
        >>> is_allowed("x.pyd", frozenset({"pyd"})), is_allowed("pyd.gz", frozenset({"pyd"}))
        (True, False)
    """
    return (
        last_part(extension) in names
        and UNSAFE_EXTENSIONS.intersection(extension.split(".")) <= names
    )


def read_unsafe(raw: bytes, kind: str, location: DataLocation) -> Any:
    """Return what a member holds, by running whatever it says.

    Args:
        raw: Its bytes.
        kind: The last part of its extension.
        location: The member's, for errors.

    Raises:
        DecodeError: If that fails.
    """
    try:
        if kind in TORCH_EXTENSIONS:
            torch = importlib.import_module("torch")
            return _to_arrays(torch.load(io.BytesIO(raw), map_location="cpu", weights_only=False))
        return _to_arrays(pickle.loads(raw))
    except Exception as error:  # it may be any: what runs is the data's
        raise location.make_error(
            DecodeError,
            f"cannot be decoded as .{kind} ({type(error).__name__}: {error}), must be as `schema` "
            "says; restore the shard, or leave it out",
        ) from error


def _to_arrays(found: Any) -> Any:
    """Return tensors as arrays, alone or as the values of a dict."""
    if isinstance(found, dict):
        return {name: _to_arrays(one) for name, one in found.items()}
    detach = getattr(found, "detach", None)
    return found if detach is None else detach().cpu().numpy()
