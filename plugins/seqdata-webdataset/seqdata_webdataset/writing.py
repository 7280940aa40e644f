"""Writing tar shards that the webdataset library reads, all of them or none.

Shards are made in a folder aside with their indexes, and renamed into place when all are there; the
indexes come last. What is whole when a writer stops is kept, and the same call goes on after it.
Place in the flow: ``sending`` hands folders on to this. Reads: sequences. Makes: shards, indexes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from seqdata.backends import (
    FACTS_SUFFIX,
    FOLDER,
    LIST,
    MANIFEST,
    DataLocation,
    ProgressBar,
    ProgressFn,
    add_digest,
    bounded_executor,
    check_unique_ids,
    digest_of,
    dump_index,
    dump_list,
    explain_full_disk,
    find_staging_dirs,
    hash_texts,
    ids_of,
    infer_fields,
    is_part_list,
    load_index,
    normalize_sequences,
    open_staging_dir,
    read_with_digest,
    sync_file,
    write_atomically,
    write_synced,
)
from seqdata.backends import progress_bar as progress_bar
from seqdata.errors import ConfigError, DecodeError
from seqdata_webdataset.encoding import END_OF_ARCHIVE, Encoder, make_member
from seqdata_webdataset.kind import SUFFIX, TarKind

AGAIN = "or begin anew with `resume`=False"
_UNDER_WAY = 1 << 30  # bytes of shards that an executor has at a time
_MOST_JOBS = 64
_BETWEEN = 1024  # sequences
Told = Mapping[str, tuple[str, str, tuple[int, ...], str | None]]


@dataclass(frozen=True, slots=True)
class Whole:
    """A shard that is whole in the folder aside.

    Attributes:
        number: Of the shard.
        samples: How many it has.
        bytes: Its size.
        sha256: Its digest.
        first: Digest of its first sample.
        last: Digest of its last one.
        scheme: Digest of how it was made.
        full: Whether it reached the size at which a shard is closed.
    """

    number: int
    samples: int
    bytes: int
    sha256: str
    first: str
    last: str
    scheme: str
    full: bool


def write_local(
    root: Path,
    sequences: Iterable[Any],
    *,
    axes: Mapping[str, str | None] | None,
    shard_bytes: int,
    key: str,
    executor: Executor | None,
    resume: bool,
    progress: bool | ProgressFn | None,
    overwrite: bool,
) -> None:
    """Write shards to a folder of this machine; see ``sending.write_webdataset``."""
    if shard_bytes < 1:
        raise ConfigError(f"`shard_bytes` is {shard_bytes!r}, must be at least 1; leave it out")
    _check_free(root, overwrite=overwrite)
    if is_part_list(sequences):
        sequences = itertools.chain.from_iterable(part() for part in sequences)
    rows, axes = normalize_sequences(sequences, axes)
    with (
        open_staging_dir(root, overwrite=overwrite, resume=resume) as folder,
        progress_bar(progress, f"writing {root.name}", None) as bar,
    ):
        first = next(rows)
        encoder = Encoder.of(infer_fields(first, axes), key)
        kept = _kept(folder, _scheme(encoder, shard_bytes), root)
        samples = _samples(itertools.chain([first], rows), encoder)
        tell = _teller(bar, progress if callable(progress) else None)
        loads = _cut(samples, shard_bytes, kept, tell)
        there = folder.absolute()  # an executor may work in another folder
        shards = _written(there, loads, kept, encoder, shard_bytes, executor)
        if encoder.key is not None:
            _check_keys(there, shards)
        _commit(root, there, shards, encoder.fields_of_extensions)


def _written(
    folder: Path,
    loads: Iterator[Load],
    kept: Mapping[int, Whole],
    encoder: Encoder,
    shard_bytes: int,
    executor: Executor | None,
) -> list[Whole]:
    """Write shards on the executor while the next one is packed; gives all there are, in order."""
    most = 1 if executor is None else max(2, min(_MOST_JOBS, _UNDER_WAY // shard_bytes))
    scheme = _scheme(encoder, shard_bytes)
    with bounded_executor(executor, most) as jobs:
        for load in loads:
            jobs.submit(write_shard, folder, load, scheme, encoder.fields_of_extensions)
            del load  # its memory is the job's from here on
        written = jobs.collect()
    return sorted([*kept.values(), *written], key=lambda one: one.number)


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """The samples of one shard, as members.

    Attributes:
        number: Of the shard.
        samples: How many.
        members: Headers, bytes and room, in order.
        size: Their bytes.
        first: Digest of the first sample.
        last: Digest of the last one.
        full: Whether it is as large as a shard is to be.
    """

    number: int
    samples: int
    members: list[bytes]
    size: int
    first: str
    last: str
    full: bool


Sample = list[bytes]


def _samples(rows: Iterator[Any], encoder: Encoder) -> Iterator[Sample]:
    """Yield the members of each sequence."""
    for number, row in enumerate(rows):
        key, members = encoder.encode(row, number)
        yield [make_member(f"{key}.{extension}", content) for extension, content in members]


def _cut(
    samples: Iterator[Sample],
    shard_bytes: int,
    kept: Mapping[int, Whole],
    tell: Callable[[int, int], None],
) -> Iterator[Load]:
    """Yield the shards that are not whole yet; pass over the sequences of those that are."""
    count = total = 0
    for number in itertools.count():
        whole = kept.get(number)
        if whole is not None:
            _pass(samples, whole, count)
            count, total = count + whole.samples, total + whole.bytes
            tell(count, total)
            continue
        members: list[bytes] = []
        size, begin, first = 0, count, ""
        sample: Sample = []
        for sample in samples:
            first = first or _digest(sample)
            members += sample
            size += sum(map(len, sample))
            count += 1
            if count % _BETWEEN == 0:
                tell(count, total + size)
            if size >= shard_bytes:
                break
        if count == begin:
            if any(one > number for one in kept):
                raise _other(count, "is not there")
            return
        before = kept.get(number - 1)
        if before is not None and not before.full:
            raise _other(begin, "comes after what was the last one")
        total += size
        tell(count, total)
        yield Load(
            number, count - begin, members, size, first, _digest(sample),
            size >= shard_bytes,
        )  # fmt: skip


def _pass(samples: Iterator[Sample], whole: Whole, begin: int) -> None:
    """Leave out the samples of a shard that is written, where they are the same."""
    for at in range(whole.samples):
        sample = next(samples, None)
        if sample is None:
            raise _other(begin + at, "is not there")
        ends = ((0, whole.first), (whole.samples - 1, whole.last))
        if any(at == place and _digest(sample) != must for place, must in ends):
            raise _other(begin + at, "is another one")


def _other(number: int, what: str) -> DecodeError:
    return DecodeError.at(
        f"sequence {number}: {what}, must be as it was written before writing stopped; give the "
        f"same sequences in the same order, {AGAIN}",
        sequence=number,
    )


def _digest(sample: Sample) -> str:
    made = hashlib.sha256()
    for one in sample:
        made.update(one)
    return made.hexdigest()


def write_shard(folder: Path, load: Load, scheme: str, about: Told) -> Whole:
    """Write a shard, its index and its facts into a folder aside, all flushed to the disk.

    Raises:
        IncompleteDatasetError: If the disk is full.
    """
    path = folder / shard_name(load.number)
    content = np.frombuffer(b"".join([*load.members, END_OF_ARCHIVE]), dtype=np.uint8)
    with explain_full_disk(path, len(content)):
        with open(path, "wb") as file:
            file.write(content.data)
            file.flush()
            os.fsync(file.fileno())
        index = TarKind().make_index(
            content, path.name, DataLocation(dataset=str(folder), file=path.name)
        )
        write_synced(path.with_suffix(".idx"), dump_index(replace(index, told=about)))
        whole = Whole(
            load.number, load.samples, len(content), index.sha256, load.first, load.last, scheme,
            load.full,
        )  # fmt: skip
        facts = path.with_suffix(FACTS_SUFFIX)
        write_atomically(facts, add_digest(json.dumps(asdict(whole)).encode(), facts.name))
    return whole


def shard_name(number: int) -> str:
    """Return the name of a shard."""
    return f"shard-{number:06d}{SUFFIX}"


def _scheme(encoder: Encoder, shard_bytes: int) -> str:
    told_ = repr((sorted(encoder.fields.items()), encoder.key, shard_bytes, 1))
    return hashlib.sha256(told_.encode()).hexdigest()


def _kept(folder: Path, scheme: str, root: Path) -> dict[int, Whole]:
    """Return number -> whole shard that a writer left, whose files are what was written.

    Raises:
        ConfigError: If it was written in another way.
    """
    found: dict[int, Whole] = {}
    for path in sorted(folder.glob(f"*{FACTS_SUFFIX}")):
        try:
            one = Whole(**json.loads(read_with_digest(path) or b"null"))
        except (ValueError, TypeError):  # damaged: the shard is written again
            continue
        if one.scheme != scheme:
            raise ConfigError(
                f"{root}: holds shards of a writer that stopped, of other fields, `key` or "
                f"`shard_bytes`, must be the same to go on; give the same, {AGAIN}"
            )
        shard = folder / shard_name(one.number)
        there = shard.is_file() and shard.with_suffix(".idx").is_file()
        if there and digest_of(np.fromfile(shard, dtype=np.uint8)) == one.sha256:
            found[one.number] = one
    return found


def _check_free(root: Path, *, overwrite: bool) -> None:
    """Refuse a folder that holds something else, or shards that must not be replaced."""
    if not root.is_dir():
        return
    if (root / MANIFEST).exists():
        raise ConfigError(f"{root}: holds a store, must be another folder; choose one")
    tars = sorted(path.name for path in root.glob(f"*{SUFFIX}"))
    others = [name for name in tars if not is_own(name)]
    begun = find_staging_dirs(root) and not (root / FOLDER / LIST).exists()  # stopped in its commit
    if others or (tars and not overwrite and not begun):
        advice = "choose one" if others else "choose one, or pass `overwrite`=True"
        raise ConfigError(
            f"{root}: holds {(others or tars)[0]!r}, must be an empty folder; {advice}"
        )


def is_own(name: str) -> bool:
    """Return whether a shard has a name that we give."""
    digits = name.removeprefix("shard-").removesuffix(SUFFIX)
    return name == f"shard-{digits}{SUFFIX}" and digits.isdigit() and len(digits) >= 6


def _check_keys(folder: Path, shards: list[Whole]) -> None:
    """Refuse one key twice; what was written cannot be gone on with then.

    Raises:
        DecodeError: If there is one.
    """
    indexes = []
    for one in shards:
        path = (folder / shard_name(one.number)).with_suffix(".idx")
        indexes.append(
            load_index(
                path.read_bytes(), DataLocation(dataset=str(folder), file=path.name), TarKind()
            )
        )
    ids = ids_of(str(folder), indexes, [one.shard for one in indexes])
    hashes = np.concatenate([hash_texts(one.keys, one.key_ends) for one in indexes])
    try:
        check_unique_ids(hashes, lambda number: str(ids.take([number])[0]))
    except DecodeError:
        for path in folder.glob(f"*{FACTS_SUFFIX}"):
            path.unlink()
        raise


def _commit(root: Path, folder: Path, shards: list[Whole], about: Told) -> None:
    """Rename shards into place, then their indexes, then their list; old ones of ours go first."""
    (root / FOLDER).mkdir(exist_ok=True)
    (root / FOLDER / LIST).unlink(missing_ok=True)
    listed = [(shard_name(one.number), one.sha256) for one in shards]
    write_synced(folder / LIST, dump_list(listed, about))
    for old in root.glob(f"*{SUFFIX}"):
        (root / FOLDER / f"{old.name}.idx").unlink(missing_ok=True)
        old.unlink()
    for one in shards:
        os.replace(folder / shard_name(one.number), root / shard_name(one.number))
    sync_file(root)
    for one in shards:
        name = shard_name(one.number)
        os.replace((folder / name).with_suffix(".idx"), root / FOLDER / f"{name}.idx")
    os.replace(folder / LIST, root / FOLDER / LIST)
    sync_file(root / FOLDER)


def _teller(bar: ProgressBar | None, function: ProgressFn | None) -> Callable[[int, int], None]:
    def tell(sequences: int, size: int) -> None:
        if bar is not None:
            bar.update(sequences, size)
        if function is not None:
            function(sequences, size)

    return tell
