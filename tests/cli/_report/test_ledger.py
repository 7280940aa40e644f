"""The ledger of ``seqdata plan``: by id, all that is not trained once and whole."""

import json
from collections import Counter

import numpy as np
import pytest
from click.testing import CliRunner

from seqdata.api import open_store, write_store
from seqdata.cli._report.ledger import iter_ledger
from seqdata.cli.app import app
from seqdata.index import SequenceIndex
from seqdata.plan import Plan
from seqdata.policies.bucketed import Bucketed
from seqdata.sharing import World, share

LENGTHS = [int(length) for length in np.random.Philox(5).random_raw(61) % 40]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ledger") / "store"
    rows = ({"id": f"s{i}", "x": np.zeros(n, dtype=np.int8)} for i, n in enumerate(LENGTHS))
    write_store(folder, rows)
    return str(folder)


def run(*arguments, code=0):
    found = ["plan", *map(str, arguments)]
    done = CliRunner().invoke(app, [*found, "--batching", "bucketed", "--batch-size", "4"])
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.stderr


def lines_of(text):
    return [json.loads(line) for line in text.splitlines()]


def played(store, tail, ranks):
    """Count the timesteps that all ranks train, by sequence; rows of weight 0 are not trained."""
    index = SequenceIndex.of_store(open_store(store))
    plan = Bucketed(4).plan(index, seed=0, epoch=0)
    seen = Counter()
    for rank in range(ranks):
        steps = share(plan, World(rank, ranks), tail=tail)
        for step in (steps[k] for k in range(len(steps))):
            for (number, start, stop), weight in zip(
                step.spans.tolist(), step.weights, strict=True
            ):
                seen[number] += (stop - start) * int(weight)
    return seen


@pytest.mark.parametrize("tail", ["fill", "drop", "repeat"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 40])
def test_the_ledger_is_what_the_ranks_miss_and_train_again(store, tail, ranks):
    if (tail, ranks) == ("drop", 40):
        message = run(store, "--world", 40, "--tail", tail, "--ledger", "-", code=1)
        assert "--tail drop leaves out all" in message
        return
    lines = lines_of(run(store, "--world", ranks, "--tail", tail, "--ledger", "-"))
    seen = played(store, tail, ranks)
    expected = Counter(dict(enumerate(LENGTHS)))
    for line in lines:
        assert line["id"] == f"s{line['number']}"
        if line["what"] == "dropped":
            assert line["length"] == LENGTHS[line["number"]] == 0
            continue
        assert line["ranks"] == ranks
        sign = {"left_out": -1, "repeated": 1}[line["what"]]
        expected[line["number"]] += sign * (line["stop"] - line["start"])
    assert {n: count for n, count in seen.items() if count} == {
        n: count for n, count in expected.items() if count
    }
    assert sum(line["what"] == "dropped" for line in lines) == LENGTHS.count(0)


def test_a_repetition_names_step_and_rank(store):
    lines = lines_of(run(store, "--world", 5, "--tail", "repeat", "--ledger", "-"))
    repeated = [line for line in lines if line["what"] == "repeated"]
    index = SequenceIndex.of_store(open_store(store))
    plan = Bucketed(4).plan(index, seed=0, epoch=0)
    for line in repeated:
        step = share(plan, World(line["rank"], 5), tail="repeat")[line["step"]]
        assert step.number == line["batch"]
        assert [line["number"], line["start"], line["stop"]] in step.spans.tolist()
    assert len(plan) % 5
    assert {line["rank"] for line in repeated} == set(range(len(plan) % 5, 5))


@pytest.mark.parametrize("rule", ["split", "truncate", "drop"])
def test_what_is_too_long_is_in_the_ledger_with_what_becomes_of_it(store, tmp_path, rule):
    target = tmp_path / "new" / "iter_ledger.jsonl"
    text = run(store, "--max-length", 15, "--too-long", rule, "--ledger", target)
    lines = lines_of(target.read_text())
    assert f"ledger: {target}, {len(lines)} lines" in text
    long = {number for number, length in enumerate(LENGTHS) if length > 15}
    what = {"split": "split", "truncate": "truncated", "drop": "dropped"}[rule]
    found = {line["number"]: line for line in lines if line["what"] == what and line["length"]}
    assert set(found) == long
    assert {line["id"] for line in found.values()} == {f"s{number}" for number in long}
    assert [found[number]["length"] for number in long] == [LENGTHS[number] for number in long]
    if rule == "split":
        pieces = {number: -(-LENGTHS[number] // 15) for number in long}
        assert {number: line["pieces"] for number, line in found.items()} == pieces
    if rule == "truncate":
        assert {line["kept"] for line in found.values()} == {15}


def test_several_worlds_are_told_apart(store):
    lines = lines_of(run(store, "--world", "3,5", "--tail", "drop", "--ledger", "-"))
    found = Counter(line["ranks"] for line in lines if line["what"] == "left_out")
    batches = json.loads(run(store, "--json"))["batches"]
    assert set(found) == {size for size in (3, 5) if batches % size} == {3, 5}


def test_the_report_counts_what_the_tail_does(store):
    facts = json.loads(run(store, "--world", 5, "--tail", "drop", "--json"))
    (one,) = facts["worlds"]
    assert one["steps"] == facts["batches"] // 5
    assert (one["filler"], one["left_out"], one["repeated"]) == (0, facts["batches"] % 5, 0)
    facts = json.loads(run(store, "--world", 5, "--tail", "repeat", "--json"))
    (one,) = facts["worlds"]
    assert (one["filler"], one["left_out"], one["repeated"]) == (0, 0, -facts["batches"] % 5)
    assert "repeated" in run(store, "--world", 5, "--tail", "repeat")


def test_lanes_leave_nothing_out():
    index = SequenceIndex.from_lengths([4, 2])
    plan = Plan([[0, 0, 4], [1, 0, 2]], offsets=[0, 2], lanes=2)
    assert list(iter_ledger(index, plan, "time", [1, 2], "drop")) == []


def test_sequences_without_ids_go_by_their_numbers():
    index = SequenceIndex.from_lengths([4, 0])
    plan = Bucketed(1).plan(index, seed=0, epoch=0)
    (line,) = iter_ledger(index, plan, "time", [1], "fill")
    assert line == {"what": "dropped", "number": 1, "id": None, "length": 0}


def test_two_things_on_stdout_are_refused(store):
    message = run(store, "--ledger", "-", "--json", code=2)
    assert "`--json` and `--ledger -` cannot both write to stdout" in message


def test_a_ledger_that_cannot_be_written_is_a_message(store, tmp_path):
    (tmp_path / "file").write_text("")
    assert "error: " in run(store, "--ledger", tmp_path / "file" / "ledger", code=1)
