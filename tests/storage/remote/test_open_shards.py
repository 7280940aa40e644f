"""Shards that are open: the batch's own, the last ones while there is room, the next ones ahead."""

import logging
import threading

import pytest

from seqdata.errors import CorruptShardError
from seqdata.storage.remote.file_cache import CacheFullError
from seqdata.storage.remote.open_shards import OpenShards
from seqdata.storage.remote.transport import ForkSafeThreadPool


class Shard:
    def __init__(self, number):
        self.number = number


class Shards:
    """Ten shards of ten bytes, and what was done with them."""

    def __init__(self, cache_bytes=1000, count=10):
        self.opened, self.downloaded, self.full = [], [], set()
        self.downloading = threading.Event()
        self.downloading.set()
        self.finished = threading.Semaphore(0)
        self.open = OpenShards(
            self.open_shard, self.download, [10] * count, cache_bytes, ForkSafeThreadPool(1), "/d"
        )

    def open_shard(self, number, release):
        if number in self.full:
            raise CacheFullError(10, 0)
        self.opened.append(number)
        self.release = release
        return Shard(number)

    def download(self, number):
        assert self.downloading.wait(60)
        self.downloaded.append(number)
        self.finished.release()
        if number in self.full:
            raise CacheFullError(10, 0) if number % 2 else CorruptShardError.at("damaged")

    def get(self, *numbers):
        return [shard.number for shard in self.open.get(numbers)]

    @property
    def held(self):
        return [number for number in range(10) if self.open.peek(number) is not None]


def test_shards_come_by_number_and_stay_open():
    shards = Shards()
    assert shards.get(3, 1) == [1, 3]
    assert shards.get(1, 2) == [1, 2]
    assert sorted(shards.opened) == [1, 2, 3]
    assert shards.held == [1, 2, 3]
    assert shards.open.get([]) == []


def test_all_of_them_are_there_once_each_was_opened():
    shards = Shards(count=3)
    shards.get(2, 0)
    assert shards.open.get_all() is None
    shards.get(1)
    assert [shard.number for shard in shards.open.get_all()] == [0, 1, 2]


def test_those_that_were_used_least_recently_are_closed():
    shards = Shards(cache_bytes=99)  # of 100 bytes of data: an eighth, one shard
    shards.get(0, 1, 2)
    assert shards.held == [0, 1, 2]  # the batch's own, however many
    shards.get(3)
    assert shards.held == [3]
    shards.get(3, 4)
    assert shards.held == [3, 4]  # in use


def test_a_shard_that_was_used_again_is_not_the_next_one_to_be_closed():
    shards = Shards(cache_bytes=240, count=50)  # three shards, an eighth of the cache
    for number in (0, 1, 2, 0, 3):
        shards.get(number)
    assert shards.held == [0, 2, 3]
    shards.get(2)
    shards.get(4)
    assert shards.held == [2, 3, 4]
    assert shards.opened == [0, 1, 2, 3, 4]


def test_where_the_cache_is_full_all_that_is_not_in_use_is_released():
    shards = Shards()
    shards.get(0, 1)
    shards.get(1, 2)
    shards.release()
    assert shards.held == [1, 2]


def test_those_without_room_are_left_out_and_this_is_said_once(caplog):
    shards = Shards()
    shards.full = {1}
    with caplog.at_level(logging.WARNING, "seqdata.remote"):
        assert shards.get(0, 1) == [0]
        assert shards.get(0, 1) == [0]
    (record,) = caplog.records
    assert (
        "/d: a batch needs 2 shards, but the cache of 1000 bytes has room for 1" in record.message
    )


def test_the_next_ones_are_downloaded_ahead_a_few_at_a_time():
    shards = Shards()
    shards.downloading.clear()
    assert shards.open.prefetch([0, 1])
    assert not shards.open.prefetch([2, 3, 4])  # four are under way
    assert not shards.open.prefetch([4])
    shards.downloading.set()
    for _ in range(4):
        assert shards.finished.acquire(timeout=60)
    assert sorted(shards.downloaded) == [0, 1, 2, 3]


def test_what_is_open_is_not_downloaded_again():
    shards = Shards()
    shards.get(0, 1)
    assert shards.open.prefetch([0, 1])
    assert shards.downloaded == []
    assert shards.open.prefetch([0, 2])  # those that are open hide none after them
    assert shards.finished.acquire(timeout=60)
    assert shards.downloaded == [2]


@pytest.mark.parametrize("number", [2, 3])
def test_an_error_of_a_download_ahead_is_left_to_the_read(number):
    shards = Shards()
    shards.full = {number}
    assert shards.open.prefetch([number])
    assert shards.finished.acquire(timeout=60)
    shards.full = set()
    assert shards.get(number) == [number]
