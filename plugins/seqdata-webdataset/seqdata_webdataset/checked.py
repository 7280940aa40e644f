"""Whether a shard is the one that was indexed, as far as its size and two headers tell.

Place in the flow: opening looks at local shards here, reading at remote ones. Reads: sizes,
headers. Makes: errors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import CorruptShardError, DataError, FingerprintMismatch
from seqdata.storage.data_location import Place
from seqdata_webdataset.shard_index import ShardIndex, ends_of
from seqdata_webdataset.shards import Shard
from seqdata_webdataset.tar_headers import BLOCK, sum_is_right


def checked(
    shard: Shard, index: ShardIndex, place: Place, release: Callable[[], None] | None
) -> NDArray[np.uint8]:
    """Give the bytes of a shard that is the one that was indexed.

    Args:
        shard: The tar file.
        index: What it must be.
        place: Its place, for errors.
        release: Lets go of other shards, where there is no room.

    Raises:
        CorruptShardError: If it has another size.
        FingerprintMismatch: If it is another one.
    """
    whole = replace(place, offset=0, length=index.bytes)
    content = shard.content(whole, index, release=release)
    check_size(len(content), index, place)
    try:
        _check(content, index, place)
    except DataError:
        if not shard.mend(content, index, place):
            raise
        _check(content, index, place)
    return content


def _check(content: NDArray[np.uint8], index: ShardIndex, place: Place) -> None:
    first, last = (bytes(content[at : at + BLOCK]) for at in (0, index.last))
    check_headers(first, last, index, place)


def check_size(size: int, index: ShardIndex, place: Place) -> None:
    """Refuse a shard of another size.

    Raises:
        CorruptShardError: If it has one.
    """
    if size != index.bytes:
        shorter, longer = sorted((size, index.bytes))
        raise replace(place, offset=shorter, length=longer - shorter).error(
            CorruptShardError,
            f"has {size} bytes, must have {index.bytes} as when it was indexed; restore it, or, if "
            "it was written anew, make its index anew with --repair-index",
            expected=index.bytes, found=size,
        )  # fmt: skip


def check_headers(first: bytes, last: bytes, index: ShardIndex, place: Place) -> None:
    """Refuse a shard whose first and last headers are others.

    Raises:
        CorruptShardError: If one is no header.
        FingerprintMismatch: If they are another shard's.
    """
    found = ends_of(first + last, len(first))
    if found == index.ends:
        return
    for at, header in ((0, first), (index.last, last)):
        if not sum_is_right(header):
            raise replace(place, offset=at, length=BLOCK).error(
                CorruptShardError,
                "is no header of a tar file or a damaged one, must be the one that was "
                "indexed; restore the shard, or, if it was written anew, make its index anew "
                "with --repair-index",
                expected=index.ends, found=found,
            )  # fmt: skip
    raise replace(place, offset=index.last, length=BLOCK).error(
        FingerprintMismatch,
        f"has first and last headers of digest {found[:16]}, must be {index.ends[:16]} as when "
        "it was indexed; it is another shard: restore it, or make its index anew with "
        "--repair-index",
        expected=index.ends, found=found,
    )  # fmt: skip
