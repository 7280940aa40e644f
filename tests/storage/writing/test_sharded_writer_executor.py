"""Shards on executors: the same bytes wherever and in whatever order they are written."""

import functools
import multiprocessing
import os
import signal
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from seqdata.errors import ConfigError, DecodeError, WorkerDiedError
from seqdata.storage.arrow.store import open_arrow
from seqdata.storage.arrow.write import write_arrow
from seqdata_testing.waiting import patient, until, within

SPAWN = multiprocessing.get_context("spawn")


def rows(count=40, name="s"):
    for i in range(count):
        yield {"id": f"{name}{i}", "x": np.full(i % 7, i, dtype=np.int32), "y": i}


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def due(tmp_path_factory):
    folder = tmp_path_factory.mktemp("due") / "store"
    write_arrow(folder, rows(), shard_bytes=200)
    return content(folder)


class Backwards(Executor):
    """Runs what it was given in the opposite order: so many together, or what is waited for."""

    def __init__(self, together=2):
        self.together = together
        self.waiting = []
        self.most = 0
        self.lock = threading.Lock()

    def submit(self, function, *arguments):
        future = Future()
        with self.lock:
            self.waiting.append((future, function, arguments))
            self.most = max(self.most, len(self.waiting))
            if len(self.waiting) == 1:
                threading.Thread(target=self.run).start()
        return future

    def due(self):
        with self.lock:
            waited_for = any(future._waiters for future, _, _ in self.waiting)
            return waited_for or len(self.waiting) >= self.together

    def run(self):
        until(self.due)
        with self.lock:
            while self.waiting:
                future, function, arguments = self.waiting.pop()
                future.set_result(function(*arguments))


@pytest.mark.parametrize("make", [lambda: ThreadPoolExecutor(3), Backwards])
def test_the_bytes_do_not_depend_on_the_executor(tmp_path, due, make):
    with make() as pool:
        write_arrow(tmp_path / "store", rows(), shard_bytes=200, executor=pool)
    assert content(tmp_path / "store") == due


def test_the_bytes_do_not_depend_on_processes(tmp_path, due):
    with ProcessPoolExecutor(1, SPAWN) as pool:
        write_arrow(tmp_path / "store", rows(), shard_bytes=200, executor=pool)
    assert content(tmp_path / "store") == due


@pytest.mark.parametrize(("shard_bytes", "most"), [(400 << 20, 2), (256 << 20, 4), (1, 64)])
def test_so_many_shards_are_under_way_at_a_time(tmp_path, monkeypatch, shard_bytes, most):
    """Shards that would take shard_bytes are made small, so that the test needs no memory."""
    from seqdata.storage.arrow import write

    monkeypatch.setattr(write, "pack_sequences", lambda *given: one(given[2]))
    small = write.pack_sequence
    monkeypatch.setattr(write, "pack_sequence", lambda *given: small(*given) * shard_bytes)
    pool = Backwards(most + 1)
    write_arrow(tmp_path / "store", rows(most + 3), shard_bytes=shard_bytes, executor=pool)
    assert pool.most == most


def one(rows):
    """What `pack_sequences` gives of a row that is not plain."""
    row = next(rows, None)
    return 0, 0, None if row is None else (row,)


@pytest.mark.parametrize("executor", [4, "threads", ThreadPoolExecutor])
def test_what_is_no_executor_is_an_error(tmp_path, executor):
    with pytest.raises(
        ConfigError, match=r"`executor` must be a concurrent.futures.Executor, but is"
    ):
        write_arrow(tmp_path / "store", rows(), executor=executor)


# ---- parts


def numbered(part):
    return rows(10 * part, f"{part}-")


PARTS = [functools.partial(numbered, part) for part in (3, 0, 1, 2)]


def test_parts_have_shards_of_their_own_in_their_order(tmp_path):
    write_arrow(tmp_path / "here", PARTS, shard_bytes=300)
    store = open_arrow(tmp_path / "here")
    assert store.keys(range(60)) == [f"{part}-{i}" for part in (3, 1, 2) for i in range(10 * part)]
    assert len(store.shards) > 6
    assert list(store.shards) == [f"part-{i:05d}.arrow" for i in range(len(store.shards))]
    for name, make in (("threads", ThreadPoolExecutor), ("back", lambda _: Backwards())):
        with make(2) as pool:
            write_arrow(tmp_path / name, PARTS, shard_bytes=300, executor=pool)
        assert content(tmp_path / name) == content(tmp_path / "here")


def test_a_part_may_give_a_table_or_plain_arrays(tmp_path):
    table = pa.table({"x": pa.array([[1, 2], [3]])})
    parts = [lambda: table, lambda: iter([table]), lambda: [np.array([4]), [5]]]
    assert write_arrow(tmp_path / "store", parts).lengths.tolist() == [2, 1, 2, 1, 1, 1]


def test_parts_that_give_nothing_at_all_are_an_error(tmp_path):
    with pytest.raises(
        ConfigError, match="`sequences` must have a part with at least one sequence"
    ):
        write_arrow(tmp_path / "store", [list, list])
    assert not (tmp_path / "store").exists()


def test_an_error_names_the_part(tmp_path):
    parts = [lambda: rows(3), lambda: [*rows(3, "b"), {"id": "c", "x": [1.5], "y": 0}]]
    text = r"^part 1, sequence 3 \('c'\), field 'x': must have dtype int32 .*, but has float64"
    with ThreadPoolExecutor(2) as pool:
        for executor in (None, pool):
            with pytest.raises(DecodeError, match=text) as caught:
                write_arrow(tmp_path / "store", parts, executor=executor)
            assert caught.value.details == {"part": 1, "sequence": 3, "field": "x"}


def test_parts_with_other_fields_are_an_error(tmp_path):
    text = (
        r"part 2: must have the fields x int64 \[\] time, as part 0, but has x float64 \[\] time. "
        "Give all parts the same"
    )
    with pytest.raises(DecodeError, match=text):
        write_arrow(tmp_path / "store", [lambda: [[1]], list, lambda: [[1.5]]])


def test_one_id_in_two_parts_is_an_error(tmp_path):
    with pytest.raises(DecodeError, match="sequence 3: the id must be unique, but 's0' is also"):
        write_arrow(tmp_path / "store", [lambda: rows(3), lambda: rows(1)])


def test_a_finished_part_is_not_run_again_but_for_its_first_sequence(tmp_path):
    drawn = []

    def part(number, broken):
        for row in rows(20, f"{number}-"):
            drawn.append(row["id"])
            yield row
        if broken:
            raise OSError("source is gone")

    with pytest.raises(OSError, match="source is gone") as caught:
        write_arrow(
            tmp_path, [functools.partial(part, i, i == 2) for i in range(4)], shard_bytes=300
        )
    assert "(56 sequences) are kept" in caught.value.__notes__[0]
    drawn.clear()
    told = []
    write_arrow(
        tmp_path, [functools.partial(part, i, False) for i in range(4)], shard_bytes=300,
        progress=lambda *both: told.append(both[0]),
    )  # fmt: skip
    due = [f"{part}-{i}" for part in range(4) for i in range(20)]
    assert drawn == ["0-0", "1-0", *due[40:]]
    assert open_arrow(tmp_path).keys(range(80)) == due
    assert told == [20, 40, 60, 80, 80]


def test_a_finished_part_that_begins_otherwise_is_an_error(tmp_path):
    def fails():
        raise OSError("source is gone")

    with pytest.raises(OSError, match="source is gone"):
        write_arrow(tmp_path, [lambda: rows(3, "a"), fails], shard_bytes=1)
    text = "part 0, sequence 0: must be the one that was written before the interruption"
    with pytest.raises(DecodeError, match=text):
        write_arrow(tmp_path, [lambda: rows(3, "b"), lambda: rows(3, "c")], shard_bytes=1)


class Silent(Executor):
    """Fails at the first function, and never tells that others, which it cancels, have ended."""

    def __init__(self):
        self.given = []

    def submit(self, function, *arguments):
        self.given.append(Future())
        if len(self.given) == 3:
            self.given[0].set_exception(OSError("source is gone"))
        return self.given[-1]


def test_parts_that_were_cancelled_are_not_waited_for(tmp_path):
    executor = Silent()
    with within(20), pytest.raises(OSError, match="source is gone"):
        write_arrow(tmp_path / "store", PARTS, executor=executor)
    assert [future.cancelled() for future in executor.given] == [False, True, True, True]


def dies():
    yield from rows(5)
    os.kill(os.getpid(), signal.SIGKILL)


def test_an_executor_that_breaks_is_an_error_that_says_what_is_kept(tmp_path):
    parts = [dies]
    text = "`executor`: broke while shards were written .*. Look for what"
    with (
        ProcessPoolExecutor(1, SPAWN) as pool,
        pytest.raises(WorkerDiedError, match=text) as caught,
    ):
        write_arrow(tmp_path, parts, shard_bytes=100, executor=pool)
    assert "sequences) are kept" in caught.value.__notes__[0]
    with pytest.raises(WorkerDiedError, match="`executor`: broke while shards were written"):
        write_arrow(tmp_path, rows(), executor=pool_that_broke(), resume=False)


def pool_that_broke():
    pool = ProcessPoolExecutor(1, SPAWN)
    pool.submit(os._exit, 1).exception(timeout=patient())
    return pool
