"""From a location to a store: shards and their indexes are found, compared, and mapped.

Place in the flow: the backend ``webdataset``. Reads: index files, sizes and two headers of each
shard. Makes: a store.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, CorruptShardError, DecodeError, FingerprintMismatch
from seqdata.storage.checking.bits import SharedBits
from seqdata.storage.checking.verifying import check_mode, mode_of
from seqdata.storage.hashing import hash_texts
from seqdata.storage.ids import check_ids
from seqdata.storage.manifest import Checking
from seqdata.storage.places import Place
from seqdata.storage.remote.options import Remote, remote_of
from seqdata.storage.remote.pools import Fetchers
from seqdata.storage.remote.urls import shown
from seqdata.storage.texts import TextSource
from seqdata.storage.writing.progress import told
from seqdata_webdataset.fields import Made, extensions_of, ids_of, make, starts_of
from seqdata_webdataset.finding import Location, find_shards, text_of
from seqdata_webdataset.indexing import build
from seqdata_webdataset.lengths import Opened
from seqdata_webdataset.parts import Parts
from seqdata_webdataset.schema import Schema, Wanted, fields_of
from seqdata_webdataset.shard_index import ShardIndex, ends_of
from seqdata_webdataset.shards import Shard, keep
from seqdata_webdataset.store import Options, WebDatasetStore
from seqdata_webdataset.unsafe import allowed
from seqdata_webdataset.whole import WholeSource

INDEX_MODES = (None, "build")
KEY_MODES = ("unique", "by_shard")
_AT_ONCE = 8  # index files that are read side by side


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
) -> WebDatasetStore:
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
        remote: How URLs are read: through the cache, as ``"cache"`` (None) or a ``Remote`` says.
        progress: Whether to show bars; None: where standard error is a terminal.
        unsafe_decoders: Which members may be read though that runs code which they bring: of
            ``pyd``, ``pkl``, ``pickle`` (unpickled), ``pth``, ``pt`` (by torch). The schema must
            say what they hold. Only for shards that you would run as a program.

    Raises:
        ConfigError: If the location means nothing, there is no index, or an argument cannot be
            meant.
        MissingShardError: If a shard is not there.
        CorruptShardError: If a shard is damaged or not as long as its index says.
        FingerprintMismatch: If a shard is not the one that was indexed.
        DecodeError: If members are not what the schema says.
        UnsafeContentError: If members could run code.
    """
    text = text_of(location)
    check_mode(verify, text)
    if index not in INDEX_MODES:
        raise ConfigError(f"{text}: `index` is {index!r}, must be 'build' or None; leave it out")
    if keys not in KEY_MODES:
        raise ConfigError(
            f"{text}: `keys` is {keys!r}, must be one of {', '.join(KEY_MODES)}; leave it out"
        )
    unsafe = allowed(unsafe_decoders, shown(text))
    how = remote_of(remote)
    if how.how == "ranges":
        raise ConfigError(
            f"{shown(text)}: `remote` is 'ranges', must be 'cache': tar shards are fetched whole; "
            "leave it out, or write an Arrow store for reading by ranges"
        )
    shards = find_shards(text, how)
    if index == "build":
        build(shown(text), shards, progress=progress)
    options = Options(
        location=text, schema=schema, verify=verify, keys=keys, remote=how, unsafe=unsafe
    )
    return open_shards(options, None, shards, progress)


def _reopen(options: Options, bits: SharedBits | None) -> WebDatasetStore:
    return open_shards(options, bits, find_shards(options.location, options.remote), False)


def open_shards(
    options: Options, bits: SharedBits | None, shards: Sequence[Shard], progress: bool | None
) -> WebDatasetStore:
    """Open shards that were found; raises as ``open_webdataset`` does.

    Args:
        options: How.
        bits: Those of the process that sent the store here.
        shards: The tar files.
        progress: Whether to show bars.
    """
    location = shown(options.location)
    indexes = _indexes(location, shards)
    names = [path.name for path in shards]

    def file_of(shard: int) -> Place:
        return Place(dataset=location, shard=shard, file=names[shard], verify=True)

    def hold(shard: int, release: Callable[[], None] | None = None) -> NDArray[np.uint8]:
        return _checked(shards[shard], indexes[shard], file_of(shard), release)

    local = all(one.here for one in shards)
    content = tuple(hold(shard) for shard in range(len(shards))) if local else None
    how = Checking(algorithm=indexes[0].algorithm, block=indexes[0].block)
    ids = _ids(location, names, indexes, options.keys)
    opened = Opened(
        location=location, names=names, indexes=indexes, hold=hold, content=content,
        verify=mode_of(options.verify, how, location), ids=ids, starts=starts_of(indexes),
        file_of=file_of,
    )  # fmt: skip
    wanted = fields_of(extensions_of(opened), options.schema, location, options.unsafe)
    digest = _digest(indexes, wanted)

    def survey(
        one: Wanted, source_of: Callable[[int], WholeSource], counts: list[int]
    ) -> NDArray[np.int64]:
        return _count(shards[0], digest, one, source_of, counts, progress)

    made: Made = make(opened, wanted, bits, survey, digest)
    parts = None if local else Parts(made, options.remote or Remote(), hold)
    return WebDatasetStore(location, options, shards, made, parts, _reopen)


def _indexes(location: str, shards: Sequence[Shard]) -> list[ShardIndex]:
    made = Fetchers(_AT_ONCE).each(lambda i: shards[i].index(location, i), range(len(shards)))
    without = [shard for shard, index in zip(shards, made, strict=True) if index is None]
    if without:
        for i, shard in enumerate(shards):  # what is not there at all is another matter
            if shard in without and shard.here:
                shard.content(Place(dataset=location, shard=i, file=shard.name))
        raise ConfigError(
            f"{location}: {len(without)} of {len(shards)} shards have no index "
            f"({without[0].name}), must have one, for samples to be read in place; make it once "
            f"with `seqdata index '{location}'`, or open with index='build'"
        )
    found = [index for index in made if index is not None]
    for i, one in enumerate(found):
        if (one.algorithm, one.block) != (found[0].algorithm, found[0].block):
            raise Place(dataset=location, shard=i, file=one.shard).error(
                CorruptShardError,
                f"has an index with {one.algorithm} by {one.block} bytes, must have "
                f"{found[0].algorithm} by {found[0].block} as the first shard; make it anew with "
                "`seqdata index --anew`",
            )
    return found


def _checked(
    shard: Shard, index: ShardIndex, place: Place, release: Callable[[], None] | None
) -> NDArray[np.uint8]:
    """Give the bytes of a shard that is the one that was indexed, as far as two headers tell.

    Raises:
        CorruptShardError: If it has another size.
        FingerprintMismatch: If it is another one.
    """
    content = shard.content(place, index, release=release)
    if len(content) != index.bytes:
        shorter, longer = sorted((len(content), index.bytes))
        raise replace(place, offset=shorter, length=longer - shorter).error(
            CorruptShardError,
            f"has {len(content)} bytes, must have {index.bytes} as when it was indexed; restore "
            "it, or, if it was written anew, make its index anew with --repair-index",
            expected=index.bytes, found=len(content),
        )  # fmt: skip
    found = ends_of(content, index.last)
    if found != index.ends:
        raise replace(place, offset=index.last, length=512).error(
            FingerprintMismatch,
            f"has first and last headers of digest {found[:16]}, must be {index.ends[:16]} as when "
            "it was indexed; it is another shard or damaged: restore it, or make its index anew "
            "with --repair-index",
            expected=index.ends, found=found,
        )  # fmt: skip
    return content


def _ids(
    location: str, names: Sequence[str], indexes: Sequence[ShardIndex], keys: str
) -> TextSource:
    if keys == "by_shard":
        indexes = [_prefixed(index, name) for index, name in zip(indexes, names, strict=True)]
    ids = ids_of(location, indexes, names)
    hashes = [hash_texts(one.keys, one.key_ends) for one in indexes if len(one)]
    try:
        check_ids(np.concatenate(hashes), lambda number: str(ids.take([number])[0]))
    except DecodeError as error:
        raise DecodeError.at(
            f"{location}: {error}. Where shards number their samples anew, open them with "
            "keys='by_shard'",
            **error.facts,
        ) from error
    return ids


def _prefixed(index: ShardIndex, name: str) -> ShardIndex:
    head = np.frombuffer(f"{name}/".encode(), dtype=np.uint8)
    sizes = np.diff(index.key_ends)
    ends = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes + len(head), out=ends[1:])
    keys = np.empty(int(ends[-1]), dtype=np.uint8)
    at = ends[:-1, None] + np.arange(len(head))
    keys[at] = head
    rest = np.ones(len(keys), dtype=bool)
    rest[at] = False
    keys[rest] = index.keys
    return replace(index, keys=keys, key_ends=ends)


def _digest(indexes: Sequence[ShardIndex], wanted: Sequence[Wanted]) -> str:
    made = hashlib.sha256(repr(wanted).encode())
    for index in indexes:
        made.update(f"{index.sha256}\n".encode())
    return made.hexdigest()[:32]


def _count(
    shard: Shard,
    digest: str,
    one: Wanted,
    source_of: Callable[[int], WholeSource],
    counts: list[int],
    progress: bool | None,
) -> NDArray[np.int64]:
    """Give the timesteps of members that must be decoded for it, counted once and kept."""
    name = hashlib.sha256(f"{digest}\n{one.name}".encode()).hexdigest()[:32]
    places, count = shard.kept(f"lengths-{name}.npy"), sum(counts)
    for path in places:
        with suppress(OSError, ValueError, EOFError):
            kept: NDArray[np.int64] = np.load(path, allow_pickle=False)
            if kept.shape == (count,) and kept.dtype == np.int64 and int(kept.min(initial=0)) >= 0:
                return kept
    made: list[int] = []
    with told(progress, f"measuring {one.name}", count) as bar:
        for number, many in enumerate(counts):
            source = source_of(number)
            for at in range(many):
                made.append(source.length(at))
                if bar is not None and at % 256 == 0:
                    bar.tell(len(made), 0)
    lengths = np.array(made, dtype=np.int64)
    content = io.BytesIO()
    np.save(content, lengths, allow_pickle=False)
    keep(places, content.getvalue())
    return lengths
