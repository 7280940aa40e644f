"""Members whose reading runs code that they bring: read only where the user's code names them.

Nothing else can name them: no environment variable, no URL, nothing that lies beside the data.
Place in the flow: opening asks which may be read, decoded fields have them read. Reads: the bytes
of a member. Makes: whatever it holds.
"""

from __future__ import annotations

import importlib
import io
import pickle
from collections.abc import Collection
from typing import Any

from seqdata.backends import Place
from seqdata.errors import ConfigError, DecodeError
from seqdata_webdataset.member_names import UNSAFE, last_part

PICKLED = ("pyd", "pkl", "pickle")
TORCH = ("pth", "pt")


def allowed(names: Collection[str] | None, where: str) -> frozenset[str]:
    """Give what the user allows to be read.

    Args:
        names: Last parts of extensions; None: nothing is.
        where: The data set, for messages.

    Raises:
        ConfigError: If there is no such kind.
    """
    if isinstance(names, str):
        raise ConfigError(
            f"{where}: `unsafe_decoders` is {names!r}, must be a set of names; e.g. {{{names!r}}}"
        )
    found = frozenset(names or ())
    if odd := sorted(map(repr, found.difference((*PICKLED, *TORCH)))):
        raise ConfigError(
            f"{where}: `unsafe_decoders` has {', '.join(odd)}, must be of "
            f"{', '.join((*PICKLED, *TORCH))}; leave it out: other members are decoded without"
        )
    return found


def is_allowed(extension: str, names: frozenset[str]) -> bool:
    """Tell whether the members of an unsafe extension may be read: each unsafe part is named.

    Examples:
        >>> is_allowed("x.pyd", frozenset({"pyd"})), is_allowed("pyd.gz", frozenset({"pyd"}))
        (True, False)
    """
    return last_part(extension) in names and UNSAFE.intersection(extension.split(".")) <= names


def read_unsafe(raw: bytes, kind: str, place: Place) -> Any:
    """Give what a member holds, by running whatever it says.

    Args:
        raw: Its bytes.
        kind: The last part of its extension.
        place: The member's, for errors.

    Raises:
        DecodeError: If that fails.
    """
    try:
        if kind in TORCH:
            torch = importlib.import_module("torch")
            return _plain(torch.load(io.BytesIO(raw), map_location="cpu", weights_only=False))
        return _plain(pickle.loads(raw))
    except Exception as error:  # it may be any: what runs is the data's
        raise place.error(
            DecodeError,
            f"cannot be decoded as .{kind} ({type(error).__name__}: {error}), must be as `schema` "
            "says; restore the shard, or leave it out",
        ) from error


def _plain(found: Any) -> Any:
    """Give tensors as arrays, alone or as the values of a dict."""
    if isinstance(found, dict):
        return {name: _plain(one) for name, one in found.items()}
    detach = getattr(found, "detach", None)
    return found if detach is None else detach().cpu().numpy()
