"""Sources of tables with a row per timestep, opened as tables that are read by units.

Files and tables in memory are read in place; a stream of batches is read once, into a file.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

from seqdata.backends.files import RowTables
from seqdata.errors import ConfigError, DecodeError
from seqdata_frames.delta import list_parts

_TABLES = (("pandas", "DataFrame"), ("polars", "DataFrame"), ("pyarrow", "Table"),
           ("pyarrow", "RecordBatch"))  # fmt: skip


def is_location(data: Any) -> bool:
    """Return whether data is a path, or a list of paths."""
    if isinstance(data, list | tuple):
        return bool(data) and all(isinstance(item, str | os.PathLike) for item in data)
    return isinstance(data, str | os.PathLike)


def is_table(data: Any) -> bool:
    """Return whether data is a table in memory, by the name of its type, without any import."""
    return any(
        (base.__module__.partition(".")[0], base.__name__) in _TABLES for base in type(data).__mro__
    )


def is_stream(data: Any) -> bool:
    """Return whether data is a Polars ``LazyFrame`` or exports a stream of Arrow batches."""
    return _is_lazy(data) or hasattr(data, "__arrow_c_stream__")


def open_tables(data: Any, remote: Any = None) -> RowTables:
    """Open a table: a path or URL, several of these, or a table in memory.

    Args:
        data: The table, its path or URL, or a list of these.
        remote: Access to URLs, as in ``open_store``.

    Raises:
        ConfigError: If ``data`` is none of these.
        DataError: If a file is damaged.
        SeqDataError: If a file at a URL cannot be fetched.
    """
    if is_location(data):
        locations = list(data) if isinstance(data, list | tuple) else [data]
        parts = [part for each in locations for part in list_parts(each, remote)]
        return RowTables.open(parts, remote=remote)
    if is_table(data):
        return RowTables.from_table(data)
    raise ConfigError(
        "frames: the data must be the path of a table, a pandas, Polars or Arrow table, a Polars "
        f"LazyFrame or a stream of Arrow batches, but is of type {type(data).__name__}. Pass one "
        "of these"
    )


class SpoolFolder:
    """A temporary folder; the process that made it removes it when this object is deleted."""

    def __init__(self, cache_dir: str | None) -> None:
        if cache_dir is not None:
            Path(cache_dir).mkdir(parents=True, exist_ok=True)
        self.path = Path(tempfile.mkdtemp(prefix="seqdata-frames-", dir=cache_dir))
        weakref.finalize(self, _remove, self.path, os.getpid())


def spool(data: Any, folder: Path) -> Path:
    """Write a stream to a file, batch by batch, and return its path.

    Raises:
        DecodeError: If the stream fails before its end.
    """
    path = folder / "stream.arrow"
    if _is_lazy(data):
        data.sink_ipc(path, compression="uncompressed")
        return path
    import pyarrow as pa

    try:
        reader = pa.RecordBatchReader.from_stream(data)
        with pa.ipc.new_file(path, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)
    except (pa.ArrowException, OSError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DecodeError.at(
            f"frames: the stream must yield all its batches, but failed before its end ({reason}). "
            "Run the query again",
        ) from error
    return path


def _remove(path: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)


def _is_lazy(data: Any) -> bool:
    return any(
        base.__name__ == "LazyFrame" and base.__module__.partition(".")[0] == "polars"
        for base in type(data).__mro__
    )
