"""Where data lies, as plain data, and back: paths, and views whose numbers are kept beside.

Place in the flow: below the run file. Reads: what a user passed as data. Makes: paths, numbers; and
stores again.
"""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError
from seqdata.protocols import Store
from seqdata.required_members import STORE_MEMBERS
from seqdata.resolve_store import are_locations, is_location, is_map_style, open_store, store_of
from seqdata.runs.to_plain import NOTHING, Names, Objects
from seqdata.storage.concat import JoinedStore, concat_stores
from seqdata.storage.digest_trailer import has_seal, unsealed
from seqdata.storage.remote.urls import without_secrets
from seqdata.storage.selection import Carried
from seqdata.storage.views import SequenceStore, View, carrying, take, whole

Arrays = Mapping[str, NDArray[Any]]
MOST_NUMBERS = 1 << 24
"""Sequences of a view whose numbers are kept; of more it is not replayable."""

PATH, VIEW, RANGE, NUMBERS = "path", "view", "range", "numbers"
TRANSFORM, AXIS, CONCAT, NAMES = "transform", "axis", "concat", "names"


@dataclass(slots=True, eq=False)
class Locations:
    """Writes down where data lies.

    Attributes:
        names: Writes transforms that views carry.
        prefix: What files beside the run file begin with.
        beside: Their name -> what they hold.
    """

    names: Names
    prefix: str
    beside: dict[str, Arrays] = field(default_factory=dict)

    def plain(self, data: Any, argument: str) -> Any:
        """Give one location: its path, or what a view selects of one; or why there is none.

        Args:
            data: What was passed: a path, a store, sequences, a Dataset.
            argument: What it was passed as.
        """
        if data is None:
            return None
        if isinstance(data, str | os.PathLike):
            return {PATH: whole_path(os.fspath(data))}
        if isinstance(data, View):
            return self._view(data, argument)
        if are_locations(data):
            if not all(map(is_location, data)):
                return self.plain(store_of(data), argument)
            return self._parts(data, argument)
        if isinstance(data, JoinedStore):
            return self._parts(data.parts, argument)
        location = getattr(data, "location", None)
        if isinstance(location, str) and set(STORE_MEMBERS) <= set(dir(data)):
            return {PATH: whole_path(location)}
        return self.names.nothing(argument, f"{_shown(data)} lies at no path")

    def _parts(self, parts: Sequence[Any], argument: str) -> Any:
        plain = [self.plain(part, argument) for part in parts]
        unknown = [one for one in plain if NOTHING in one]
        return unknown[0] if unknown else {CONCAT: plain}

    def _view(self, view: View, argument: str) -> Any:
        base = self.plain(view.base, argument)
        if NOTHING in base or view.is_whole:
            return base
        if len(view) > MOST_NUMBERS:
            return self.names.nothing(
                argument, f"a view of {len(view)} sequences, more than {MOST_NUMBERS}"
            )
        made: dict[str, Any] = {VIEW: base}
        if view.names is not None:
            made[NAMES] = dict(view.names)
        numbers, carried = view.numbers, view.carried
        arrays: dict[str, NDArray[Any]] = {}
        first, last = (int(numbers[0]), int(numbers[-1])) if len(numbers) else (0, -1)
        if view.is_all:
            pass  # neither a range nor numbers
        elif last - first + 1 == len(numbers) and (np.diff(numbers) == 1).all():
            made[RANGE] = [first, last + 1]
        else:
            arrays["numbers"] = numbers
        if carried is not None:
            made[TRANSFORM] = self.names.plain(carried.transform, argument)
            made[AXIS] = carried.axis
            arrays["lengths"] = np.asarray(carried.lengths)
        if arrays:
            made[NUMBERS] = self._free_name(argument)
            self.beside[made[NUMBERS]] = arrays
        return made

    def _free_name(self, argument: str) -> str:
        name = f"{self.prefix}-{re.sub(r'[^A-Za-z0-9_]+', '-', argument)}"
        taken = f"{name}.npz" in self.beside
        return f"{name}-{len(self.beside)}.npz" if taken else f"{name}.npz"


def content_of(arrays: Arrays) -> bytes:
    """Give the file that holds arrays of numbers, each as narrow as it can be."""
    content, narrow = io.BytesIO(), {name: _narrow(one) for name, one in arrays.items()}
    np.savez(content, **cast(Any, narrow))
    return content.getvalue()


def whole_path(location: str) -> str:
    """Give a location that means the same from any folder; a URL without what may be secret."""
    if "://" in location:
        return without_secrets(location)
    return os.path.abspath(os.path.expanduser(location))


def opened(
    plain: Any, argument: str, folder: Path, objects: Objects, backend: str | None = None
) -> Store:
    """Open a location that was written down.

    Args:
        plain: What ``Locations`` made.
        argument: What it was passed as.
        folder: Where the run file lies, and what is beside it.
        objects: Makes transforms that views carry.
        backend: Name of the backend that opens it; None: by the location's form.

    Raises:
        ConfigError: If it could not be written down, or what lies beside the run file is gone.
        DataError: If what lies there is not whole.
    """
    if not isinstance(plain, Mapping) or not {PATH, VIEW, CONCAT, NOTHING} & plain.keys():
        raise ConfigError(
            f"{objects.file}: `{argument}` is {plain!r:.200}, must be a location; it was not part "
            "of the run, or the file was changed"
        )
    if NOTHING in plain:
        objects.of(plain, argument)
    if PATH in plain:
        return open_store(plain[PATH], backend=backend)
    if CONCAT in plain:
        return concat_stores(
            [opened(one, argument, folder, objects, backend) for one in plain[CONCAT]]
        )
    base = opened(plain[VIEW], argument, folder, objects, backend)
    arrays = _arrays(folder / plain[NUMBERS], argument, objects) if NUMBERS in plain else {}
    view: SequenceStore = whole(base)
    if RANGE in plain or "numbers" in arrays:
        view = take(base, np.arange(*plain[RANGE]) if RANGE in plain else arrays["numbers"])
    if NAMES in plain:
        view = view.select(*plain[NAMES].values())
        view = view.rename({old: new for new, old in plain[NAMES].items()})
    if TRANSFORM not in plain:
        return view
    transform = objects.of(plain[TRANSFORM], argument)
    return carrying(view, Carried(transform, plain[AXIS], arrays["lengths"]))


def _arrays(path: Path, argument: str, objects: Objects) -> dict[str, NDArray[Any]]:
    """Return the arrays in a file beside a run file; an archive without a seal has checksums."""
    try:
        raw = path.read_bytes()
        if has_seal(raw) and unsealed(raw, path.name) is None:
            raise ValueError("its seal is that of another content")
        with np.load(io.BytesIO(raw), allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"{objects.file}: `{argument}` is a view whose numbers must lie in {path.name!r} beside"
            f" the file, and cannot be read ({error}); copy it there, too"
        ) from error


def _narrow(numbers: NDArray[Any]) -> NDArray[Any]:
    return numbers.astype(np.uint32 if int(numbers.max(initial=0)) < 1 << 32 else np.int64)


def _shown(data: Any) -> str:
    kind = type(data).__name__
    if is_map_style(data):
        return f"a Dataset ({kind})"
    count = f"{len(data)} " if "__len__" in dir(data) else ""
    return f"data in memory ({count}in a {kind})"
