"""A writer that is killed leaves nothing that can be read, and the next one ends where it would."""

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqdata.api import open_store
from seqdata.errors import ConfigError, DataError, DecodeError, IncompleteDatasetError
from seqdata.storage.arrow.manifest import MANIFEST
from seqdata.storage.arrow.write import write_arrow
from seqdata_testing.waiting import patient

KILLED = Path(__file__).with_name("killed.py")
REFUSED = (
    "same call or command: it continues after them|is not there|a store's folder, but is empty"
)


class Killer:
    """The program ``killed.py``, which forks writers and kills them."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def let(self, folder, how="thread", **order):
        """Let a writer come to its end."""
        done = self(folder, how, **order)
        assert done["calls"], "it failed"
        return done

    def __call__(self, folder, how="thread", **order):
        self.process.stdin.write(json.dumps({"folder": str(folder), "how": how, **order}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=patient())
        self.process.stdout.close()


@pytest.fixture(scope="module")
def kill():
    killer = Killer()
    yield killer
    killer.close()


def content(folder):
    """Return name -> bytes of all files, and no folder may be left."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def due(tmp_path_factory, kill):
    """Return how a store is written -> its files, where nobody kills the writer."""
    made = {}
    for how in ("thread", "parts", "shuffled"):
        folder = tmp_path_factory.mktemp("due") / how
        kill.let(folder, how)
        made[how] = content(folder)
    return {**made, "threads": made["thread"], "processes": made["thread"]}


def check_goes_on(kill, folder, due, how="thread"):
    """See that a folder is refused, or is whole; then that the next writer ends as it should."""
    if (folder / MANIFEST).exists():
        assert len(open_store(folder))
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        assert files == due
        kill.let(folder, how, overwrite=True)  # and removes what may be left beside it
    else:
        with pytest.raises((ConfigError, DataError), match=REFUSED):
            open_store(folder)
        kill.let(folder, how)
    assert content(folder) == due


COMMIT = 26  # calls, of which the last are those of the commit
INSTANTS = [pytest.param(8, 0), pytest.param(200, 1, marks=pytest.mark.nightly)]


@pytest.mark.parametrize("how", ["thread", "threads", "processes", "parts", "shuffled"])
@pytest.mark.parametrize(("instants", "seed"), INSTANTS)
@pytest.mark.slow
def test_a_writer_that_is_killed_at_any_time_is_gone_on_with(
    tmp_path, kill, due, how, instants, seed
):
    longest = kill.let(tmp_path / "whole", how)["seconds"]
    drawn = random.Random(seed)
    tries = instants if how == "thread" or seed else instants // 4
    died = number = 0
    while number < tries or (not died and number < 5 * tries):
        folder = tmp_path / str(number)
        killed = kill(folder, how, after=drawn.random() * longest)
        died += killed["died"]
        if not killed["died"]:  # it had ended before: the first was slow to begin
            longest = min(longest, killed["seconds"])
        check_goes_on(kill, folder, due[how], how)
        number += 1
    assert died > 0


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGINT"])
def test_a_writer_that_is_asked_to_end_is_gone_on_with(tmp_path, kill, due, signal):
    whole = kill.let(tmp_path / "whole")
    for number in range(3):
        folder = tmp_path / str(number)
        kill(folder, after=(number + 1) / 5 * whole["seconds"], signal=signal)
        check_goes_on(kill, folder, due["thread"])


@pytest.mark.parametrize("how", ["thread", "shuffled"])
@pytest.mark.parametrize("stride", [8, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.slow
def test_a_writer_that_is_killed_before_any_change_of_its_folder_is_gone_on_with(
    tmp_path, kill, due, how, stride
):
    calls = kill.let(tmp_path / "whole", how)["calls"]
    commit = calls - COMMIT
    assert commit > 20
    for call in sorted({*range(0, commit, stride), *range(commit, calls, min(stride, 3))}):
        folder = tmp_path / str(call)
        assert kill(folder, how, call=call)["died"]
        check_goes_on(kill, folder, due[how], how)


@pytest.mark.parametrize("seed", [0, *(pytest.param(i, marks=pytest.mark.nightly) for i in (1, 2))])
@pytest.mark.slow
def test_a_writer_that_is_killed_again_and_again_is_gone_on_with(tmp_path, kill, due, seed):
    drawn = random.Random(seed)
    for number in range(3):
        folder = tmp_path / str(number)
        for _ in range(4):
            kill(folder, call=drawn.randrange(60))
            if (folder / MANIFEST).exists():
                break
        check_goes_on(kill, folder, due["thread"])


@pytest.mark.slow
def test_an_old_store_is_read_until_a_new_one_is_there(tmp_path, kill, due):
    old = write_arrow(tmp_path / "old", [{"x": [i]} for i in range(50)], shard_bytes=100)
    calls = kill.let(tmp_path / "whole")["calls"]
    refused = 0
    for call in range(calls - COMMIT, calls + COMMIT, 7):
        folder = tmp_path / str(call)
        write_arrow(folder, [{"x": [i]} for i in range(50)], shard_bytes=100)
        kill(folder, call=call, overwrite=True)
        try:
            store = open_store(folder)
            new = (folder / MANIFEST).read_bytes() == due["thread"][MANIFEST]
            assert store.fingerprint == old.fingerprint or new
        except IncompleteDatasetError:
            refused += 1
        kill.let(folder, overwrite=True)
        assert content(folder) == due["thread"]
    assert refused > 0


# ---- what goes on, and what does not


def numbers(count, size=9):
    return [{"x": np.full(size, i)} for i in range(count)]


class Stop(Exception):
    pass


def stopping(sequences):
    yield from sequences
    raise Stop


@pytest.fixture
def begun(tmp_path):
    """Return a folder with three whole shards of four sequences of a writing that failed."""
    with pytest.raises(Stop):
        write_arrow(tmp_path / "store", stopping(numbers(14)), shard_bytes=320)
    return tmp_path / "store"


def test_an_error_of_the_users_keeps_whole_shards_and_says_so(begun):
    with pytest.raises(Stop) as caught:
        write_arrow(begun, stopping(numbers(14)), shard_bytes=320)
    assert caught.value.__notes__ == [
        "3 finished shards (12 sequences) are kept: the same call continues after them, or starts "
        "again with `resume=False`"
    ]
    with pytest.raises(
        IncompleteDatasetError, match=r"3 finished shards \(12 sequences\) are there"
    ):
        open_store(begun)


def test_whole_shards_are_not_written_again(begun):
    def changed():
        kept = [0, 3, 4, 7, 8, 11]  # the first and the last of every shard
        yield from ({"x": np.full(9, i if i in kept else -1)} for i in range(12))
        yield from numbers(20)[12:]

    store = write_arrow(begun, changed(), shard_bytes=320)
    assert [int(store.read(np.array([[i, 0, 1]]), ["x"])["x"][0][0]) for i in range(20)] == [
        *range(20)
    ]
    assert [path.name for path in begun.iterdir() if path.is_dir()] == []


def test_what_was_in_place_already_when_a_commit_stopped_is_not_written_again(
    tmp_path, monkeypatch
):
    stop_in_commit(tmp_path / "store", numbers(12), monkeypatch)
    assert (tmp_path / "store" / "part-00001.arrow").exists()
    changed = ({"x": np.full(9, i if i % 4 in (0, 3) else -1)} for i in range(12))
    write_arrow(tmp_path / "store", changed, shard_bytes=320)
    write_arrow(tmp_path / "due", numbers(12), shard_bytes=320)
    assert content(tmp_path / "store") == content(tmp_path / "due")


def stop_in_commit(folder, sequences, monkeypatch):
    """Write a store up to the last of the renames of its commit."""
    rename = os.replace

    def fails(source, target):
        if os.fspath(target) == os.fspath(folder / MANIFEST):
            raise OSError("disk is gone")
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fails)
        with pytest.raises(OSError, match="disk is gone"):
            write_arrow(folder, sequences, shard_bytes=320)


@settings(max_examples=15)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=30),
    shard_bytes=st.sampled_from([1, 100, 300, 5000]),
    stops=st.lists(st.integers(0, 30), max_size=3),
)
@pytest.mark.slow
def test_wherever_writing_stops_it_ends_with_the_same_bytes(sizes, shard_bytes, stops):
    rows = [{"id": str(i), "x": np.arange(size), "y": size} for i, size in enumerate(sizes)]
    with tempfile.TemporaryDirectory() as folder:
        due, again = Path(folder, "due"), Path(folder, "again")
        write_arrow(due, rows, shard_bytes=shard_bytes)
        for stop in stops:
            if stop < len(rows):
                with pytest.raises(Stop):
                    write_arrow(again, stopping(rows[:stop]), shard_bytes=shard_bytes)
        write_arrow(again, rows, shard_bytes=shard_bytes)
        assert content(again) == content(due)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_shards_of_few_sequences_are_gone_on_with(tmp_path, size):
    """All sequences are alike, so that one too many would not be seen by comparing them."""
    rows = [{"x": np.zeros(9)} for _ in range(8)]
    with pytest.raises(Stop):
        write_arrow(tmp_path / "store", stopping(rows[:6]), shard_bytes=80 * size)
    assert len(write_arrow(tmp_path / "store", rows, shard_bytes=80 * size)) == 8
    write_arrow(tmp_path / "due", rows, shard_bytes=80 * size)
    assert content(tmp_path / "store") == content(tmp_path / "due")


def test_nothing_is_kept_where_no_shard_was_whole(tmp_path):
    with pytest.raises(Stop):
        write_arrow(tmp_path / "store", stopping(numbers(3)), shard_bytes=320)
    assert not (tmp_path / "store").exists()


def test_writing_may_begin_anew(begun):
    assert len(write_arrow(begun, numbers(2), resume=False)) == 2
    assert sorted(content(begun)) == ["lengths-time.u32", "part-00000.arrow", "part-00000.crc",
        MANIFEST]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"shard_bytes": 300},
            "`shard_bytes` must be 320, as it was before the interruption, but is 300. Pass",
        ),
        (
            {"key": "name"},
            "`key` must be 'id', as it was before the interruption, but is 'name'. Pass",
        ),
        (
            {"axes": {"x": "t"}},
            "`axes` must be None, as .* the same, or pass `resume=False` to start again",
        ),
    ],
)
def test_other_arguments_do_not_go_on(begun, change, text):
    with pytest.raises(ConfigError, match=text):
        write_arrow(begun, numbers(14), **{"shard_bytes": 320, **change})
    assert len(write_arrow(begun, numbers(14), shard_bytes=320)) == 14


def test_parts_do_not_go_on_with_sequences(begun):
    with pytest.raises(
        ConfigError, match="`parts` must be None, as it was before the interruption, but is"
    ):
        write_arrow(begun, [lambda: numbers(14)], shard_bytes=320)


def other(count, at, value=-1):
    return [{"x": np.full(9, value if i == at else i)} for i in range(count)]


@pytest.mark.parametrize(
    ("sequences", "text"),
    [
        (other(14, 0), "sequence 0: must be the one that was written before the interruption, bu"),
        (other(14, 3), "sequence 3: must be the one that was written before the interruption, bu"),
        (other(14, 4), "sequence 4: must be the one .* Pass the same .* or pass `resume=False` to"),
        (numbers(14, 8), "sequence 0: must be the one that was written"),
        (
            [{"x": np.full(9, i, np.int32)} for i in range(14)],
            "sequence 0: must be the one that was",
        ),
        (
            numbers(3),
            "sequence 3: must be there, as it was written before the interruption, but is",
        ),
        (numbers(2), "sequence 2: must be there, as it"),
        (numbers(4), "sequence 4: must be there, as it"),
        (
            numbers(9),
            "sequence 9: must be there, .* but is missing. Pass the same sequences, or pass `res",
        ),
    ],
)
def test_other_sequences_do_not_go_on(begun, sequences, text):
    with pytest.raises(DecodeError, match=text) as caught:
        write_arrow(begun, sequences, shard_bytes=320)
    assert "sequence" in caught.value.details


def test_sequences_after_what_was_the_last_shard_do_not_go_on(tmp_path, monkeypatch):
    """The last shard is shorter than others; the same sequences end with it."""
    stop_in_commit(tmp_path / "store", numbers(6), monkeypatch)
    text = "sequence 6: must not exist, since the interrupted write ended before it"
    with pytest.raises(DecodeError, match=text):
        write_arrow(tmp_path / "store", numbers(7), shard_bytes=320)
    assert len(write_arrow(tmp_path / "store", numbers(6), shard_bytes=320)) == 6


@pytest.mark.parametrize("ending", ["arrow", "crc", "facts"])
@pytest.mark.parametrize("change", ["flip", "cut", "remove"])
def test_a_shard_that_is_damaged_meanwhile_is_written_again(tmp_path, begun, ending, change):
    path = next(begun.glob(f".seqdata-tmp-*/00000-00001.{ending}"))
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw if change == "flip" else raw[: len(raw) // 2])
    if change == "remove":
        path.unlink()
    write_arrow(begun, numbers(14), shard_bytes=320)
    write_arrow(tmp_path / "due", numbers(14), shard_bytes=320)
    assert content(begun) == content(tmp_path / "due")


def test_ids_are_compared_with_those_of_whole_shards_too(tmp_path):
    rows = [{"id": str(i % 12), "x": np.zeros(9)} for i in range(14)]
    with pytest.raises(Stop):
        write_arrow(tmp_path / "store", stopping(rows[:12]), shard_bytes=320)
    text = (
        "sequence 12: the id must be unique, but '0' is also the id of sequence 0. Make ids unique"
    )
    with pytest.raises(DecodeError, match=text):
        write_arrow(tmp_path / "store", rows, shard_bytes=320)
    assert not (tmp_path / "store").exists(), "shards with ids that are wrong are not kept"
