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
from seqdata.policies.curriculum import Curriculum
from seqdata.policies.fixed import Bucketed, Fixed, Sorted
from seqdata.policies.packed import Packed
from seqdata.policies.token_budget import TokenBudget
from seqdata.policies.weighted import Weighted
from seqdata.policies.windows import Windows
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
    index = SequenceIndex.from_store(open_store(store))
    plan = Bucketed(4, balance_ranks=ranks).plan(index, seed=0, epoch=0)
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
        assert "--tail drop must leave at least one step, but drops all" in message
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
    index = SequenceIndex.from_store(open_store(store))
    plan = Bucketed(4, balance_ranks=5).plan(index, seed=0, epoch=0)
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


def used_of(index, plan):
    """Return sequence -> its spans and timesteps in a plan, by sets."""
    spans, used = {}, {}
    for batch in (plan.batch(number) for number in range(len(plan))):
        for number, start, stop in batch.spans.tolist():
            if stop > start:
                spans.setdefault(number, set()).add((start, stop))
                used.setdefault(number, set()).update(range(start, stop))
    return spans, used


def cut(keep="first", too_long="truncate", length=7):
    return Bucketed(4, max_length=length, too_long=too_long, keep=keep)


@pytest.mark.parametrize(
    "policy",
    [
        cut(),
        cut("last"),
        cut(too_long="split"),
        Fixed(3, max_length=5, too_long="truncate", keep="last"),
        Sorted(3, max_length=5, too_long="truncate", keep="last"),
        TokenBudget(40, max_length=9, too_long="truncate", keep="last"),
        Packed(4, 40, max_length=9, too_long="truncate", keep="last"),
        Weighted(
            cut("last"), weights=np.arange(61) + 1.0, draws=80
        ),  # several times, or not at all
        Weighted(cut(too_long="split"), weights=np.arange(61) + 1.0),
        Curriculum(cut("last", length=20), [(0, 5), (2, 9)], segment=4, batches=12),
        Windows(4, stride=3, horizon=2),
    ],
    ids=lambda policy: f"{type(policy).__name__}-{getattr(policy, 'keep', '')}",
)
def test_what_is_kept_is_what_is_read(policy):
    index = SequenceIndex.from_lengths(LENGTHS)
    plan = policy.plan(index, seed=0, epoch=0)
    spans, used = used_of(index, plan)
    lines = list(iter_ledger(index, {1: plan}, "time", "fill"))
    cut_lines = [line for line in lines if line["what"] in ("truncated", "split")]
    assert bool(cut_lines) is not isinstance(policy, Windows)
    for line in cut_lines:
        number = line["number"]
        if line["what"] == "truncated":
            assert line["kept"] == len(used.get(number, ())), line
        else:
            assert line["pieces"] == len(spans.get(number, ())), line


def test_what_is_kept_of_the_end_is_shown_by_the_command(tmp_path):
    rows = [{"x": np.zeros(length)} for length in (2, 3, 5, 8, 0)]
    write_store(tmp_path / "s", rows)
    options = ["--batching", "fixed", "--batch-size", "2", "--max-length", "3"]
    for keep in ("first", "last"):
        options += ["--too-long", "truncate", "--keep", keep, "--ledger", "-"]
        done = CliRunner().invoke(app, ["plan", str(tmp_path / "s"), *options])
        assert done.exit_code == 0, done.output
        found = [line for line in lines_of(done.stdout) if line["what"] == "truncated"]
        assert [(line["length"], line["kept"]) for line in found] == [(5, 3), (8, 3)]


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
    assert list(iter_ledger(index, {1: plan, 2: plan}, "time", "drop")) == []


def test_sequences_without_ids_go_by_their_numbers():
    index = SequenceIndex.from_lengths([4, 0])
    plan = Bucketed(1).plan(index, seed=0, epoch=0)
    (line,) = iter_ledger(index, {1: plan}, "time", "fill")
    assert line == {"what": "dropped", "number": 1, "id": None, "length": 0}


def test_two_things_on_stdout_are_refused(store):
    message = run(store, "--ledger", "-", "--json", code=2)
    assert "`--json` and `--ledger -` cannot both write to stdout" in message


def test_a_ledger_that_cannot_be_written_is_a_message(store, tmp_path):
    (tmp_path / "file").write_text("")
    assert "error: " in run(store, "--ledger", tmp_path / "file" / "ledger", code=1)
