"""One case per fault at every change, all of them at night: nothing silent, nothing unbounded."""

import json
from pathlib import Path

import pytest

from seqdata_testing.faults.__main__ import main
from seqdata_testing.faults.cases import all_cases, cases_for, find_target
from seqdata_testing.faults.fault_case import FAULTS, POLICIES, FaultCase
from seqdata_testing.faults.matrix import Result, run_case, summary
from seqdata_testing.faults.page import as_grid, as_page, as_reasons
from seqdata_testing.faults.targets import OWN

TAR = "seqdata_webdataset.faults:TAR"
FORMS = ("arrow", "arrow remote", "tar", "tar remote")
PAGE = Path(__file__).parents[2] / "docs" / "about" / "when-something-breaks.md"
TARGETS = [find_target(TAR)]
QUICK = [case for case in all_cases(TARGETS, quick=True) if case.quick]
EVERY = all_cases(TARGETS)
ALL = [case for case in EVERY if case.tries is not None]


# Tried at night only: another case tries the same fault on the same form, or on files of others.
AT_NIGHT = {
    "D3: arrow, verify always, read, others",
    "D5: arrow, verify always, read, others",
    "D2: tar, verify always, read, others",
    "D3: tar, verify always, read, others",
    "D5: tar, verify always, read, others",
    "D7: tar, verify always, read, others",
    "D3: files of others, verify off, read, shards",
    "D5: files of others, verify off, read, shards",
    "S1: arrow remote, cache, workers 0, lasting",
}
NIGHTLY = [case for case in QUICK if f"{case.fault}: {case.way}" in AT_NIGHT]


def name(case):
    return f"{case.fault}: {case.way}".replace(", ", ",").replace(" ", "-")


def as_it_must_be(result):
    """A fault that this system cannot make is skipped; one that did not happen is a failure."""
    assert not result.complaints
    assert result.silent == result.stuck == 0
    if result.cannot:
        pytest.skip(f"not run: {result.not_run}")
    assert not result.not_run


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.nightly if case in NIGHTLY else ()) for case in QUICK],
    ids=name,
)
@pytest.mark.slow
def test_a_fault_ends_as_it_must(case):
    result = run_case(case)
    as_it_must_be(result)
    assert result.names


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", ALL, ids=name)
def test_a_fault_ends_as_it_must_in_every_way(case, record_property):
    result = run_case(case)
    about = {
        "fault": case.fault, "way": case.way, "bound": case.must.seconds,
        "form": case.form, "policy": case.policy,
    }  # fmt: skip
    told = {name: getattr(result, name) for name in ("names", "slowest", "silent", "stuck")}
    record_property("cell", json.dumps({**about, **told}))
    as_it_must_be(result)


def test_every_fault_is_tried_at_every_change():
    assert len(NIGHTLY) == len(AT_NIGHT)
    tried = [case for case in QUICK if case not in NIGHTLY]
    assert {case.fault for case in tried} == set(FAULTS)
    damage = {fault for fault in FAULTS if fault.startswith("D")}
    assert {case.fault for case in tried if case.form == "tar"} == damage
    assert {(case.fault, case.form) for case in NIGHTLY if case.form in FORMS} <= {
        (case.fault, case.form) for case in tried
    }


def test_every_fault_is_tried_on_every_form_under_every_policy_or_says_why_not():
    found = {(case.fault, case.form, case.policy) for case in EVERY}
    due = {(fault, form, policy) for fault in FAULTS for form in FORMS for policy in POLICIES}
    assert len(due) >= 408
    assert not due - found
    assert not {case.form for case in EVERY} - {*FORMS, "files of others"}


def test_each_cell_is_there_once():
    named = [(case.fault, case.way) for case in ALL]
    assert len(named) == len(set(named))


def test_what_cannot_apply_says_why():
    cases = [case for case in EVERY if case.tries is None]
    assert cases
    assert all(case.reason for case in cases)
    line = summary([run_case(case) for case in cases])
    assert line.startswith(f"{len(cases)} cases, {len(cases)} of them cannot apply; 0 outcomes")


def test_a_thousand_flipped_bits_are_tried_with_every_way_to_verify():
    ways = {
        case.way: case.tries.args[-2]
        for case in ALL
        if case.fault == "D1" and "read, shards" in case.way and "remote" not in case.way
    }
    assert ways == {
        f"{form}, verify {verify}, read, shards": 1000
        for form in ("arrow", "tar")
        for verify in ("first_read", "always")
    }


def test_what_crosses_a_network_is_tried_two_hundred_times_per_form():
    flips = {
        case.way: case.tries.args[-2]
        for case in ALL
        if case.fault == "D1" and "remote" in case.form and case.policy == "raise"
    }
    assert flips == {
        f"{form}, {how}, read, shards": 100
        for form in ("arrow remote", "tar remote")
        for how in ("cache", "ranges")
    }
    ways = {case.way for case in ALL if case.fault in ("C2", "C3")}
    for form in ("arrow", "tar"):
        assert f"{form} remote, two processes, 100 times" in ways
        assert f"{form} remote, killed at 200 instants" in ways


def test_the_page_shows_what_is_expected_and_what_is_left_out():
    text = PAGE.read_text("utf-8")
    assert as_page(QUICK) in text
    assert as_reasons(EVERY) in text


def test_the_page_shows_what_came_of_every_fault_on_every_form():
    lines = PAGE.read_text("utf-8").splitlines()
    head = f"| | `on_error` | {' | '.join(FORMS)} |".replace("| |", "|  |")
    assert head in lines
    shown = {tuple(line.split(" | ")[:2]) for line in lines[lines.index(head) + 2 :]}
    due = {(f"| {case.fault}", case.policy) for case in ALL if case.form in FORMS}
    assert not due - shown
    assert not {"WRONG", "SHORT", "STUCK", "BROKEN"} & set(" ".join(lines).split())


def test_a_matrix_counts_by_fault_policy_and_form():
    results = [
        Result(case=FaultCase(fault="D1", way=form, form=form, policy=policy), names=names)
        for form, policy, names in (
            ("arrow", "raise", {"DataError": 3, "whole": 1}),
            ("arrow", "raise", {"DataError": 4}),
            ("arrow", "mask", {"mended": 2}),
            ("tar", "mask", {}),
            ("tar", "replace", {"not run": 1}),
            ("tar", "raise", {"wrong": 1000}),
        )
    ]
    assert as_grid(results).splitlines() == [
        "|  | `on_error` | arrow | tar |",
        "|---|---|---|---|",
        "| D1 | raise | 7 `DataError`, 1 no harm | 1,000 WRONG |",
        "| D1 | replace | n/a | 1 NOT RUN |",
        "| D1 | mask | 2 continued | n/a |",
    ]


def test_the_command_ends_with_1_where_a_fault_did_not_happen(capsys, monkeypatch):
    case = QUICK[0]
    for cannot, ends in ((False, 1), (True, 0)):
        found = Result(case=case, names={"not run": 1}, not_run="why", cannot=cannot)
        monkeypatch.setattr("seqdata_testing.faults.__main__.run", lambda _, one=found: [one])
        assert main(["--quick"]) == ends
        said = capsys.readouterr().out
        assert f"  NOT RUN  {case.way}: why\n" in said
        assert said.rstrip().endswith("0 cases failed, 1 not run")


def test_a_fault_that_there_is_not_is_refused(capsys):
    assert main(["D1", "D77"]) == 2
    told = capsys.readouterr().err
    assert "faults: a fault must be one of D1, D2, D3" in told
    assert told.rstrip().endswith("X2, but is 'D77'. Choose one of these")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nowhere.at_all:TAR", "no target 'nowhere.at_all:TAR' (No module named 'nowhere'"),
        ("seqdata_testing.faults:TAR", "no target 'seqdata_testing.faults:TAR' (module"),
        ("no name", "no target 'no name' (invalid format"),
        (
            "seqdata_testing.faults.fault_case:FAULTS",
            "must be a FaultTarget, but is a dict. Name another",
        ),
    ],
)
def test_a_subject_that_there_is_not_is_refused(capsys, name, text):
    assert main(["--target", name]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.slow
def test_a_plugin_runs_the_whole_matrix_on_its_own_subject(capsys):
    ours = {(case.fault, case.policy) for case in cases_for(OWN)}
    assert ours == {(case.fault, case.policy) for case in cases_for(TARGETS[0])}
    assert main(["D8", "--quick", "--subject", TAR]) == 0
    said = capsys.readouterr().out
    assert "ok    arrow, verify always, read, shards: " in said
    assert "ok    tar, verify always, read, shards: " in said
    assert "2 cases, 0 of them cannot apply" in said
