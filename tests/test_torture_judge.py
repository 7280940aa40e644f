"""The judge of benchmarks/torture.py gives everybody the same measure, and knows what came."""

import importlib
import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
TRUTH = {f"s{number}": f"{number:08x}" for number in range(10)}


@pytest.fixture
def room(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("torture_set.judge")


def epoch(*numbers):
    rows = [(f"s{number}", TRUTH[f"s{number}"]) for number in numbers]
    return [rows[first : first + 3] for first in range(0, len(rows), 3)]


@pytest.mark.parametrize(
    ("kind", "seen"),
    [
        ("RIGHT", {"batches": epoch(*range(9, -1, -1)), "ended": True}),
        ("SHORT", {"batches": epoch(*range(9)), "ended": True}),
        ("TWICE", {"batches": epoch(*range(10), 4), "ended": True}),
        ("SHORT", {"batches": epoch(*range(9), 4), "ended": True}),
        ("WRONG", {"batches": [[("s1", "another")]], "ended": True}),
        ("WRONG", {"batches": [[("nobody", TRUTH["s1"])]], "ended": True}),
        ("WRONG", {"batches": [[("s1", "another")]], "error": "ValueError: part-3 is bad"}),
        ("PLACED", {"batches": epoch(1, 2), "error": "OSError: /data/part-3: is cut off"}),
        ("ERROR", {"batches": epoch(1, 2), "error": "AssertionError:"}),
        ("HANG", {"batches": epoch(1, 2), "timed_out": True, "status": -9}),
        ("CRASH", {"batches": epoch(1, 2), "status": -11}),
        ("ERROR", {"status": 3}),
        ("SHORT", {"batches": epoch(*range(10)), "status": 0}),
        ("CODE", {"ran_code": True, "error": "OSError: part-3 is bad"}),
    ],
)
def test_what_came_is_called_what_it_is(room, kind, seen):
    found = room.judge(room.Seen(**seen), TRUTH, ["part-3"])
    assert found.kind == getattr(room, kind)


def test_a_silent_outcome_is_never_called_right(room):
    assert not {room.RIGHT, room.ERROR, room.PLACED} & set(room.SILENT)


@pytest.mark.parametrize(
    ("kind", "shares"),
    [
        ("even, each once", [range(5), range(5, 10)]),
        ("even, 2 lost", [range(4), range(5, 9)]),
        ("even, 1 repeated", [range(6), range(5, 10)]),
        ("even, 1 lost, 1 repeated", [range(5), range(4, 9)]),
        ("UNEVEN", [range(3), range(3, 10)]),
    ],
)
def test_ranks_share_an_epoch_evenly_or_not(room, kind, shares):
    ranks = [room.Seen(batches=epoch(*share), ended=True) for share in shares]
    assert room.judge_ranks(ranks, TRUTH).kind == kind


def test_a_rank_that_fails_is_what_came_of_all(room):
    ranks = [room.Seen(batches=epoch(*range(10)), ended=True), room.Seen(error="OSError: no")]
    assert room.judge_ranks(ranks, TRUTH).kind == room.ERROR


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("right", range(4), range(4, 10)),
        ("1 LOST, 0 REPEATED", range(4), range(5, 10)),
        ("0 LOST, 2 REPEATED", range(4), range(2, 10)),
    ],
)
def test_what_is_lost_or_repeated_over_a_stop_is_counted(room, kind, before, after):
    first, then = (room.Seen(batches=epoch(*part), ended=True) for part in (before, after))
    assert room.judge_resumption(first, then, TRUTH).kind == kind


def test_a_state_that_cannot_be_loaded_is_an_error(room):
    first, then = room.Seen(batches=epoch(1), ended=True), room.Seen(error="AssertionError:")
    assert room.judge_resumption(first, then, TRUTH).kind == room.ERROR


def test_the_order_of_other_worker_counts_is_compared_batch_by_batch(room):
    first, other = (room.Seen(batches=epoch(*part), ended=True) for part in (range(10), range(10)))
    assert room.judge_order(first, [other], TRUTH).kind == "the same batches"
    turned = room.Seen(batches=epoch(*range(9, -1, -1)), ended=True)
    assert room.judge_order(first, [other, turned], TRUTH).kind == "other batches"


def test_a_record_that_ends_in_half_a_line_is_read_as_far_as_it_goes(room, tmp_path):
    lines = [{"batch": [epoch(1, 2)[0]], "seconds": 1.0}, {"batch": [epoch(3)[0]], "seconds": 2.5}]
    text = "\n".join(json.dumps(line) for line in lines)
    (tmp_path / "record").write_text(text + '\n{"batch": [[["s4')
    seen = room.read_record(tmp_path / "record", status=-9, timed_out=False)
    assert seen.ids == ["s1", "s2", "s3"]
    assert seen.seconds == 2.5
    assert not seen.ended
    assert room.judge(seen, TRUTH) == room.Outcome(room.CRASH, "SIGKILL")


def test_the_truth_tells_values_their_type_their_number_and_the_label_apart(room):
    truth = importlib.import_module("torture_set.truth")
    row = next(truth.rows())
    values, label = row["x"], row["y"]
    others = {
        truth.digest(values, label + 1), truth.digest(values[:-1], label),
        truth.digest(values.astype("int64"), label), truth.digest(values ^ 1, label),
        truth.digest(values.reshape(1, -1), label),
    }  # fmt: skip
    assert truth.digest(values, label) == truth.truth(3)[row["id"]]
    assert len(others) == 5
    assert truth.truth(3)[row["id"]] not in others


@pytest.fixture
def page(room):
    return importlib.import_module("torture_set.page")


def found(page, room, **kinds):
    """What came of a library in cases of the real names, one kind a try."""
    names = list(importlib.import_module("torture_set.cases").CASES)
    cases = {names[int(at[1:])]: [room.Outcome(k) for k in some] for at, some in kinds.items()}
    return page.Found({"lib": "1.0"}, cases)


def test_a_page_gets_the_table_between_its_marks_and_keeps_the_rest(page, room, tmp_path):
    path = tmp_path / "page.md"
    path.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    harmed = found(page, room, c0=[room.RIGHT] * 2, c1=[room.WRONG, room.WRONG, room.PLACED])
    page.into_page(path, {"a library": harmed}, "a machine")
    text = path.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| right 2 |" in text
    assert "| **wrong data** 2, error, names the file 1 |" in text
    assert "Versions: lib 1.0." in text
    assert "5 tries" in text


def test_a_page_without_marks_is_left_alone(page, room, tmp_path):
    (tmp_path / "page.md").write_text("no marks")
    with pytest.raises(ValueError, match="has no marks, must have <!-- torture: begin"):
        page.into_page(tmp_path / "page.md", {}, "a machine")
    assert (tmp_path / "page.md").read_text() == "no marks"


def test_what_was_tried_anew_takes_the_place_of_what_was_found_earlier(page, room):
    title = importlib.import_module("torture_set.columns").COLUMNS[2].title
    earlier = {title: found(page, room, c0=[room.WRONG], c1=[room.HANG])}
    assert page.from_json(page.as_json(earlier)) == earlier
    both = page.merge(earlier, {title: found(page, room, c0=[room.RIGHT])})
    assert both == {title: found(page, room, c0=[room.RIGHT], c1=[room.HANG])}
