"""Files with the arrays of a run file's arguments: indices of views, weights of sequences.

Each file is an ``.npz`` archive that ends with a digest. Reading one runs no code.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError
from seqdata.storage.digest_trailer import add_digest, has_trailer, strip_digest

Arrays = Mapping[str, NDArray[Any]]
MOST_NUMBERS = 1 << 24
"""Most numbers of a saved array; arguments with larger arrays cannot be replayed."""


def pack_arrays(arrays: Arrays, name: str) -> bytes:
    """Return the content of a file of this name; indices are saved as uint32 if they fit."""
    content, narrow = io.BytesIO(), {key: _narrow(array) for key, array in arrays.items()}
    np.savez(content, **cast(Any, narrow))
    return add_digest(content.getvalue(), name)


def read_arrays(path: Path, owner: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of a side file; without a digest the archive's checksums are compared.

    Args:
        path: Path of the file.
        owner: Beginning of messages: ``run.yaml: `val` has arrays that``.

    Raises:
        ConfigError: If the file is missing or damaged.
    """
    try:
        raw = path.read_bytes()
        if has_trailer(raw) and strip_digest(raw, path.name) is None:
            raise ValueError("its checksum does not match its content")
        with np.load(io.BytesIO(raw), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"{owner} are in the file {path.name!r}, which cannot be read from "
            f"{str(path.parent)!r} ({error}). Copy it there from the folder of the run."
        ) from error


def _narrow(numbers: NDArray[Any]) -> NDArray[Any]:
    """Return integers of at least 0 as uint32, or int64 if they do not fit; others unchanged."""
    if numbers.dtype.kind not in "iu" or int(numbers.min(initial=0)) < 0:
        return numbers
    return numbers.astype(np.uint32 if int(numbers.max(initial=0)) < 1 << 32 else np.int64)
