"""Callbacks on two ranks and more: what they tell of each other, and files that all write to."""

import json
import re
from collections import Counter
from itertools import pairwise

import pytest

from seqdata.runs.loss_files import LossFiles
from seqdata.runs.step_losses import StepLosses
from tests.lightning.callbacks.monitored import read_logged

pytestmark = pytest.mark.distributed


def test_each_rank_is_known_at_the_end_of_an_epoch(ranks, tmp_path):
    spec = {"callback": "data", "data": {"count": 27}, "folder": str(tmp_path)}
    one, two = ranks.play("watch", 2, spec, ranks={1: {"data": {"count": 27, "late": True}}})
    assert one["ranks"] == two["ranks"]
    quick, late = one["ranks"]
    assert quick["steps"] == late["steps"] == 4
    assert late["waited"] > 0.25  # of 13 rows and 20 ms
    assert late["waited"] > quick["waited"]
    assert quick["tokens"] != late["tokens"]
    (row,) = [row for row in read_logged(tmp_path) if "data/rank_1/wait_share" in row]
    assert row["data/rank_1/wait_share"] == pytest.approx(late["waited"] / late["seconds"])
    assert row["data/rank_1/wait_share"] > row["data/rank_0/wait_share"]
    assert one["warned"] == two["warned"] == []


def test_a_rank_with_dummy_rows_has_them_as_padding(ranks):
    spec = {"callback": "data", "data": {"count": 4}}  # one batch: rank 1 has padding rows
    one, _ = ranks.play("watch", 2, spec)
    assert one["ranks"][1]["tokens"] == one["ranks"][1]["real"] == 0 < one["ranks"][1]["padded"]
    assert one["metrics"]["data/rank_1/padding_share"] == 1.0


def test_a_rank_that_waits_for_data_is_named_once_by_rank_0(ranks):
    spec = {"callback": "memory", "options": {"every_n_steps": 3}, "trainer": {"max_epochs": 3}}
    data = {"count": 40, "equal": True}
    late = {"data": {**data, "late": True}}
    one, two = ranks.play("watch", 2, {**spec, "data": data}, ranks={1: late})
    (warned,) = one["warned"]
    assert re.match(r"RankMemoryMonitor: rank 1 waited \d+\.\d\d s of \d+\.\d\d s for data", warned)
    assert "The cause is its data: use more `num_workers`" in warned
    assert two["warned"] == []


def test_a_rank_that_keeps_memory_is_named(ranks, tmp_path):
    spec = {
        "callback": "memory", "options": {"every_n_steps": 3, "skew": 1.2},
        "data": {"count": 40, "equal": True}, "folder": str(tmp_path),
    }  # fmt: skip
    keeps = {"model": {"held": 400 << 20}}
    one, two = ranks.play("watch", 2, spec, ranks={1: keeps})
    assert one["ranks"] == two["ranks"]
    less, more = (figures["peak_bytes"] for figures in one["ranks"])
    assert more - less > 300 << 20
    (warned,) = one["warned"]
    assert warned.startswith("RankMemoryMonitor: rank 1 has taken ")
    assert "the cause is not its batches" in warned
    rows = [row for row in read_logged(tmp_path) if "memory/rank_1/peak_bytes" in row]
    assert rows[-1]["memory/rank_1/peak_bytes"] == more
    assert sum(row["memory/rank_1/tokens"] for row in rows) > 0


def test_a_rank_with_more_timesteps_is_named(ranks):
    spec = {
        "callback": "memory",
        "options": {"every_n_steps": 3},
        "data": {"count": 30, "lanes": 3},
    }
    one, _ = ranks.play("watch", 2, spec)
    *uneven, warned = one["warned"]
    assert all(text.startswith("share: 3 lanes on 2 ranks") for text in uneven)
    assert re.match(r"RankMemoryMonitor: rank 1 had \d\.\d\d times the timesteps of the", warned)


def test_ranks_that_hold_the_same_go_on(ranks):
    spec = {"callback": "consistency", "options": {"every_n_steps": 1}, "data": {"count": 27}}
    assert [told["error"] for told in ranks.play("watch", 2, spec)] == [None, None]


def test_the_first_parameter_and_the_rank_that_differ_are_named_on_every_rank(ranks):
    spec = {"callback": "consistency", "options": {"every_n_steps": 2}, "data": {"count": 40}}
    told = ranks.play("watch", 3, spec, ranks={1: {"model": {"at": 2}}})
    assert {one["error"] for one in told} == {
        (
            "RankConsistency: parameter 'layer.bias' after 4 updates differs on rank 1 from 0, "
            "2: change it in the same steps on every rank, by gradients that DDP averages: with "
            "the optimizer only, and within the module that the Trainer received, or name it in "
            "`ignore` {'rank': 1}"
        )
    }


def test_a_state_that_each_rank_keeps_in_a_buffer_is_named(ranks):
    spec = {"callback": "consistency", "options": {"every_n_steps": 1}, "data": {"count": 27}}
    model = {"at": 2, "name": "state"}
    told = ranks.play("watch", 2, spec, ranks={1: {"model": model}})
    assert {one["error"].split(" after")[0] for one in told} == {"RankConsistency: buffer 'state'"}


def test_what_is_ignored_may_differ(ranks):
    options = {"every_n_steps": 1, "ignore": ["layer"]}
    spec = {"callback": "consistency", "options": options, "data": {"count": 27}}
    told = ranks.play("watch", 2, spec, ranks={1: {"model": {"at": 2}}})
    assert [one["error"] for one in told] == [None, None]


def test_lines_of_four_processes_are_whole(ranks, tmp_path):
    ranks.play("append", 4, {"folder": str(tmp_path), "lines": 1000})
    lines = [json.loads(line) for line in (tmp_path / "ranks.jsonl").read_text().splitlines()]
    assert Counter(one["rank"] for one in lines) == dict.fromkeys(range(4), 1000)
    for rank in range(4):
        of_rank = [one for one in lines if one["rank"] == rank]
        assert [one["number"] for one in of_rank] == list(range(1000))
        assert {letter for one in of_rank for letter in one["filling"]} == {"abcd"[rank]}
    turns = sum(one["rank"] != two["rank"] for one, two in pairwise(lines))
    assert turns > 10  # they did write at the same time


def test_steps_of_all_ranks_are_in_one_file(ranks, tmp_path):
    spec = {"callback": "files", "folder": str(tmp_path), "data": {"count": 27}}
    ranks.play("watch", 2, spec)
    lines = [json.loads(line) for line in (tmp_path / "ranks.jsonl").read_text().splitlines()]
    places = sorted((one["rank"], one["step"], one["batch"]) for one in lines)
    assert places == [
        (0, 0, 0), (0, 1, 2), (0, 2, 4), (0, 3, 6), (1, 0, 1), (1, 1, 3), (1, 2, 5), (1, 3, 6),
    ]  # fmt: skip


def test_losses_of_all_ranks_are_in_one_record_of_one_fit(ranks, tmp_path):
    (tmp_path / "seqdata-losses-fit4-rank1.bin").write_bytes(b"")  # of a run that was cut off
    spec = {
        "callback": "losses",
        "data": {"count": 27},
        "options": {"folder": str(tmp_path), "every": 3},
        "trainer": {"max_epochs": 2, "accumulate_grad_batches": 2},
    }
    ranks.play("watch", 2, spec)
    assert sorted(path.name for path in tmp_path.glob("*fit5*")) == [
        f"seqdata-losses-fit5-rank{rank}.bin" for rank in range(2)
    ]
    losses = LossFiles.open([tmp_path])
    blocks = list(losses.iterate_blocks())
    for epoch in range(2):
        ids = [id_ for block in blocks for id_ in block.select(block.epochs == epoch).ids.tolist()]
        assert sorted(ids) == list(range(27))  # each once, without padding rows
    table = StepLosses.read(losses)
    assert table.steps.tolist() == [0, 1, 2, 3]
    assert table.batches.tolist() == [4, 3, 4, 3]  # of 7 an epoch


def test_ranks_with_the_same_batch_are_named_in_the_first_step(ranks):
    told = ranks.play("watch_stream", 2, {"shared": True})
    assert told == [
        [
            (
                "RankConsistency: in the first step ranks 0, 1 have the same batch, so they repeat "
                "each other's work. Pass a SequenceDataModule, or shard the data by rank"
            )
        ],
        [],
    ]
    assert ranks.play("watch_stream", 2, {"shared": False}) == [[], []]


@pytest.mark.parametrize("data", [{"count": 23}, {"count": 1}, {"count": 9, "lanes": 2}])
def test_ranks_of_ours_never_have_the_same_batch(ranks, data):
    for one in ranks.play("watch", 3, {"callback": "consistency", "data": data}):
        assert not [said for said in one["warned"] if said.startswith("RankConsistency")]
