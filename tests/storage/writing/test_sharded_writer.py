"""A writer of any format: parts or rows, in order, reported, and continued where it stopped."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from seqdata import open_store
from seqdata.errors import ConfigError, DecodeError
from seqdata.storage.arrow.write import ArrowFormat, write_arrow
from seqdata.storage.writing.sharded_writer import (
    ProgressReporter,
    ShardedWriter,
    check_arguments,
    is_part_list,
    write_part,
)
from seqdata.storage.writing.shards import ResumeKey

KEY = ResumeKey(axes=None, shard_bytes=1, key="id", algorithm="crc32", parts=3)


def rows(*lengths):
    return [{"x": np.arange(length)} for length in lengths]


def parts(*many):
    return [lambda lengths=lengths: iter(rows(*lengths)) for lengths in many]


def write(folder, given, executor=None):
    reports = []
    report = ProgressReporter(lambda *both: reports.append(both), None)
    writer = ShardedWriter(folder, KEY, executor, report)
    fields, shards = writer.write_parts(given, ArrowFormat)
    return fields, [(shard.part, shard.number, shard.shard.sequences) for shard in shards], reports


def test_parts_are_in_their_order_whoever_writes_them(tmp_path):
    given, orders = parts((1, 2), (), (3,)), []
    for name, executor in (("here", None), ("there", ThreadPoolExecutor(2))):
        (tmp_path / name).mkdir()
        fields, shards, reports = write(tmp_path / name, given, executor)
        orders.append(shards)
        assert list(fields) == ["x"]
        assert reports[-1][0] == 3
        assert len(reports) == 3
    assert orders[0] == orders[1] == [(0, 0, 1), (0, 1, 1), (2, 0, 1)]


def test_a_finished_part_is_not_written_again(tmp_path):
    drawn = []

    def part():
        for row in rows(1, 2, 3):
            drawn.append(len(row["x"]))
            yield row

    first = write_part(tmp_path, 0, part, KEY, ArrowFormat)
    assert drawn == [1, 2, 3]
    assert write_part(tmp_path, 0, part, KEY, ArrowFormat) == first
    assert drawn == [1, 2, 3, 1]  # its first sequence is compared
    with pytest.raises(DecodeError, match=r"^part 0, sequence 0: must be the one") as caught:
        write_part(tmp_path, 0, lambda: rows(9, 2, 3), KEY, ArrowFormat)
    assert caught.value.details == {"part": 0, "sequence": 0}


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (parts((), ()), ConfigError, "must have a part with at least one sequence, .* no part has"),
        ([*parts((1,)), lambda: [{"y": np.zeros(1)}]], DecodeError,
         r"part 1: must have the fields x int64 \[\] time, as part 0, but has y float64 \[\] time"),
        ([*parts((1,)), lambda: [{"x": object()}]], DecodeError, "^part 1, sequence 0, field 'x'"),
    ],
)  # fmt: skip
def test_parts_must_be_alike(given, error, text, tmp_path):
    with pytest.raises(error, match=text):
        write(tmp_path, given)


@pytest.mark.parametrize("executor", [4, "threads", ThreadPoolExecutor])
def test_an_executor_is_an_object(executor):
    check_arguments(1, None)
    with pytest.raises(ConfigError, match=r"`executor` must be a concurrent.futures.Executor, but"):
        check_arguments(1, executor)


def test_parts_are_a_list_of_functions():
    assert is_part_list(parts((1,), (2,)))
    assert not any(map(is_part_list, [[], rows(1), "text", iter(parts((1,))), [len, 3], None]))


def test_a_bar_begins_again_after_what_was_written_before():
    class Bar:
        def __init__(self):
            self.calls = []

        def restart(self, *values):
            self.calls.append(("restart", *values))

        def update(self, *values):
            self.calls.append(("update", *values))

        def begin(self, *values):
            self.calls.append(("begin", *values))

    bar = Bar()
    report = ProgressReporter(None, bar, before=5)
    report(5, 50)
    report(6, 60, 1)
    assert bar.calls == [("restart", 5, 5), ("update", 5, 50, None), ("update", 6, 60, 1)]
    report.begin("pass 2", 7)
    report(5, 50)
    assert bar.calls[3:] == [("begin", "pass 2", 7), ("update", 5, 50, None)]
    ProgressReporter(None, None).begin("pass 2", 7)


def test_an_error_says_what_is_kept(tmp_path):
    def broken():
        yield from rows(1, 2)
        raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        write_arrow(tmp_path / "store", broken(), shard_bytes=1)
    assert any("1 finished shards" in note or "2 finished shards" in note
               for note in caught.value.__notes__)  # fmt: skip
    store = write_arrow(tmp_path / "store", rows(1, 2, 3), shard_bytes=1)
    assert open_store(tmp_path / "store").fingerprint == store.fingerprint
