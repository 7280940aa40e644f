"""The backend for tar shards: it opens, indexes, audits and writes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from seqdata import Remote
from seqdata.backends import (
    FormatBackend,
    FormatReader,
    Location,
    ShardStore,
    hookimpl,
    write_files,
)
from seqdata_webdataset.indexed_format import IndexedTar
from seqdata_webdataset.schema import Schema
from seqdata_webdataset.unsafe import check_allowed_names


@dataclass(frozen=True, slots=True, kw_only=True)
class WebDataset:
    """Backend for tar shards of the webdataset library.

    Attributes:
        schema: Extension -> its type; see ``open_webdataset``.
        index: ``"build"``: build the index of shards that have none.
        keys: ``unique`` or ``by_shard``; see ``open_webdataset``.
        unsafe_decoders: Extensions that may be decoded although this runs code; see
            ``open_webdataset``.
    """

    schema: Schema | None = None
    index: str | None = None
    keys: str = "unique"
    unsafe_decoders: frozenset[str] = frozenset()

    def __call__(
        self,
        location: Location,
        *,
        verify: str | None = None,
        schema: Schema | None = None,
        index: str | None = None,
        remote: str | Remote | None = None,
    ) -> ShardStore:
        """Open shards; arguments take precedence over attributes. See ``open_webdataset``."""
        return open_webdataset(
            location, verify=verify, schema=self.schema if schema is None else schema,
            index=self.index if index is None else index, keys=self.keys,
            remote=remote, unsafe_decoders=self.unsafe_decoders,
        )  # fmt: skip

    def build_index(
        self,
        location: Location,
        *,
        rebuild: bool = False,
        executor: Executor | None = None,
        progress: bool | None = None,
    ) -> Mapping[str, Any]:
        """Build the index of shards that have none, or of all; see ``index_shards``."""
        return index_shards(location, rebuild=rebuild, executor=executor, progress=progress)

    def audit(
        self, location: str, *, shard: int | None, repair: bool, on_progress: Callable[[int], None]
    ) -> tuple[int, Iterator[Any]]:
        """Audit shards; see ``seqdata.protocols.SupportsAudit``."""
        return FormatBackend(IndexedTar()).audit(
            location, shard=shard, repair=repair, on_progress=on_progress
        )

    def write(
        self,
        location: str,
        sequences: Iterable[Any],
        *,
        remote: str | Remote | None = None,
        shuffle: int | None = None,
        **options: Any,
    ) -> ShardStore:
        """Write sequences as shards; see ``write_webdataset``."""
        return write_webdataset(location, sequences, remote=remote, shuffle=shuffle, **options)


def open_webdataset(
    location: Location,
    *,
    verify: str | None = None,
    schema: Schema | None = None,
    index: str | None = None,
    keys: str = "unique",
    remote: str | Remote | None = None,
    progress: bool | None = None,
    unsafe_decoders: Collection[str] | None = None,
) -> ShardStore:
    """Open tar shards of the webdataset library, without reading data yet.

    A field has the name of its extension. Without a schema, ``.npy`` and ``.wav`` are ragged on
    ``time``, ``.cls`` is an integer, ``.txt`` is a string, and others are the bytes of the member.

    Args:
        location: A tar file, a folder of them, braces (``x-{000..017}.tar``), or a list of these.
        verify: When checksums are compared: ``"first_read"``, ``"always"``, or ``"off"``: never.
            None: at the first read.
        schema: Extension -> its type: a dtype (ragged on ``time``), ``int``, ``float``, ``bool``
            (one number per sequence), ``str``, ``bytes``, a ``Field``, ``...`` (as without a
            schema), None (omitted); for ``.json`` and ``.npz`` also a dict: name of a value -> its
            type. Extensions that are not named are read as without a schema.
        index: ``"build"``: build the index of shards that have none, with a progress bar.
        keys: ``unique``: keys are unique; ``by_shard``: unique in each shard, and ids are
            ``shard.tar/key``.
        remote: Access to URLs: ``"cache"`` (None): whole shards, cached on this machine;
            ``"ranges"``: only the members that a batch needs, or slices of long members; or a
            ``Remote`` with further options.
        progress: Whether to show progress bars; None: on a terminal.
        unsafe_decoders: Extensions that may be decoded although this runs code from the data:
            ``pyd``, ``pkl``, ``pickle`` (unpickled), ``pth``, ``pt`` (by torch). The schema must
            have their types. Use it only for shards that you trust like a program.

    Raises:
        ConfigError: If there are no shards, there is no index, or an argument is invalid.
        MissingShardError: If a shard is missing.
        CorruptShardError: If a shard is damaged or its size differs from its index.
        FingerprintMismatch: If a shard is not the one that was indexed or written.
        IncompleteDatasetError: If writing was not finished.
        DecodeError: If members do not match the schema.
        UnsafeContentError: If decoding members would run code, or a shard that is indexed has links
            or devices.
        LimitError: If a shard that is indexed exceeds a limit, such as that of extensions.
        RemoteReadError: If a URL cannot be reached.
    """
    tar = IndexedTar(schema, check_allowed_names(unsafe_decoders))
    return FormatBackend(tar)(
        location, verify=verify, index=index, keys=keys, remote=remote, progress=progress
    )


def index_shards(
    location: Location,
    *,
    rebuild: bool = False,
    executor: Executor | None = None,
    progress: bool | Callable[[int, int], None] | None = None,
    remote: str | Remote | None = None,
) -> Mapping[str, Any]:
    """Build the index of tar shards, with checksums.

    Args:
        location: A tar file, a folder of them, braces, or a list of these.
        rebuild: Whether to rebuild existing indexes.
        executor: The executor that reads shards; None: a few threads.
        progress: Whether to show a progress bar; None: on a terminal. Or a function that is called
            with (sequences, bytes).
        remote: Options for URLs; None: the configuration of the transport.

    Returns:
        ``shards`` and ``indexed`` (in this call), ``sequences`` and ``bytes`` (of all shards), and
        ``folders`` of the indexes.

    Raises:
        ConfigError: If there are no shards at the location.
        DataError: If a shard is missing, is damaged, or does not hold samples.
        UnsafeContentError: If a member is a link or a device.
        LimitError: If a shard exceeds a limit, such as that of extensions.
        RemoteReadError: If a URL cannot be reached.
    """
    return FormatBackend(IndexedTar()).build_index(
        location, rebuild=rebuild, executor=executor, progress=progress, remote=remote
    )


def write_webdataset(  # noqa: PLR0913
    location: str | os.PathLike[str],
    sequences: Iterable[Any],
    *,
    axes: Mapping[str, str | None] | None = None,
    shard_bytes: int,
    key: str = "id",
    executor: Executor | None = None,
    resume: bool = True,
    progress: bool | Callable[[int, int], None] | None = None,
    overwrite: bool = False,
    remote: str | Remote | None = None,
    shuffle: int | None = None,
) -> ShardStore:
    """Write sequences as tar shards with indexes, and open them; see ``seqdata.write_store``.

    A field ``mel`` is written as ``mel.npy``, integers as ``.cls``, strings as ``.txt``, bytes as
    ``.bin``; names with these extensions are kept. The opened store has the original field names.

    Args:
        location: A folder, created if needed; or a URL, for which the shards are written on this
            machine first, then uploaded.
        sequences: Dicts, plain arrays, tables; or a list of functions that return such sequences.
        axes: Field -> axis; None: one vector per sequence. Other arrays run along ``time``.
        shard_bytes: Size at which a shard is closed, in bytes.
        key: The ``str`` field that becomes the key; without one, samples are numbered.
        executor: The executor that indexes and writes shards; None: threads of this process.
        resume: Whether to continue an interrupted write; otherwise its files are removed.
        progress: Whether to show a bar (None: on a terminal), or a function (sequences, bytes).
        overwrite: Whether existing shards of this writer are replaced.
        remote: Options for a URL; None: the configuration of the transport.
        shuffle: Seed of a random order; None: the given order.

    Raises:
        ConfigError: If an argument is invalid, or does not match the existing files.
        DecodeError: If a sequence does not match the first one, or, with ``resume``, the one that
            was written before; or if an id cannot be a key.
        IncompleteDatasetError: If the disk is full.
        RemoteReadError: If a URL cannot be reached.
        WorkerDiedError: If the executor broke.
    """
    return write_files(
        location, sequences, FormatBackend(IndexedTar()), axes=axes, shard_bytes=shard_bytes,
        key=key, executor=executor, resume=resume, progress=progress, overwrite=overwrite,
        remote=remote, shuffle=shuffle,
    )  # fmt: skip


@hookimpl
def seqdata_register_backends() -> Mapping[str, Any]:
    """Register the backend ``webdataset``."""
    return {"webdataset": WebDataset()}


@hookimpl
def seqdata_register_readers() -> Mapping[str, Any]:
    """Register tar shards as input of ``seqdata write``."""
    return {"webdataset": FormatReader(IndexedTar())}
