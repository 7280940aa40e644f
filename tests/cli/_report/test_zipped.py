"""``seqdata plan --zip``: a batch of each of several stores in every step."""

import json

import numpy as np
import pytest

from seqdata import Bucketed, Loader, TokenBudget, Zip, write_store
from tests.cli.commands import read_rows, run_plan


@pytest.fixture
def stores(tmp_path):
    """A small store with labels, and a large one without."""
    rng = np.random.default_rng(0)
    labelled = [{"x": np.zeros(rng.integers(1, 30)), "y": 1} for _ in range(40)]
    unlabelled = [{"x": np.zeros(rng.integers(1, 30))} for _ in range(200)]
    write_store(tmp_path / "labelled", labelled)
    write_store(tmp_path / "unlabelled", unlabelled)
    return [str(tmp_path / "labelled"), str(tmp_path / "unlabelled")]


BUCKETED = ("--batching", "bucketed", "--zip", "4,8", "--lead", "labelled")


def test_the_figures_are_those_of_what_a_loader_plays(stores):
    facts = json.loads(run_plan(*stores, *BUCKETED, "--epoch", 2, "--world", "1,4", "--json"))
    rule = Zip({"labelled": Bucketed(4), "unlabelled": Bucketed(8)}, lead="labelled")
    loader = Loader(dict(zip(rule.parts, stores, strict=True)), rule, epoch=2)
    steps = list(loader)
    assert facts["batches"] == len(steps) == 10
    real = {name: sum(step[name].num_tokens for step in steps) for name in rule.parts}
    assert facts["timesteps"] == sum(real.values())
    assert facts["padded"] == sum(
        len(batch) * batch.padded_length for step in steps for batch in step.values()
    )
    parts = {part["part"]: part for part in facts["parts"]}
    assert {name: part["timesteps"] for name, part in parts.items()} == real
    assert [part["batches"] for part in facts["parts"]] == [10, 10]
    assert [part["passes"] for part in facts["parts"]] == [1.0, 0.4]
    assert [world["steps"] for world in facts["worlds"]] == [10, 3]
    assert facts["fingerprint"] == loader._engine.fingerprint(2)


def test_the_longest_store_leads_where_none_is_named(stores):
    text = run_plan(*stores, "--zip", "60,200")
    rule = Zip({"labelled": TokenBudget(60), "unlabelled": TokenBudget(200)})
    steps = len(Loader(dict(zip(rule.parts, stores, strict=True)), rule))
    rows = read_rows(text)
    table = {row[0]: row[1:] for row in rows if len(row) == 6}
    assert table["labelled"][0] == table["unlabelled"][0] == str(steps)
    assert "1.00" in (table["labelled"][4], table["unlabelled"][4])


def test_a_ledger_names_what_the_steps_leave_out(stores, tmp_path):
    target = tmp_path / "left-out.jsonl"
    arguments = [*BUCKETED, "--max-length", 20, "--too-long", "drop", "--ledger", target]
    run_plan(*stores, *arguments)
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    lengths = [length for store in stores for length in Loader(store, Bucketed(4)).store.lengths]
    assert len(lines) >= sum(length > 20 for length in lengths) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--zip", "4"], "`--zip` must have a size for each of 2 stores, but has 1"),
        (["--zip", "4,x"], "must be sizes like 16,64, but is '4,x'"),
        (["--zip", "4,8", "--lead", "labeled"], "`--lead` must be one of 'labelled', 'unlabelled'"),
        (["--lead", "labelled"], "`--lead` requires `--zip`, but there is none"),
        (["--zip", "4,8", "--mix", "1,1"], "`--mix` cannot be combined with `--zip`"),
        (["--zip", "4,8", "--batches", 3], "`--batches` cannot be combined with `--zip`"),
        (["--zip", "60,80", "--plot", "plan.png"], "`--plot` cannot be combined with `--zip`"),
        (
            ["--zip", "4,8", "--batching", "tbptt", "--lanes", 2, "--chunk", 4],
            "policy 'tbptt'",
        ),
    ],
)
def test_what_does_not_go_together_is_said(stores, options, message):
    assert message in " ".join(run_plan(*stores, *options, code=2).split())
