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

from seqdata.errors import (
    ConfigError,
    CorruptShardError,
    DataError,
    DecodeError,
    FingerprintMismatch,
    IncompleteDatasetError,
    MissingShardError,
)
from seqdata.storage.arrow.manifest import Checking
from seqdata.storage.data_location import Place
from seqdata.storage.digest_trailer import read_sealed
from seqdata.storage.hashing import hash_texts
from seqdata.storage.integrity.verified_bitmap import SharedBits
from seqdata.storage.integrity.verify import check_mode, mode_of
from seqdata.storage.local_files import check_same
from seqdata.storage.remote.file_cache import NoRoomError
from seqdata.storage.remote.options import Remote, remote_of
from seqdata.storage.remote.range_cache import Kept
from seqdata.storage.remote.thread_pool import Fetchers
from seqdata.storage.remote.transport import remote_files
from seqdata.storage.remote.urls import shown
from seqdata.storage.text_source import TextSource
from seqdata.storage.unique_ids import check_ids
from seqdata.storage.writing.progress import told
from seqdata_webdataset.bringing import Bringing
from seqdata_webdataset.checked import checked
from seqdata_webdataset.fields import Made, extensions_of, ids_of, make, starts_of
from seqdata_webdataset.finding import Location, find_shards, text_of
from seqdata_webdataset.indexing import build, of_each
from seqdata_webdataset.keeping import FOLDER
from seqdata_webdataset.lengths import Opened
from seqdata_webdataset.listing import LIST
from seqdata_webdataset.parts import Parts
from seqdata_webdataset.placed import Runs
from seqdata_webdataset.ranged import Distant, RangedShards
from seqdata_webdataset.remote import RemoteShard
from seqdata_webdataset.schema import Schema, Wanted, fields_of
from seqdata_webdataset.shard_index import ShardIndex
from seqdata_webdataset.shards import Shard, keep
from seqdata_webdataset.shelved import ShelvedShards
from seqdata_webdataset.store import Options, WebDatasetStore
from seqdata_webdataset.unsafe import allowed
from seqdata_webdataset.whole import WholeSource

INDEX_MODES = (None, "build")
KEY_MODES = ("unique", "by_shard")

_AT_A_TIME = 1024  # indexes that are read before it is looked whether their shards are there


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
    text, how = text_of(location), remote_of(remote)
    _check(shown(text), verify, index, keys)
    unsafe = allowed(unsafe_decoders, shown(text))
    shards = find_shards(text, how, there=True)
    if index == "build":
        build(shown(text), shards, progress=progress)
    options = Options(
        location=text, schema=schema, verify=verify, keys=keys, remote=how, unsafe=unsafe
    )
    return open_shards(options, None, shards, progress)


def _check(where: str, verify: str | None, index: str | None, keys: str) -> None:
    check_mode(verify, where)
    if index not in INDEX_MODES:
        raise ConfigError(f"{where}: `index` is {index!r}, must be 'build' or None; leave it out")
    if keys not in KEY_MODES:
        raise ConfigError(
            f"{where}: `keys` is {keys!r}, must be one of {', '.join(KEY_MODES)}; leave it out"
        )


def _reopen(options: Options, bits: SharedBits | None, fingerprint: str) -> WebDatasetStore:
    shards = find_shards(options.location, options.remote)
    store = open_shards(options, bits, shards, False)
    check_same(Place(dataset=store.location), store.fingerprint, fingerprint)
    return store


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
        return checked(shards[shard], indexes[shard], file_of(shard), release)

    def hold_some(shard: int, runs: Runs) -> NDArray[np.uint8]:
        if shard not in distant.files:
            return hold(shard)
        if remote.how == "cache":
            with suppress(NoRoomError):
                return hold(shard, lambda: None)
        return distant.some(shard, runs)

    def mend(shard: int, content: NDArray[np.uint8]) -> bool:
        return shards[shard].mend(content, indexes[shard], file_of(shard))

    local = all(one.here for one in shards)
    content = tuple(hold(shard) for shard in range(len(shards))) if local else None
    remote = options.remote or Remote()
    distant = _distant(shards, indexes, file_of, remote)
    how = Checking(algorithm=indexes[0].algorithm, block=indexes[0].block)
    ids = _ids(location, names, indexes, options.keys)
    opened = Opened(
        location=location, names=names, indexes=indexes, hold=hold_some, content=content,
        verify=mode_of(options.verify, how, location), ids=ids, starts=starts_of(indexes),
        file_of=file_of, mend=mend,
    )  # fmt: skip
    wanted = fields_of(extensions_of(opened), options.schema, location, options.unsafe)
    digest = _digest(indexes, wanted)

    def survey(
        one: Wanted, source_of: Callable[[int], WholeSource], counts: list[int]
    ) -> NDArray[np.int64]:
        return _count(shards[0], digest, one, source_of, counts, progress)

    made: Made = make(opened, wanted, bits, survey, digest)
    if local:
        return WebDatasetStore(location, options, shards, made, None, _reopen)
    ways: Bringing = RangedShards(made, distant, hold, Kept(remote.memory_bytes))
    if remote.how == "cache":
        ways = ShelvedShards(made, remote.cache_bytes, hold, ways)
    return WebDatasetStore(location, options, shards, made, Parts(made, ways), _reopen)


def _distant(
    shards: Sequence[Shard],
    indexes: Sequence[ShardIndex],
    place_of: Callable[[int], Place],
    remote: Remote,
) -> Distant:
    """Give the shards that are not on this machine."""
    away = {i: one.url for i, one in enumerate(shards) if isinstance(one, RemoteShard)}
    folders = {url: remote_files(url, remote) for url in away.values()}
    files = {number: folders[url] for number, url in away.items()}
    return Distant(files, indexes, place_of, Fetchers(remote.connections))


def _indexes(location: str, shards: Sequence[Shard]) -> list[ShardIndex]:
    made: list[ShardIndex | None] = []

    def index_of(i: int) -> ShardIndex | None:
        return shards[i].index(location, i)

    for first in range(0, len(shards), _AT_A_TIME):
        made += of_each(shards, index_of, range(len(shards))[first : first + _AT_A_TIME])
        _check_there(location, shards, made, first)
    for i, (shard, one) in enumerate(zip(shards, made, strict=True)):
        _check_listed(Place(dataset=location, shard=i, file=shard.name), shard, one)
    without = [shard for shard, index in zip(shards, made, strict=True) if index is None]
    if without:
        raise ConfigError(
            f"{location}: {len(without)} of {len(shards)} shards have no index "
            f"({without[0].name}), must have one, for samples to be read in place; make it once "
            f"with `seqdata index '{location}'`, or open with index='build'"
        )
    found = [index for index in made if index is not None]
    if not any(map(len, found)):
        only = shards[0].name if len(shards) == 1 else None
        raise Place(dataset=location, file=only).error(
            DataError,
            "holds no samples, must hold one at least: files with a key and an extension, as "
            "'utt-7.npy', not in a hidden folder; check the location, or write it again",
        )
    for i, one in enumerate(found):
        if (one.algorithm, one.block) != (found[0].algorithm, found[0].block):
            raise Place(dataset=location, shard=i, file=one.shard).error(
                CorruptShardError,
                f"has an index with {one.algorithm} by {one.block} bytes, must have "
                f"{found[0].algorithm} by {found[0].block} as the first shard; make it anew with "
                "`seqdata index --anew`",
            )
    return found


def _check_there(
    location: str, shards: Sequence[Shard], made: Sequence[ShardIndex | None], first: int
) -> None:
    """Look whether shards without an index are there at all: that is another matter.

    Args:
        location: Of all of them, for errors.
        shards: All of them.
        made: The indexes of those so far.
        first: The first one that was not looked at yet.

    Raises:
        MissingShardError: If one is not.
    """
    without = [i for i in range(first, len(made)) if made[i] is None]
    local = all(one.here for one in shards)
    for i in without if local else without[:1]:
        place = Place(dataset=location, shard=i, file=shards[i].name)
        if local:
            shards[i].content(place)
        else:
            shards[i].look(place)


def _check_listed(place: Place, shard: Shard, index: ShardIndex | None) -> None:
    """Compare an index with the list of its writer's shards.

    Raises:
        MissingShardError: If it is not there.
        IncompleteDatasetError: If the list is not there.
        FingerprintMismatch: If it is of another shard.
    """
    place = replace(place, part=f"index of shard {place.shard}")
    if shard.listed is None and index is not None and index.told:
        raise place.error(
            IncompleteDatasetError,
            f"is of a writer that lists all of its shards ({FOLDER}/{LIST}), and there is no such "
            "list, must be; writing was never finished, or not all was copied: copy it, or make "
            "the index anew with `seqdata index --anew`",
        )
    if shard.listed is not None and index is None:
        raise place.error(
            MissingShardError,
            "is not there, must be; make it anew with `--repair-index`, or restore it",
        )
    if shard.listed is not None and index is not None and index.sha256 != shard.listed.sha256:
        raise place.error(
            FingerprintMismatch,
            f"is of a shard of sha256 {index.sha256[:16]}, must be of "
            f"{shard.listed.sha256[:16]} as when it was written; restore it and its shard; or, "
            f"if that was replaced, remove {FOLDER}/{LIST} and make indexes anew with `seqdata "
            "index --anew`",
            expected=shard.listed.sha256, found=index.sha256,
        )  # fmt: skip


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
    for content in filter(None, map(read_sealed, places)):
        with suppress(ValueError, EOFError):
            kept: NDArray[np.int64] = np.load(io.BytesIO(content), allow_pickle=False)
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
    file = io.BytesIO()
    np.save(file, lengths, allow_pickle=False)
    keep(places, file.getvalue())
    return lengths
