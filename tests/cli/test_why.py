"""``seqdata why``: what it prints of a recorded run, with and without its data."""

import json
import math
from types import SimpleNamespace

import lightning.pytorch as pl
import numpy as np
import pytest
from click.testing import CliRunner
from lightning.pytorch.loggers import CSVLogger

from seqdata import Bucketed, LossRecord, Mix, SequenceDataModule, write_store
from seqdata.cli.app import app
from seqdata.runs.loss_files import LossHeader, LossWriter
from tests.cli.commands import read_rows
from tests.lightning.harness import QUIET, RowLosses, quietly
from tests.runs.loss_runs import block_of

BAD = 77


def rows(count, seed, bad=None):
    """Sequences with ids; one of them is bad."""
    draws = np.random.default_rng(seed)
    for i in range(count):
        x = draws.normal(size=(draws.integers(3, 12), 1)).astype("f4")
        yield {"id": f"s{seed}-{i}", "x": x + (50 if i == bad else 0)}


def train(folder, data, score="losses", epochs=2):
    """Train a recorded run in ``folder/logs``."""
    logger = CSVLogger(folder / "logs", name="", version="")
    options = {**QUIET, "logger": logger, "enable_checkpointing": False, "log_every_n_steps": 1}
    with quietly():
        trainer = pl.Trainer(**options, max_epochs=epochs, callbacks=[LossRecord(score=score)])
        trainer.fit(RowLosses(1e-5), data)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run with a bad sequence, and where its data is."""
    folder = tmp_path_factory.mktemp("recorded")
    write_store(folder / "store", rows(200, 0, BAD), shard_bytes=2048)
    train(folder, SequenceDataModule(train=folder / "store", batching=Bucketed(8), seed=1))
    return SimpleNamespace(folder=folder, logs=folder / "logs")


def run(*arguments, code=0):
    done = CliRunner().invoke(app, ["why", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done


def shown(*arguments):
    """The lines of the output, and the cells of its tables."""
    text = run(*arguments).stdout
    rows = read_rows(text)
    titles = next(row for row in rows if row[-1] == "key")
    return text.splitlines(), [row for row in rows if len(row) == len(titles)][1:]


def facts(*arguments):
    return json.loads(run(*arguments, "--json").stdout)


def write_losses(folder, *batches, fit=1, **more):
    """Write a record by hand: 20 usual steps, then these batches."""
    folder.mkdir(exist_ok=True)
    writer = LossWriter(folder, LossHeader(fit=fit, rank=0, world=1, score="loss"))
    usual = [(step, 0, step, [step + 100], [1 + step * 7 % 20 / 100]) for step in range(20)]
    writer.append(block_of([*usual, *batches], **more))
    return folder


def test_the_worst_steps_and_their_first_sequences_are_shown(recorded):
    lines, cells = shown(recorded.logs, "--top", 2)
    assert lines[0] == (
        "50 steps from 0 to 49; those above the losses around them, the farthest first:"
    )
    assert [row[-2:] for row in cells] == [[str(BAD), f"s0-{BAD}"]] * 2
    assert lines[-2] == "All sequences of a step:"
    assert lines[-1].startswith(f"  seqdata why {recorded.logs} --step ")


def test_a_step_is_shown_with_its_sequences_places_and_shares(recorded):
    step = facts(recorded.logs)["steps"][0]["step"]
    lines, cells = shown(recorded.logs, "--step", step, "--top", 3)
    assert lines[0].startswith(f"step {step}: loss ")
    assert lines[0].endswith(" standard deviations above); 8 sequences in 1 batch")
    assert cells[0][-2:] == [str(BAD), f"s0-{BAD}"]
    assert cells[0][-3].startswith("shard ")
    assert float(cells[0][3].removesuffix(" %")) > 90
    assert len(cells) == 3
    assert lines[-4] == "and 5 more; --top shows more of them"
    assert lines[-3].startswith(f"The first is {recorded.folder / 'store'} shard ")
    assert lines[-2] == "See its batch:"
    assert lines[-1].startswith(f"  seqdata replay {recorded.logs}/seqdata-run.yaml -")
    command = lines[-1].partition("seqdata ")[2].split()
    done = CliRunner().invoke(app, [*command, "--json"])
    assert BAD in [sequence["id"] for sequence in json.loads(done.stdout)["sequences"]]


def test_json_has_everything(recorded):
    found = facts(recorded.logs, "--top", 2)
    assert found["recorded"] == 50
    assert found["score"] == "losses"
    assert found["problems"] == []
    assert found["data_problem"] is None
    first = found["steps"][0]["suspects"][0]
    assert (first["id"], first["key"], first["draws"]) == (BAD, f"s0-{BAD}", 2)
    assert first["place"]["file"].endswith(".arrow")
    assert first["replay"].startswith("seqdata replay ")
    assert [step["stands_out"] for step in found["steps"]] == [True, True]
    assert facts(recorded.logs, "--step", 3)["steps"][0]["stands_out"] is False


def test_the_run_file_may_be_passed(recorded):
    assert facts(recorded.logs / "seqdata-run.yaml")["steps"] == facts(recorded.logs)["steps"]


def test_without_its_data_ids_are_shown(tmp_path, recorded):
    for path in recorded.logs.glob("seqdata-losses-*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    done = run(tmp_path, "--step", 3)
    missing = tmp_path / "seqdata-run.yaml"
    assert done.stderr == f"note: keys and places are unknown: {missing} does not exist\n"
    assert "See its batch" not in done.stdout
    missing.write_text("seqdata_run: 9")
    done = run(tmp_path)
    assert "note: keys and places are unknown: " in done.stderr
    assert "not a run file of version 2" in done.stderr


def test_parts_of_a_mixture_are_named(tmp_path):
    for seed, name in enumerate(("de", "en")):
        write_store(tmp_path / name, rows(40, seed, 7 if name == "en" else None))
    data = SequenceDataModule(
        train={"de": tmp_path / "de", "en": tmp_path / "en"}, seed=0,
        batching=Mix({"de": 0.5, "en": 0.5}, Bucketed(4), batches=60),
    )  # fmt: skip
    train(tmp_path, data)
    _, cells = shown(tmp_path / "logs", "--top", 1)
    assert cells[0][-3:] == ["7", "en", "s1-7"]
    found = facts(tmp_path / "logs", "--top", 1)["steps"][0]["suspects"][0]
    assert found["place"]["dataset"] == str(tmp_path / "en")
    assert found["key"] == "s1-7"
    _, cells = shown(tmp_path / "logs", "--step", found["batch"], "--top", 1)
    assert cells[0][-3:] == ["7", "en", "s1-7"]


def test_batch_losses_are_said_to_be_so(tmp_path):
    write_store(tmp_path / "store", rows(64, 0, BAD % 64))
    data = SequenceDataModule(train=tmp_path / "store", batching=Bucketed(8), seed=1)
    train(tmp_path, data, score="loss", epochs=1)
    step = facts(tmp_path / "logs")["steps"][0]["step"]
    text = run(tmp_path / "logs", "--step", step).stdout
    assert "Only the loss of each batch was recorded: sequences are ordered by what all" in text
    assert "The first 8 sequences were always in the same batches, so that losses of b" in text
    assert "share" not in text


def test_a_step_that_does_not_stand_out_is_said_to_be_so(tmp_path):
    lines, _ = shown(write_losses(tmp_path), "--step", 10)
    assert lines[0].startswith("step 10: loss 1.1, usually ")
    assert lines[0].endswith(" standard deviations above); 1 sequence in 1 batch")
    assert lines[1] == "The step does not stand out from those around it."
    lines, _ = shown(tmp_path, "--top", 2)
    assert lines[0].endswith("losses around them, none of them stands out:")


def test_a_step_that_is_high_as_a_whole_points_before_it(tmp_path):
    write_losses(tmp_path, (30, 0, 30, [1, 2, 3], [9.0, 9.1, 9.2]))
    text = run(tmp_path, "--step", 30).stdout
    assert "Most sequences of the step are high (median 9.1): the updates before it may be" in text
    assert "No sequence of the step stands out from the others." in text


def test_a_run_that_became_nan_points_to_the_first_step(tmp_path):
    batches = [(20 + i, 0, 20 + i, [i, 50 + i], [math.nan, math.nan]) for i in range(5)]
    write_losses(tmp_path, *batches)
    text = run(tmp_path, "--step", 23).stdout
    assert "The loss was already not finite at step 20. Look at that step first: " in text
    assert "not finite from" not in run(tmp_path, "--step", 20).stdout
    assert facts(tmp_path, "--top", 1)["steps"][0]["loss"] == "nan"


def test_several_folders_are_one_run(tmp_path):
    first = write_losses(tmp_path / "version_0", (30, 0, 30, [1, 2], [1.0, 9.0]))
    second = write_losses(tmp_path / "version_1")
    assert run(first, second, "--step", 30, code=2).stderr.endswith(
        "(20 of 0 to 19), but is 30, which has no record. The nearest recorded step is 19.\n"
    )
    assert facts(second, first, "--step", 30)["steps"][0]["suspects"][0]["id"] == 2


def test_damage_is_noted(tmp_path):
    write_losses(tmp_path)
    path = tmp_path / "seqdata-losses-fit1-rank0.bin"
    path.write_bytes(path.read_bytes() + b"losses 2 99\n")
    note = f"{path} ends within a block: block 2 is dropped."
    assert f"note: {note}\n" in run(tmp_path).stderr
    assert facts(tmp_path)["problems"] == [note]


def test_a_folder_without_losses_is_one_line(tmp_path):
    assert run(tmp_path, code=2).stderr.startswith(
        f"error: {tmp_path} must be a folder with the losses of a run, but is without them. Pass"
    )


def test_an_empty_record_is_one_line(tmp_path):
    LossWriter(tmp_path, LossHeader(fit=1, rank=0, world=1, score="loss"))
    for arguments in ((), ("--step", 3)):
        done = run(tmp_path, *arguments, code=2)
        assert done.stderr.splitlines()[-1].startswith(
            "error: why: the record must be of at least one step, but is empty."
        )
