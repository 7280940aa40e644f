"""The kit itself: what it does to files and processes, and that it notices what it should."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np
import pytest

from seqdata import open_store
from seqdata.errors import CorruptShardError, DataError
from seqdata_testing.faults import damage, leftovers, limits, try_damage
from seqdata_testing.faults.cases_damage import OWN_SPECS
from seqdata_testing.faults.children import run_in_child
from seqdata_testing.faults.fault_case import FaultCase
from seqdata_testing.faults.matrix import Result, run_case, summary
from seqdata_testing.faults.on_error import play_on_error
from seqdata_testing.faults.outcome import Expectation, Outcome, complaints, of_error
from seqdata_testing.faults.ranks import Ranks, mark_differing, play_ranks
from seqdata_testing.faults.reading import play_through, read_through
from seqdata_testing.faults.targets import OWN
from seqdata_testing.faults.try_damage import ReadMode
from seqdata_testing.waiting import until


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 40)
    return path


def test_a_bit_flips_and_flips_back(file):
    before = file.read_bytes()
    damage.flip_bit(file, 8 * 5000 + 3)
    after = file.read_bytes()
    assert [i for i in range(len(before)) if before[i] != after[i]] == [5000]
    assert before[5000] ^ after[5000] == 8
    damage.flip_bit(file, 8 * 5000 + 3)
    assert file.read_bytes() == before


def test_files_are_cut_emptied_zeroed_swapped_and_removed(file, tmp_path):
    before = file.read_bytes()
    damage.zero_page(file, 2)
    assert file.read_bytes() == before[:8192] + bytes(2048)
    damage.cut(file, 100)
    assert file.read_bytes() == before[:100]
    damage.put_back(tmp_path / "other", b"old")
    damage.swap(file, tmp_path / "other")
    assert (file.read_bytes(), len((tmp_path / "other").read_bytes())) == (b"old", 100)
    damage.empty(file)
    assert file.read_bytes() == b""
    damage.remove(file)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other"]


def without_checksums(spec):
    """A case that must fail: nothing looks at values."""
    tries = partial(try_damage.try_damages, OWN, ReadMode(verify="off"), spec.harms, 20, spec.part)
    return FaultCase(fault="D1", way="off", tries=tries, must=Expectation(kinds=spec.kinds))


def test_wrong_values_are_noticed_and_counted_as_silent():
    result = run_case(without_checksums(OWN_SPECS[0]))
    assert not result.ok
    assert result.silent == result.names["wrong"] > 10
    assert "is wrong (field 'x' of sequence" in result.complaints[0]
    assert summary([result]).endswith(
        f"20 outcomes, {result.silent} silent, 0 unbounded waits; 1 cases failed, 0 not run"
    )


def saw(*counts):
    """Outcomes without harm, each with so many retries."""
    return [Outcome(what="whole", happened={"retry": count}) for count in counts]


def cannot():
    return [Outcome(what="n/a", text="mount: not permitted")]


def harmed_without_retry():
    return [Outcome(what="wrong", text="field 'x'", happened={"retry": 0})]


def test_a_cell_that_does_not_show_its_fault_was_not_run():
    must = Expectation(kinds=("whole",), happened={"retry": 3})
    case = FaultCase(fault="S1", way="once", tries=partial(saw, 1, 2), must=must)
    assert run_case(case).ok
    result = run_case(replace(case, tries=partial(saw, 1, 1)))
    assert not result.ok
    assert not result.cannot
    assert result.names == {"not run": 2}
    assert result.not_run == "the fault did not happen: 2 x retry, but must be at least 3"
    assert summary([result]).endswith("0 cases failed, 1 not run")


def test_a_cell_that_this_system_cannot_do_was_not_run():
    result = run_case(FaultCase(fault="V2", way="disk", tries=cannot, must=Expectation(kinds=())))
    assert not result.ok
    assert result.cannot
    assert (result.names, result.not_run) == ({"not run": 1}, "mount: not permitted")


def test_what_went_wrong_is_told_also_where_the_fault_does_not_show():
    must = Expectation(kinds=("whole",), happened={"retry": 1})
    result = run_case(FaultCase(fault="S1", way="once", tries=harmed_without_retry, must=must))
    assert result.names == {"wrong": 1}
    assert result.complaints


class Goes:
    """A loader that gives what it is told to, and tells so many errors."""

    def __init__(self, store, policy, keep=lambda errors: errors):
        self.inner = try_damage.loader_of(lambda: store, 0, policy)
        self.keep = keep

    def __len__(self):
        return len(self.inner)

    def __iter__(self):
        return iter(self.inner)

    @property
    def errors(self):
        return self.keep(self.inner.errors)

    def shutdown(self):
        self.inner.shutdown()


@pytest.fixture
def bad(tmp_path):
    """A store with one bad sequence."""
    given = OWN.dataset()
    OWN.write(tmp_path / "data", given)
    name, position, size = OWN.values(tmp_path / "data")[0]
    damage.flip_bit(tmp_path / "data" / name, 8 * (position + size // 2))
    return open_store(tmp_path / "data"), given


@pytest.mark.parametrize("policy", ["mask", "replace"])
def test_a_loader_that_goes_on_is_mended(bad, policy):
    store, given = bad
    found = play_on_error(lambda: Goes(store, policy), given)
    assert (found.what, found.delivered) == ("mended", found.planned)
    assert found.text.startswith("1 sequences; the first: ")
    assert "Verify: seqdata verify" in found.text
    assert found.details["file"] == "part-00000.arrow"
    number = found.details["sequence"]
    for at, what in ((number, "mended"), (number + 1, "wrong")):  # a bad row is not looked at
        others = [{**one, "y": one["y"] + (i == at)} for i, one in enumerate(given)]
        assert play_on_error(lambda: Goes(store, policy), others).what == what


def test_a_masked_row_that_nobody_tells_is_noticed(bad):
    store, given = bad
    found = play_on_error(lambda: Goes(store, "mask", lambda _: []), given)
    assert found.what == "wrong"
    assert "are masked untold" in found.text


def test_a_loader_that_goes_on_with_fewer_rows_is_noticed(bad):
    store, given = bad
    found = play_on_error(lambda: Goes(store, "mask"), [*given, given[0]])
    assert (found.what, found.text) == ("short", "79 of 80 rows")
    none = play_on_error(lambda: Goes(store, "raise"), given)
    assert none.name == "CorruptSampleError"


class Short:
    """A store that has lost its last sequences."""

    def __init__(self, store, count):
        self._store = store
        self._count = count
        self.lengths, self.fields = store.lengths[:count], store.fields
        self.read, self.keys = store.read, store.keys

    def __len__(self):
        return self._count


def test_an_early_end_is_noticed(tmp_path):
    given = OWN.dataset()
    OWN.write(tmp_path / "data", given)
    store = open_store(tmp_path / "data")
    assert read_through(lambda: store, given).what == "whole"
    assert read_through(lambda: Short(store, 48), given).what == "short"


class EndsEarly:
    """A loader that stops in silence."""

    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches) + 1

    def __iter__(self):
        return iter(self.batches)

    def shutdown(self):
        pass


def test_an_epoch_that_ends_early_is_noticed():
    outcome = play_through(lambda: EndsEarly([]), [])
    assert (outcome.what, outcome.delivered, outcome.planned) == ("short", 0, 1)


def dies():
    os.kill(os.getpid(), signal.SIGBUS)


def hangs():
    time.sleep(600)


def breaks():
    raise ValueError("of the test itself")


def leaves_a_process():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    return [Outcome(what="whole")]


def leaves_a_file():
    os.close(tempfile.mkstemp()[0])
    return [Outcome(what="whole")]


def test_a_process_that_ends_hangs_or_breaks_is_an_outcome():
    assert [one.name for one in run_in_child(dies, bound=30)] == ["died"]
    (stuck,) = run_in_child(hangs, bound=0.5)
    assert (stuck.what, stuck.left) == ("stuck", ())
    (broken,) = run_in_child(breaks, bound=30)
    assert broken.what == "broken"
    assert "ValueError: of the test itself" in broken.text


def alive(pid):
    """A process that has ended, or that nobody has waited for yet, is gone."""
    try:
        return ("alive",) if "State:\tZ" not in Path(f"/proc/{pid}/status").read_text() else ()
    except OSError:
        return ()


def test_what_is_left_behind_is_found_and_processes_are_ended():
    (process,) = run_in_child(leaves_a_process, bound=30, grace=0.2)
    (left,) = process.left
    assert left.startswith("process ")
    pid = int(left.split()[1])
    assert until(lambda: not alive(pid))
    (file,) = run_in_child(leaves_a_file, bound=30, grace=0.2)
    assert len(file.left) == 1


def test_shared_memory_is_told_from_data_of_its_file_system():
    with tempfile.TemporaryDirectory(dir=leftovers.SHARED) as folder:
        data = np.memmap(Path(folder, "data"), dtype="u1", mode="w+", shape=4096)
        named = SharedMemory(create=True, size=4096)
        assert str(leftovers.SHARED / named.name) in leftovers.list_shared_memory(os.getsid(0))
        assert str(data.filename) not in leftovers.list_shared_memory(os.getsid(0))
        named.close()
        named.unlink()


def beside(rank):
    if rank == 1:
        os._exit(3)
    if rank == 2:
        time.sleep(600)
    return Outcome(what="whole", delivered=7)


def plays_ranks():
    return play_ranks(beside, Ranks(target=OWN, world=3, bound=2.0))


def test_ranks_that_answer_end_or_hang_are_outcomes():
    answers, ends, hangs = run_in_child(plays_ranks, bound=60)
    assert (answers.what, answers.delivered) == ("whole", 7)
    assert (ends.what, ends.text[:8]) == ("died", "status 3")
    assert (hangs.what, hangs.left) == ("stuck", ())


def test_a_rank_that_is_told_another_error_is_noticed():
    struck, same = (of_error(DataError.at("bad", rank=1), seconds=1.0) for _ in range(2))
    other = of_error(DataError.at("bad", rank=0), seconds=1.0)
    found = mark_differing([other, struck, same], struck=1)
    assert found[1:] == [struck, same]
    assert found[0].what == "broken"
    assert found[0].text.startswith("differs from what rank 1 raises, DataError with {'rank': 1}: ")


ERROR = of_error(DataError.at("bad", shard=1, rss=7), seconds=1.0, delivered=3)


@pytest.mark.parametrize(
    ("must", "text"),
    [
        (Expectation(kinds=("CorruptShardError",)), "is DataError (bad"),
        (Expectation(kinds=("DataError",), details=("file",)), "DataError lacks file: bad"),
        (Expectation(kinds=("DataError",), values={"shard": 2}), "DataError lacks shard=2"),
        (Expectation(kinds=("DataError",), least={"rss": 8}), "lacks rss of at least 8"),
        (Expectation(kinds=("DataError",), texts=("good",)), "DataError lacks 'good'"),
        (
            Expectation(kinds=("DataError",), seconds=0.0),
            "came after 1.0 s, but must come within 0.0 s",
        ),
        (
            Expectation(kinds=("DataError",), delivered=2),
            "came after 3 batches, but must come after 2",
        ),
    ],
)
def test_an_outcome_is_held_against_all_that_is_expected(must, text):
    (found,) = complaints(ERROR, must)
    assert text in found


def test_an_outcome_that_is_as_it_must_be_has_no_complaint():
    must = Expectation(
        kinds=("SeqDataError",), details=("shard",), values={"shard": 1}, least={"rss": 7},
        texts=("bad",), delivered=3,
    )  # fmt: skip
    assert not complaints(ERROR, must)
    assert complaints(replace(ERROR, left=("process 7",)), must) == ("left behind: process 7",)


def test_errors_that_do_not_name_the_sequence_are_counted():
    found = [of_error(CorruptShardError("bad"), seconds=0.0)]
    case = FaultCase(
        fault="D1", way="", tries=lambda: found, must=Expectation(kinds=("DataError",)), named=0.95
    )
    from seqdata_testing.faults.matrix import _complaints

    assert _complaints(case, found) == ["0 of 1 errors name the sequence, but 95% must"]


def test_a_result_without_outcomes_is_one_that_cannot_apply():
    case = FaultCase(fault="D1", way="tar", reason="as a test")
    assert run_case(case) == Result(case=case, names={})


def test_limits_are_given_back(tmp_path):
    undo = limits.few_descriptors(0)
    with pytest.raises(OSError, match="Too many open files"):
        (tmp_path / "more").write_bytes(b"")
    undo()
    undo = limits.small_files(10)
    with pytest.raises(OSError, match="File too large"):
        (tmp_path / "more").write_bytes(bytes(11))
    undo()
    undo = limits.little_memory(1 << 20)
    with pytest.raises(MemoryError):
        np.zeros(1 << 24)
    undo()
    assert np.ones(1 << 24).sum() == 1 << 24
