"""Sequences cut into shards, where those that are written already are only compared.

Place in the flow: the writer packs by it. Reads: sequences. Makes: packed sequences, a shard at a
time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from seqdata.errors import DecodeError
from seqdata.kernel.dispatch import kernel
from seqdata.protocols import Field
from seqdata.storage.writing.packing import check_axes, check_keys, make_packer, pack_many, pack_one
from seqdata.storage.writing.resume_key import AGAIN, Scheme
from seqdata.storage.writing.staged_shards import Load, Whole, digest_of

Tell = Callable[[int, int], None]
_BETWEEN = 1024  # sequences between two calls of `tell`, at most
_BYTES_BETWEEN = 1 << 24
_END = object()


def cut(
    rows: Iterator[Any],
    fields: Mapping[str, Field],
    scheme: Scheme,
    kept: Mapping[int, Whole],
    part: int,
    tell: Tell,
) -> Iterator[Load]:
    """Give the shards that are still to be written, of all sequences of a part.

    Args:
        rows: The sequences.
        fields: Name -> field.
        scheme: Where a shard ends.
        kept: Number -> shard that is written already: its first and last sequence are compared.
        part: Number of the part.
        tell: Called now and then with (sequences, bytes), those that are compared included.

    Raises:
        DecodeError: If a sequence is not like the first one, or not the one that was written.
    """
    packers = {name: make_packer(one, is_key=name == scheme.key) for name, one in fields.items()}
    key, limit, engine = scheme.key, scheme.shard_bytes, kernel()
    count = total = 0
    for number in itertools.count():
        whole = kept.get(number)
        if whole is not None:
            _pass(rows, fields, key, whole, count)
            count += whole.shard.sequences
            total += whole.size
            tell(count, total)
            continue
        begin, size, stop = count, 0, min(limit, _BYTES_BETWEEN)
        left: tuple[Any, ...] | None = ()
        while left is not None and size < limit:
            most = _BETWEEN - count % _BETWEEN
            many, bytes_, left = pack_many(engine, packers, rows, most, stop - size)
            count, size = count + many, size + bytes_
            if left:  # not plain, or no room: by itself, and the next ones where none was plain
                alike = itertools.islice(rows, 0 if many else most - 1)
                for sequence in itertools.chain(left, alike):
                    size += pack_one(packers, sequence, count, key)
                    count += 1
                    if size >= stop:
                        break
            if count % _BETWEEN == 0 or size >= stop:
                tell(count, total + size)
                stop = min(limit, size + _BYTES_BETWEEN)
        if count == begin:
            _check_end(kept, number, count)
            return
        _check_before(kept.get(number - 1), limit, begin)
        total += size
        yield _load(packers, fields, key, part, number, size, begin)


def _load(
    packers: Mapping[str, Any],
    fields: Mapping[str, Field],
    key: str,
    part: int,
    number: int,
    size: int,
    first: int,
) -> Load:
    packed = {name: packer.take() for name, packer in packers.items()}
    lengths = check_axes(fields, packed, first, key)
    check_keys(fields, packed, key, first)
    timesteps = {axis: int(one.sum()) for axis, one in lengths.items()}
    return Load(part=part, number=number, size=size, packed=packed, timesteps=timesteps)


def _pass(
    rows: Iterator[Any], fields: Mapping[str, Field], key: str, whole: Whole, begin: int
) -> None:
    """Leave out the sequences of a shard that is written, where they are the same."""
    many = whole.shard.sequences
    _compare(next(rows, _END), fields, key, begin, whole.first)
    if many == 1:
        return
    between = sum(1 for _ in itertools.islice(rows, many - 2))
    if between < many - 2:
        raise _too_few(begin + 1 + between)
    _compare(next(rows, _END), fields, key, begin + many - 1, whole.last)


def compare_first(sequence: Any, fields: Mapping[str, Field], key: str, whole: Whole) -> None:
    """Refuse a first sequence that is not the one of the first shard that was written.

    Raises:
        DecodeError: If it is another one.
    """
    _compare(sequence, fields, key, 0, whole.first)


def _compare(
    sequence: Any, fields: Mapping[str, Field], key: str, number: int, digest: str
) -> None:
    if sequence is _END:
        raise _too_few(number)
    packers = {name: make_packer(field, is_key=name == key) for name, field in fields.items()}
    pack_one(packers, sequence, number, key)
    packed = {name: packer.take() for name, packer in packers.items()}
    if digest_of(fields, packed, 0) != digest:
        raise DecodeError.at(
            f"sequence {number}: is not the one that was written before writing stopped, must be, "
            f"for it to go on; give the same sequences in the same order, or {AGAIN}",
            sequence=number,
        )


def _too_few(count: int) -> DecodeError:
    return DecodeError.at(
        f"sequence {count}: is not there, must be, as it was written before writing stopped; give "
        f"the same sequences, or {AGAIN}",
        sequence=count,
    )


def _check_end(kept: Mapping[int, Whole], number: int, count: int) -> None:
    """Refuse that shards are left over where the sequences end."""
    if any(one > number for one in kept):
        raise _too_few(count)


def _check_before(before: Whole | None, limit: int, number: int) -> None:
    """Refuse sequences after a shard that was the last one when it was written."""
    if before is not None and before.size < limit:
        raise DecodeError.at(
            f"sequence {number}: comes after the last one that was there before writing stopped, "
            f"must be none; give the same sequences, or {AGAIN}",
            sequence=number,
        )
