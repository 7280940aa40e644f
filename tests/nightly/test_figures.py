"""The figures of docs/about/reliability.md are those of its file, and the command makes both."""

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from seqdata_testing.waiting import patient, until
from tests.nightly import figures, oldest, reports, run

ABOUT = {
    "what": "some tests", "began": "2026-01-02 03:04", "commit": "abc1234", "status": 0,
    "versions": {"python": "3.11"}, "machine": "one",
}  # fmt: skip


def report(folder, name, *lines, status=0, file="{}.jsonl"):
    """Write what a part leaves."""
    begun = json.dumps({"$report_type": "SessionStart"})
    text = "".join(f"{line}\n" for of_case in ([begun], *lines) for line in of_case)
    (folder / file.format(name)).write_text(text)
    (folder / f"{name}.json").write_text(json.dumps({**ABOUT, "status": status}))


def case(name, outcome="passed", **facts):
    """Return the lines of a test, as pytest-reportlog writes them."""
    phases = {"setup": "passed", "call": outcome, "teardown": "passed"}
    return [
        json.dumps({
            "$report_type": "TestReport", "nodeid": f"test_it.py::{name}", "when": when,
            "outcome": came, "user_properties": list(facts.items()) if when != "setup" else [],
            "start": 100.0, "stop": 190.0,
        })
        for when, came in phases.items()
    ]  # fmt: skip


def cell(fault, **changes):
    told = {
        "fault": fault, "way": "ranks 2", "bound": 15.0, "names": {"PeerFailedError": 2},
        "slowest": 1.5, "silent": 0, "stuck": 0,
    }  # fmt: skip
    return json.dumps({**told, **changes})


def test_the_page_has_the_figures_of_its_file():
    stored = json.loads(figures.STORED.read_text("utf-8"))
    text = figures.PAGE.read_text("utf-8")
    assert figures.put(text, figures.page(stored)) == text


def test_the_matrix_has_the_figures_of_its_file():
    stored = json.loads(figures.STORED.read_text("utf-8"))
    text = figures.BREAKS.read_text("utf-8")
    assert figures.put(text, figures.matrix(stored, figures.of_forms())) == text


def test_the_matrix_counts_what_came_and_names_what_failed(tmp_path):
    cells = (
        cell("D1", form="tar", policy="mask", way="tar, workers 2", names={"mended": 7}),
        cell("D1", form="arrow", policy="mask", way="arrow", names={"mended": 9}),
        cell("R2", form="arrow", policy="raise", names={"PeerFailedError": 2}, silent=1),
    )
    bad = case("c", "failed", cell=cell("W1", form="tar", policy="raise", way="tar, fork"))
    report(tmp_path, "faults", *(case(f"a{i}", cell=one) for i, one in enumerate(cells)), bad)
    text = figures.matrix(figures.gather(tmp_path))
    assert "20 outcomes of 4 cases, on 2026-01-02 at `abc1234`: 1 unnoticed, " in text
    assert "0 unbounded waits. Failed cases: W1 of tar, fork." in text
    assert "| D1 | mask | 9 continued | 7 continued |" in text
    assert "| R2 | raise | 2 `PeerFailedError` | n/a |" in text
    assert figures.matrix(figures.gather(tmp_path / "empty")) == "These did not run."


def test_cases_are_added_up_by_promise_and_level(tmp_path):
    shown = {"shows": "plans I1 I2"}
    report(
        tmp_path, "properties", case("a", cases=40_000, **shown), case("b", cases=9_999, **shown),
        case("c", "failed", cases=7, shows="processes I2"),
    )  # fmt: skip
    found = figures.gather(tmp_path)
    assert found["promises"] == {
        "I1 plans": {"cases": 49_999, "failed": 0},
        "I2 plans": {"cases": 49_999, "failed": 0},
        "I2 processes": {"cases": 7, "failed": 1},
    }
    text = figures.page(found)
    assert (
        "| I1 | each sequence exactly once, or as the plan's report says | plans, without " in text
    )
    assert "| 50,000 | 49,999 | 0 |" in text
    assert "| worker processes, ranks |  | 7 | 1 |" in text
    assert "*properties*: some tests | 2026-01-02 03:04, `abc1234` | 2 | 1 | 0 | 1.5 min |" in text


@pytest.mark.parametrize(
    "commit", ["abc1234`, 4 again at `def5678", "abc1234, 19 at def", "", None]
)
@pytest.mark.parametrize("name", ["long", "mutants"])
def test_a_commit_that_is_no_hash_is_refused(tmp_path, name, commit):
    report(tmp_path, "long", case("a"))
    (tmp_path / f"{name}.json").write_text(json.dumps({**ABOUT, "commit": commit}))
    text = "`commit` must be the hash of one commit, but is '.*'. Run it again: make test-nightly"
    with pytest.raises(SystemExit, match=text):
        figures.gather(tmp_path)
    counts = {"passed": 1, "failed": 0, "skipped": 0, "seconds": 90}
    stored = {"parts": {"long": {**ABOUT, **counts, "commit": commit}}}
    with pytest.raises(SystemExit, match=text):
        figures.page({**figures.gather(tmp_path / "empty"), **stored})


def test_figures_that_are_not_of_one_run_say_so(tmp_path):
    report(tmp_path, "long", case("a"))
    found = figures.gather(tmp_path)
    assert "Not from a single run" not in figures.page(found)
    by_hand = {**found, "by_hand": ["4 tests passed elsewhere"]}
    assert "Not from a single run: 4 tests passed elsewhere." in figures.page(by_hand)
    mutants = {
        "commit": "def5678+",
        "began": "2026-01-02",
        "planned": 1,
        "verdicts": {"a": "killed"},
    }
    (tmp_path / "mutants.json").write_text(json.dumps(mutants))
    text = figures.page(figures.gather(tmp_path))
    assert "Not from a single run: the parts ran at 2 commits." in text


def test_what_did_not_run_says_so(tmp_path):
    text = figures.page(figures.gather(tmp_path))
    assert "| oldest | did not run |" in text
    assert "| 50,000 | did not run |" in text
    assert "Mutated files: did not run." in text
    assert "Planted bugs: did not run." in text


def test_a_part_that_was_stopped_says_after_how_many_tests(tmp_path):
    begun = case("c")[:2]
    report(tmp_path, "long", case("a"), case("b", "failed"), begun, status=None)
    assert "| 1 (stopped after 2 tests) | 1 | 0 | 1.5 min |" in figures.page(
        figures.gather(tmp_path)
    )


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    report(tmp_path, "long", case("a"), case("b"))
    path = tmp_path / "long.jsonl"
    path.write_text(path.read_text()[:-9])
    assert [one.name for one in reports.cases(path)] == ["test_it.py::a"]


def test_of_a_part_that_went_on_the_last_word_about_a_test_counts(tmp_path):
    unread = {"$report_type": "CollectReport", "nodeid": "test_it.py", "outcome": "failed"}
    first = (case("a"), case("b", "failed"), case("c", "skipped"), [json.dumps(unread)])
    report(tmp_path, "long", *first)
    path = tmp_path / "long.jsonl"
    assert reports.states(path) == {"passed": 1, "failed": 2, "skipped": 1}
    reports.keep(path)
    report(tmp_path, "long", case("b"))
    assert reports.states(path) == {"passed": 2, "failed": 0, "skipped": 1}
    assert reports.runs(path) == [90, 90]  # without what lies between them
    page = figures.page(figures.gather(tmp_path))
    assert "| 2 | 0 | 1 | 3.0 min |" in page
    assert "Not from a single run: *long* was stopped and continued (`--again`)." in page
    reports.forget(path)
    assert reports.cases(path) == []


def test_only_a_run_of_the_same_files_is_gone_on_with(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "FOUND", tmp_path)
    part = run.PARTS[0]
    assert run.stopped(part, "abc1234") is None
    run.write(part, ABOUT)
    assert run.stopped(part, "abc1234") == ABOUT
    assert run.stopped(part, "abc12345") is None
    run.write(part, {**ABOUT, "commit": "abc1234+"})
    assert run.stopped(part, "abc1234+") is None


def test_faults_mutated_files_and_planted_bugs_are_told(tmp_path):
    fuzz = json.dumps({"files": 9, "failures": 0, "kinds": {"arrow": 4, "parquet": 5}})
    tars = json.dumps({"files": 3, "failures": 0, "kinds": {"tar shard": 3}})
    report(
        tmp_path, "long", case("a", cell=cell("R2")),
        case("b", "failed", cell=cell("R2", way="ranks 3", silent=1)),
        case("c", fuzz=fuzz), case("d", fuzz=tars), status=1,
    )  # fmt: skip
    verdicts = {
        "commit": "def5678",
        "began": "2026-01-03 00:00",
        "planned": 3,
        "verdicts": {"a": "killed", "b": "survived"},
    }
    (tmp_path / "mutants.json").write_text(json.dumps(verdicts))
    text = figures.page(figures.gather(tmp_path))
    assert "| R2 | ranks 2 | 2 `PeerFailedError` | 1.50 s | 15 s | passed |" in text
    assert "| R2 | ranks 3 | 2 `PeerFailedError` | 1.50 s | 15 s | FAILED |" in text
    assert "| R2 | 2 | 4 | 1 | 0 | 1.50 s | 1 |" in text
    assert "12 (4 arrow, 5 parquet, 3 tar shard), each gave its data or an error of" in text
    assert "| 1 found (stopped after 2 of 3) | 1 | 0 |" in text
    assert "1 of 2 found by the tests; not found: `b` (survived); 1 were not tried." in text


def test_a_page_without_a_place_for_figures_is_refused():
    with pytest.raises(SystemExit, match="has 0 places for figures, must have one"):
        figures.put("# Nothing", "figures")


def test_every_test_is_in_one_part():
    faults, others = (part for part in run.PARTS if part.select == run.NIGHTLY)
    assert faults.folders == others.without != ()
    chosen = [part.select for part in run.PARTS[1:] if part is not faults]
    for nightly in (False, True):
        for hypothesis in (False, True):
            for shows in (False, True):
                marks = {"nightly": nightly, "hypothesis": hypothesis, "shows": shows}
                assert sum(eval(select, {}, marks) for select in chosen) == 1


def test_runs_beside_busy_loops_are_the_tests_of_every_change():
    assert [part.name for part in run.LOADED] == list(figures.LOADED)
    assert {(part.select, part.folders, part.without) for part in run.LOADED} == {
        ("not nightly", (), ())
    }
    assert len(run.LOADED) == 5


def test_processes_keep_the_processors_busy_as_long_as_a_part_runs():
    before = set(psutil.Process().children())
    with run.busy_loops(2):
        loops = set(psutil.Process().children()) - before
        assert len(loops) == 2
        assert until(lambda: all(loop.cpu_times().user > 0.05 for loop in loops))
    assert not any(loop.is_running() for loop in loops)


def test_what_runs_beside_busy_loops_is_told_and_counts_no_promise_twice(tmp_path):
    report(tmp_path, "loaded-2", case("a", shows="plans I1", cases=5), case("b", "failed"))
    found = figures.gather(tmp_path)
    assert found["promises"] == {}
    text = figures.page(found)
    assert "| *loaded-2*: some tests | 2026-01-02 03:04, `abc1234` | 1 | 1 | 0 |" in text
    assert "| loaded-1 | did not run |" in text


def test_runs_beside_busy_loops_are_put_next_to_the_night_that_is_there(tmp_path):
    report(tmp_path, "long", case("a", shows="plans I1", cases=5))
    report(tmp_path, "loaded-1", case("a"))
    night = figures.gather(tmp_path)
    (tmp_path / "other").mkdir()
    report(tmp_path / "other", "loaded-2", case("a"), case("b"))
    report(tmp_path / "other", "long", case("a", "failed"))
    both = figures.with_loaded(night, figures.gather(tmp_path / "other"))
    assert list(both["parts"]) == ["long", "loaded-2"]
    assert both["parts"]["long"] == night["parts"]["long"]
    assert both["promises"] == night["promises"]


def test_the_oldest_environment_has_the_lower_bounds():
    lines = oldest.constraints()
    assert "lightning==2.6" in lines
    assert "pytorch-lightning==2.6" in lines
    assert "numpy==2.0" in lines
    names = [line.split("==")[0].lower() for line in lines]
    assert len(names) == len(set(names))
    assert "torch==2.13.0" in lines
    assert "pandas" not in names


COUNTED = """
import pytest
from hypothesis import given, settings, strategies as st


@pytest.mark.shows("I1", "I2")
@settings(max_examples=30)
@given(st.integers())
def test_drawn(number):
    assert number == number


@pytest.mark.shows("I3", by="processes")
def test_told(record_property):
    record_property("cases", 12)


@pytest.mark.shows("I4")
@pytest.mark.parametrize("one", [1, 2])
def test_plain(one):
    assert one
"""


def play(folder, *more, **environment):
    """Run pytest with the plugins that a part has."""
    (folder / "conftest.py").write_text((run.ROOT / "tests" / "conftest.py").read_text("utf-8"))
    (folder / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n  shows(*promises, by): what it shows\n"
    )
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("--report-log=long.jsonl", *more),
        ],
        cwd=folder, capture_output=True, text=True, check=False, timeout=patient(),
        env={**os.environ, "PYTHONPATH": str(run.ROOT), **environment},
    )  # fmt: skip


@pytest.mark.slow
def test_cases_are_counted_as_tests_run(tmp_path):
    (tmp_path / "test_it.py").write_text(COUNTED)
    done = play(tmp_path)
    assert done.returncode == 0, done.stdout
    (tmp_path / "long.json").write_text(json.dumps(ABOUT))
    assert figures.gather(tmp_path)["promises"] == {
        "I1 plans": {"cases": 30, "failed": 0},
        "I2 plans": {"cases": 30, "failed": 0},
        "I3 processes": {"cases": 12, "failed": 0},
        "I4 plans": {"cases": 2, "failed": 0},
    }


KILLED = """
import os, signal
from pathlib import Path

import pytest


@pytest.mark.shows("I4")
def test_one():
    pass


def test_one_more():
    if not Path("../killed").exists():
        Path("../killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_what_a_killed_run_has_found_is_kept_and_only_the_rest_is_run_again(tmp_path):
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_it.py").write_text(KILLED.replace("../killed", str(tmp_path / "killed")))
    assert play(folder).returncode == -signal.SIGKILL
    path = folder / "long.jsonl"
    one = reports.Case("test_it.py::test_one", "passed", {"shows": "plans I4", "cases": 1})
    assert reports.cases(path) == [one]
    reports.keep(path)
    (tmp_path / "passed").write_text(f"{one.name}\n")
    done = play(folder, "-p", "tests.nightly.again", LEFT_OUT=str(tmp_path / "passed"))
    assert "1 passed, 1 deselected" in done.stdout
    assert reports.cases(path) == [one, reports.Case("test_it.py::test_one_more", "passed")]
