"""Tar shards as a store."""

from __future__ import annotations

from collections.abc import Collection

from seqdata.backends import IndexedStore, Location, Remote, format_location, open_files, redact_url
from seqdata_webdataset.kind import TarKind
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
) -> IndexedStore:
    """Open tar shards as the webdataset library writes them, reading no data yet.

    A field is named by its extension. Without a schema ``.npy`` and ``.wav`` are ragged on
    ``time``, ``.cls`` is a whole number, ``.txt`` is text, and others are the bytes of the member.

    Args:
        location: A tar file, a folder of them, braces (``x-{000..017}.tar``), or a list of these.
        verify: When checksums are looked at: ``"first_read"``, ``"always"``, or ``"off"``: never.
            None: at the first read.
        schema: Extension -> what it holds: a dtype (ragged on ``time``), ``int``, ``float``,
            ``bool`` (one number per sequence), ``str``, ``bytes``, a ``Field``, ``...`` (as without
            a schema), None (left out); of ``.json`` and ``.npz`` also a dict: name of a value ->
            what it is. Extensions that are not named are read as without a schema.
        index: ``"build"``: make the index of shards that have none, with a progress bar.
        keys: ``unique``: a key is there once; ``by_shard``: once in each shard, and ids are
            ``shard.tar/key``.
        remote: How URLs are read: ``"cache"`` (None): shards whole, kept on this machine;
            ``"ranges"``: only the members, or parts of long ones, that a batch needs; or a
            ``Remote`` with more to say.
        progress: Whether to show bars; None: where standard error is a terminal.
        unsafe_decoders: Which members may be read though that runs code which they bring: of
            ``pyd``, ``pkl``, ``pickle`` (unpickled), ``pth``, ``pt`` (by torch). The schema must
            say what they hold. Only for shards that you would run as a program.

    Raises:
        ConfigError: If the location means nothing, there is no index, or an argument cannot be
            meant.
        MissingShardError: If a shard is not there.
        CorruptShardError: If a shard is damaged or not as long as its index says.
        FingerprintMismatch: If a shard is not the one that was indexed, or an index is not of
            the shard that was written.
        IncompleteDatasetError: If writing was never finished.
        DecodeError: If members are not what the schema says.
        UnsafeContentError: If members could run code.
    """
    kind = TarKind(schema)
    where = redact_url(format_location(location, kind))
    kind = TarKind(schema, check_allowed_names(unsafe_decoders, where))
    return open_files(
        location, kind, verify=verify, index=index, keys=keys, remote=remote, progress=progress
    )
