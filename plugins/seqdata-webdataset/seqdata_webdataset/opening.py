"""Opening of tar shards as a store."""

from __future__ import annotations

from collections.abc import Collection

from seqdata.backends import Location, Remote, ShardStore, format_location, open_files, redact_url
from seqdata_webdataset.indexed_format import IndexedTar
from seqdata_webdataset.schema import Schema
from seqdata_webdataset.unsafe import check_allowed_names


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
    """Open tar shards as the webdataset library writes them, reading no data yet.

    A field is named by its extension. Without a schema ``.npy`` and ``.wav`` are ragged on
    ``time``, ``.cls`` is an integer, ``.txt`` is text, and others are the bytes of the member.

    Args:
        location: A tar file, a folder of them, braces (``x-{000..017}.tar``), or a list of these.
        verify: When checksums are compared: ``"first_read"``, ``"always"``, or ``"off"``: never.
            None: at the first read.
        schema: Extension -> its type: a dtype (ragged on ``time``), ``int``, ``float``, ``bool``
            (one number per sequence), ``str``, ``bytes``, a ``Field``, ``...`` (as without a
            schema), None (left out); of ``.json`` and ``.npz`` also a dict: name of a value -> its
            type. Extensions that are not named are read as without a schema.
        index: ``"build"``: build the index of shards that have none, with a progress bar.
        keys: ``unique``: keys are unique; ``by_shard``: unique in each shard, and ids are
            ``shard.tar/key``.
        remote: How URLs are read: ``"cache"`` (None): whole shards, cached on this machine;
            ``"ranges"``: only the members, or slices of long ones, that a batch needs; or a
            ``Remote`` with further options.
        progress: Whether to show progress bars; None: on a terminal.
        unsafe_decoders: Extensions that may be read although that runs code from the data: ``pyd``,
            ``pkl``, ``pickle`` (unpickled), ``pth``, ``pt`` (by torch). The schema must give their
            types. Use it only for shards that you would run as a program.

    Raises:
        ConfigError: If there are no shards, there is no index, or an argument is invalid.
        MissingShardError: If a shard is not there.
        CorruptShardError: If a shard is damaged or its size differs from its index.
        FingerprintMismatch: If a shard is not the one that was indexed, or an index is not of
            the shard that was written.
        IncompleteDatasetError: If writing was not finished.
        DecodeError: If members do not match the schema.
        UnsafeContentError: If members could run code.
    """
    file_format = IndexedTar(schema)
    where = redact_url(format_location(location, file_format))
    file_format = IndexedTar(schema, check_allowed_names(unsafe_decoders, where))
    return open_files(
        location,
        file_format,
        verify=verify,
        index=index,
        keys=keys,
        remote=remote,
        progress=progress,
    )
