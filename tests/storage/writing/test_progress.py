"""The line that says how far writing is, and when it will be done."""

import io

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console
from rich.progress import Progress as Rich

from seqdata.storage.arrow.write import write_arrow
from seqdata.storage.writing.progress import ProgressBar, format_progress


@pytest.mark.parametrize(
    ("left", "text"),
    [
        (None, "1,200 sequences, 345.0 kB, 800 per second"),
        (0.0, "1,200 sequences, 345.0 kB, 800 per second, 0:00:00 left"),
        (3675.4, "1,200 sequences, 345.0 kB, 800 per second, 1:01:15 left"),
    ],
)
def test_counts_are_written_for_people(left, text):
    assert format_progress(1200, 345_000, 800.4, left) == text


def test_bytes_are_left_out_where_nothing_is_written():
    assert format_progress(1200, None, 800.4, None) == "1,200 sequences, 800 per second"


@pytest.fixture
def drawn(clock):
    clock.rule("seqdata.storage.writing.progress")
    return Rich(console=Console(file=io.StringIO()))


def seconds_left(drawn):
    hours, minutes, seconds = drawn.tasks[0].fields["text"].split(", ")[-1].split(":")
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds.removesuffix(" left"))


def test_the_time_left_follows_the_rate(drawn, clock):
    bar = ProgressBar(drawn, "writing", 100)
    clock.seconds += 0.2
    bar.update(10, 1000)
    assert seconds_left(drawn) == 2
    bar.update(99, 9900)
    assert seconds_left(drawn) == 0
    assert drawn.tasks[0].completed == 99


def test_the_rate_does_not_count_what_was_written_before(drawn, clock):
    bar = ProgressBar(drawn, "writing", 1000)
    bar.restart(900, 900)
    clock.seconds += 0.2
    bar.update(910, 9100)
    assert seconds_left(drawn) == 2


def test_the_time_left_may_follow_something_else_than_sequences(drawn, clock):
    bar = ProgressBar(drawn, "writing", 4)
    clock.seconds += 6
    bar.update(5000, 1, done=3)
    assert seconds_left(drawn) == 2
    assert drawn.tasks[0].completed == 3


def test_each_step_of_several_begins_at_nothing_and_has_a_total_of_its_own(drawn, clock):
    bar = ProgressBar(drawn, "writing store", None)
    bar.begin("pass 1 of 2", None)
    bar.update(300, 1)
    assert "left" not in drawn.tasks[0].fields["text"]
    bar.begin("pass 2 of 2", 300)
    task = drawn.tasks[0]
    assert (task.description, task.completed, task.total, task.fields["text"]) == (
        "writing store, pass 2 of 2", 0, 300, "",
    )  # fmt: skip
    clock.seconds += 1
    bar.update(100, 1)
    assert drawn.tasks[0].fields["text"].endswith("100 per second, 0:00:02 left")


def test_no_time_is_left_at_the_end(drawn):
    bar = ProgressBar(drawn, "writing", 4)
    bar.update(4, 1)
    assert "left" not in drawn.tasks[0].fields["text"]


@pytest.mark.parametrize(
    ("given", "known"),
    [
        (list, True),
        (iter, False),
        (lambda rows: pa.table({"x": [row["x"] for row in rows]}), True),
        (lambda rows: [pa.table({"x": [row["x"] for row in rows]})], True),
    ],
)
def test_the_time_left_is_told_where_the_number_of_sequences_is_known(
    tmp_path, capsys, monkeypatch, given, known
):
    texts = []
    update = Rich.update
    monkeypatch.setattr(
        Rich, "update", lambda *a, **b: texts.append(b.get("text", "")) or update(*a, **b)
    )
    rows = [{"x": np.zeros(3)} for _ in range(2000)]
    write_arrow(tmp_path / "store", given(rows), progress=True)
    shown = capsys.readouterr().err
    assert "writing store" in shown
    assert "2,000 sequences, 64.0 kB, " in shown
    assert texts[0].startswith("1,024 sequences, 32.8 kB, ")
    assert ("left" in texts[0]) is known
