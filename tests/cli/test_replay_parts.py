"""``seqdata replay`` of runs that draw from several stores: names are those of each store."""

import json

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from click.testing import CliRunner

from seqdata import Fixed, Mix, SequenceDataModule, Zip, open_store, write_store
from seqdata.cli.app import app
from seqdata.runs.run_file import NAME
from tests.lightning.harness import QUIET, Recorder, quietly, sequences

BATCHINGS = {
    "zip": Zip({"a": Fixed(3), "b": Fixed(5)}, lead="a"),
    "mix": Mix({"a": 1, "b": 1}, Fixed(3), batches=6, keep="batch"),
}


class Idle(Recorder):
    def training_step(self, batch, batch_idx):
        return self.layer(torch.ones(1, 1, dtype=torch.float64)).sum()


@pytest.fixture(scope="module", params=list(BATCHINGS))
def run(request, tmp_path_factory):
    """The run file of a fit, its DataModule, and its stores."""
    folder = tmp_path_factory.mktemp(request.param)
    for name, count in (("a", 14), ("b", 31)):
        rows = enumerate(sequences(count, count))
        write_store(folder / name, ({"id": f"{name}-{i}", "x": x} for i, x in rows))
    data = SequenceDataModule(
        train={name: folder / name for name in "ab"}, batching=BATCHINGS[request.param]
    )
    with quietly():
        pl.Trainer(**{**QUIET, "max_epochs": 1, "default_root_dir": folder / "run"}).fit(
            Idle(), data
        )
    (path,) = (folder / "run").rglob(NAME)
    return path, data, {name: open_store(folder / name) for name in "ab"}


def play(*arguments):
    done = CliRunner().invoke(app, ["replay", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.output


def batches_of(data, number):
    made = data.replay(epoch=0, batch=number)
    return made if isinstance(made, dict) else {made.part: made}


def test_sequences_have_the_names_of_their_own_store(run):
    path, data, stores = run
    for number in (0, 3):
        facts = json.loads(play(path, "--epoch", 0, "--batch", number, "--json"))
        shown = facts.get("parts")
        for name, batch in batches_of(data, number).items():
            own = facts if shown is None else shown[name]
            keys = [sequence["key"] for sequence in own["sequences"]]
            assert keys == stores[name].keys(batch)
            assert {key.partition("-")[0] for key in keys} == {name}
            assert (own["number"], own["rows"]) == (number, len(batch))
            assert own["num_tokens"] == batch.num_tokens
        assert facts["number"] == number


def test_a_step_is_shown_part_by_part(run):
    path, data, _ = run
    text = play(path, "--epoch", 0, "--batch", 1)
    batches = batches_of(data, 1)
    for name, batch in batches.items():
        assert len(batches) == 1 or f"part {name}\n" in text
        assert f"{len(batch)} rows of up to {batch.padded_length} timesteps" in text


@pytest.mark.parametrize("suffix", ["pt", "npz"])
def test_a_saved_step_holds_all_parts(run, tmp_path, suffix):
    path, data, stores = run
    target = tmp_path / f"step.{suffix}"
    play(path, "--epoch", 0, "--batch", 1, "--save", target)
    saved = torch.load(target) if suffix == "pt" else dict(np.load(target))
    batches = batches_of(data, 1)
    for name, batch in batches.items():
        if suffix == "pt":
            own = saved[name] if len(batches) > 1 else saved
            x, keys = own["data"]["x"], own["keys"]
        else:
            prefix = f"{name}." if len(batches) > 1 else ""
            x, keys = torch.from_numpy(saved[f"{prefix}data.x"]), list(saved[f"{prefix}keys"])
        assert x.equal(batch["x"])
        assert keys == stores[name].keys(batch)
