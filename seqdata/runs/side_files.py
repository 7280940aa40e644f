"""Arrays of a run file's arguments, in files next to it: numbers of views, weights of sequences.

Each file is an ``.npz`` archive that ends with its digest. Reading one runs no code.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError
from seqdata.storage.digest_trailer import add_digest, has_digest, strip_digest

Arrays = Mapping[str, NDArray[Any]]
MOST_NUMBERS = 1 << 24
"""Most numbers of an array that is saved; what has more cannot be replayed."""


@runtime_checkable
class SupportsSideFile(Protocol):
    """A value that is its arrays: ``type(value)(**value.arrays)`` is equal to it."""

    @property
    def arrays(self) -> Arrays:
        """Argument of its class -> array."""
        ...

    @property
    def digest(self) -> str:
        """Digest of the arrays, the same on every machine."""
        ...


@dataclass(slots=True, eq=False)
class SideFiles:
    """The files next to a run file.

    Attributes:
        prefix: Prefix of their names.
        arrays: Name of a file -> its content.
    """

    prefix: str = "seqdata-run"
    arrays: dict[str, Arrays] = field(default_factory=dict)

    def add(self, argument: str, arrays: Arrays) -> str:
        """Add arrays of an argument; return the name of their file."""
        name = f"{self.prefix}-{re.sub(r'[^A-Za-z0-9_]+', '-', argument)}"
        is_taken = f"{name}.npz" in self.arrays
        name = f"{name}-{len(self.arrays)}.npz" if is_taken else f"{name}.npz"
        self.arrays[name] = arrays
        return name


def pack_arrays(arrays: Arrays, name: str) -> bytes:
    """Return the content of a file of this name, each array in the smallest dtype."""
    content, narrow = io.BytesIO(), {key: _narrow(array) for key, array in arrays.items()}
    np.savez(content, **cast(Any, narrow))
    return add_digest(content.getvalue(), name)


def read_arrays(path: Path, owner: str) -> dict[str, NDArray[Any]]:
    """Return the arrays in a side file; an archive without a digest has checksums.

    Args:
        path: Path of the file.
        owner: What has the arrays, for messages: ``run.yaml: `val` is a view whose numbers``.

    Raises:
        ConfigError: If the file is missing or damaged.
    """
    try:
        raw = path.read_bytes()
        if has_digest(raw) and strip_digest(raw, path.name) is None:
            raise ValueError("its seal does not match its content")
        with np.load(io.BytesIO(raw), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"{owner} are in {path.name!r} next to the file, which cannot be read ({error}). Copy "
            "it there."
        ) from error


def restore_value(kind: Any, path: Path, digest: str, owner: str) -> SupportsSideFile:
    """Return a value that was saved by its arrays.

    Args:
        kind: Its class.
        path: Path of the side file.
        digest: Digest of its arrays.
        owner: What has the arrays, for messages.

    Raises:
        ConfigError: If the file is missing or damaged, or of another run.
    """
    value: SupportsSideFile = kind(**read_arrays(path, owner))
    if value.digest != digest:
        raise ConfigError(
            f"{owner} must have the digest {digest}, but those in {path.name!r} next to the file "
            f"have {value.digest}: it is of another run. Copy that of this run there."
        )
    return value


def _narrow(numbers: NDArray[Any]) -> NDArray[Any]:
    """Return numbers from 0 in the smallest dtype, and others as they are."""
    if numbers.dtype.kind not in "iu" or int(numbers.min(initial=0)) < 0:
        return numbers
    return numbers.astype(np.uint32 if int(numbers.max(initial=0)) < 1 << 32 else np.int64)
