"""Format ``npy``: one array per file, whose first dimension are the timesteps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from seqdata.errors import DecodeError
from seqdata.readers.source import ReadOptions, SourceFile


def read_npy(files: Iterable[SourceFile], options: ReadOptions) -> Iterator[dict[str, Any]]:
    """Yield each file's array, (T, ...), under its relative path; never unpickles.

    Raises:
        DecodeError: If a file is not a ``.npy`` file, or holds objects or a single number.
    """
    name = options.one_field("npy")
    for file in files:
        try:
            array = np.load(file.path, mmap_mode=None, allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise _make_error(file, f"cannot be read ({error})") from error
        if not isinstance(array, np.ndarray):
            array.close()
            raise _make_error(file, "is an archive of several arrays")
        if array.ndim == 0:
            raise _make_error(file, "holds a single number")
        yield {"id": file.key, name: array}


def _make_error(file: SourceFile, problem: str) -> DecodeError:
    return DecodeError.at(
        f"file {str(file.path)!r}: {problem}, but must be a .npy file of one array of numbers "
        "(timesteps, "
        "...). Save it with numpy.save.",
        file=str(file.path),
    )
