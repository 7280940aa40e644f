"""The same call on a Dask cluster: two worker processes on this machine, one of which may die."""

import functools
import multiprocessing
import os
import signal
import warnings
from multiprocessing import forkserver

import numpy as np
import pytest

from seqdata import DecodeError, IncompleteDatasetError, WorkerDiedError, open_store, write_store
from seqdata_testing.waiting import until, within
from tests.loading.workers.parts import lives

distributed = pytest.importorskip("distributed")

FORMATS = {"arrow": 800, "webdataset": 40_000}  # with bytes of a shard


@pytest.fixture(scope="module")
def cluster():
    """Two worker processes; a task is given up when two of them have died of it."""
    import dask

    with (
        warnings.catch_warnings(),
        dask.config.set(
            {
                "distributed.scheduler.allowed-failures": 1,
                "distributed.worker.multiprocessing-method": "forkserver",
                "distributed.comm.timeouts.connect": "60s",
            }
        ),
    ):
        warnings.simplefilter("ignore")
        with (
            distributed.LocalCluster(
                n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None,
                memory_limit=0, silence_logs="CRITICAL",
            ) as made,
            distributed.Client(made) as client,
        ):  # fmt: skip
            yield client
    multiprocessing.set_forkserver_preload(["__main__"])  # as it was before Dask has set it
    server = forkserver._forkserver._forkserver_pid
    os.kill(server, signal.SIGKILL)  # the next one is started with that
    assert until(lambda: not lives(server))


def part(number, count=40):
    drawn = np.random.default_rng(number)
    for i in range(count):
        x = drawn.integers(0, 9, drawn.integers(0, 30), dtype=np.int32)
        yield {"id": f"{number}-{i}", "x": x, "y": i / 2}


def parts(many=4, break_in=lambda number: None):
    """Functions that are sent by value: the workers know nothing of this file."""

    def give(number):
        drawn = np.random.default_rng(number)
        for i in range(40):
            if i == 30:
                break_in(number)
            x = drawn.integers(0, 9, drawn.integers(0, 30), dtype=np.int32)
            yield {"id": f"{number}-{i}", "x": x, "y": i / 2}

    return [functools.partial(give, number) for number in range(many)]


def content(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.slow
@pytest.mark.parametrize(("format", "shard_bytes"), FORMATS.items())
def test_shards_are_written_by_a_cluster_byte_for_byte(cluster, tmp_path, format, shard_bytes):
    told = []
    for name, executor in (("here", None), ("there", cluster.get_executor())):
        write_store(
            tmp_path / name, part(0, 60), format=format, shard_bytes=shard_bytes, executor=executor,
            progress=lambda *both: told.append(both),
        )  # fmt: skip
    assert content(tmp_path / "there") == content(tmp_path / "here")
    assert len(open_store(tmp_path / "there").shards) > 2
    assert told[-1] == told[len(told) // 2 - 1]


@pytest.mark.slow
def test_parts_are_drawn_by_a_cluster_byte_for_byte(cluster, tmp_path):
    write_store(tmp_path / "here", parts(), shard_bytes=1_000)
    told = []
    write_store(
        tmp_path / "there", parts(), shard_bytes=1_000, executor=cluster.get_executor(),
        progress=lambda *both: told.append(both[0]),
    )  # fmt: skip
    assert content(tmp_path / "there") == content(tmp_path / "here")
    assert told == [40, 80, 120, 160, 160]


@pytest.mark.slow
def test_a_part_whose_worker_dies_is_run_again_by_the_cluster(cluster, tmp_path):
    write_store(tmp_path / "here", parts(), shard_bytes=1_000)
    flag = tmp_path / "died"

    def die_once(number):
        if number == 2 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    given = parts(break_in=die_once)
    write_store(tmp_path / "there", given, shard_bytes=1_000, executor=cluster.get_executor())
    assert flag.exists()
    assert content(tmp_path / "there") == content(tmp_path / "here")


@pytest.mark.slow
def test_a_part_that_kills_every_worker_is_an_error_and_the_same_call_goes_on(cluster, tmp_path):
    write_store(tmp_path / "here", parts(), shard_bytes=1_000)

    def die(number):
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    text = r"`executor`: broke while shards were written \(.*write_part.*\). Look for"
    with within(40), pytest.raises(WorkerDiedError, match=text) as caught:
        write_store(
            tmp_path / "there", parts(break_in=die), shard_bytes=1_000,
            executor=cluster.get_executor(),
        )  # fmt: skip
    assert "are kept: the same call continues after them" in caught.value.__notes__[-1]
    with pytest.raises(
        IncompleteDatasetError, match=r"finished shards .* are there\. Repeat the same call"
    ):
        open_store(tmp_path / "there")
    kept = {path.name for path in (tmp_path / "there").rglob("*.facts")}
    assert kept
    write_store(tmp_path / "there", parts(), shard_bytes=1_000, executor=cluster.get_executor())
    assert content(tmp_path / "there") == content(tmp_path / "here")


@pytest.mark.slow
def test_an_error_of_a_part_comes_back_with_its_fields(cluster, tmp_path):
    given = [*parts(1), lambda: [{"id": "a", "x": [1], "y": 0.5}, {"id": "b", "x": [1.5], "y": 1}]]
    with pytest.raises(
        DecodeError, match=r"^part 1, sequence 1 \('b'\), field 'x': must have dtype"
    ) as e:
        write_store(tmp_path / "store", given, executor=cluster.get_executor())
    assert e.value.details == {"part": 1, "sequence": 1, "field": "x"}
