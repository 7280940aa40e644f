"""From sequences and a location to a written store, in the format that is named.

Place in the flow: ``write_store``. Reads: sequences. Makes: stores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from seqdata.arguments import select_options
from seqdata.default_host import default_host
from seqdata.detect import LocationLike
from seqdata.errors import ConfigError
from seqdata.protocols import Store, SupportsWriting
from seqdata.resolve_store import are_locations, is_location, is_store, resolve_rows, resolve_store
from seqdata.storage.arrow.write import SHARD_BYTES, write_arrow
from seqdata.storage.remote.options import Remote
from seqdata.storage.store_rows import StoreSequences
from seqdata.storage.views import SequenceStore, as_sequence_store

if TYPE_CHECKING:
    from concurrent.futures import Executor


def write_store(  # noqa: PLR0913
    location: LocationLike,
    sequences: Any,
    *,
    format: str = "arrow",
    axes: Mapping[str, str | None] | None = None,
    shard_bytes: int = SHARD_BYTES,
    key: str = "id",
    executor: Executor | None = None,
    resume: bool = True,
    progress: bool | Callable[[int, int], None] | None = None,
    overwrite: bool = False,
    remote: Remote | None = None,
    group: str | None = None,
) -> SequenceStore:
    """Write sequences, whole or not at all, and open what was written.

    Args:
        location: A folder that is not there yet, is empty, or where a writer stopped; or a URL,
            for which the store is made on this machine first, and sent.
        sequences: Dicts of arrays, numbers, ``str`` or ``bytes``, each field alike in all of them;
            plain arrays, which become the field ``x``; or a pandas, Polars or Arrow table, a row
            per sequence. Read once, in order. Or a store, a view of one, a path or a list of paths,
            to be written in another form or place; or a torch Dataset. Or a list of functions
            without arguments, *parts*, that give such sequences, each on the executor.
        format: ``arrow``, or a backend that writes: ``webdataset``.
        axes: Field -> the axis it runs along; None: a vector per sequence. Arrays that are not
            named run on ``time``.
        shard_bytes: Size at which a new file begins.
        key: The ``str`` field that names a sequence, where there is one.
        executor: Where shards are written; None: threads of our own. Bytes do not depend on it. In
            memory are the open shard and those under way: 1 with our threads, else up to 1 GiB.
        resume: Whether to go on after the whole shards that a writer left; False: remove them.
        progress: Whether to show a bar (None: on a terminal), or a function (sequences, bytes).
        overwrite: Whether a store that lies there is replaced, once the new one is whole.
        remote: How a URL is reached; None: as the transport is set up.
        group: The column whose equal values make a sequence, of a table with a row per timestep.

    Raises:
        ConfigError: If an argument cannot be meant, there is no sequence, or something lies there.
        DataError: If a sequence is not like the first or not what was written, or the disk is full.
        RemoteReadError: If a URL cannot be reached.
        WorkerDiedError: If the executor broke.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = write_store(f"{folder}/store", [{"x": [1, 2, 3]}, {"x": [4]}])
        ...     store.lengths.tolist()
        [3, 1]
    """
    write = _find_writer(format)
    sequences, axes = _prepare_input(sequences, axes, key, group)
    store = write(
        location, sequences, axes=axes, shard_bytes=shard_bytes, key=key, executor=executor,
        resume=resume, progress=progress, overwrite=overwrite,
        **select_options("write_store", write, format, {"remote": remote}),
    )  # fmt: skip
    return as_sequence_store(store)


def _prepare_input(
    data: Any, axes: Mapping[str, str | None] | None, key: str, group: str | None
) -> tuple[Any, Mapping[str, str | None] | None]:
    """Return what holds sequences as a writer takes it, and the axes of its fields."""
    if is_store(data) or is_location(data) or are_locations(data):
        rows = StoreSequences(resolve_store(data), key)
        data, axes = rows, {**rows.axes, **(axes or {})}
    return resolve_rows(data, axes, group)


def _find_writer(format: str) -> Callable[..., Store]:
    """Return what writes a format."""
    if format == "arrow":
        return write_arrow
    backend: object = default_host().find("backend", format)
    if not isinstance(backend, SupportsWriting):
        raise ConfigError(
            f"write_store: `format` is {format!r}, must be 'arrow' or an installed backend "
            "that writes; for 'webdataset': pip install seqdata-webdataset"
        )
    return backend.write
