"""What earlier code wrote opens and continues: stores, states, checkpoints, run files, bit for bit.

``tests/compat/saved`` was written by ``tests.compat.make``: the stores before modules were moved
and renamed, states and run files by the first code of plan version 2. ``plan_version_1`` has those
of the version before, whose plans are no longer made.
"""

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from seqdata import Loader, TokenBudget, World, open_store
from seqdata.cli.app import app
from seqdata.errors import ResumeError, SeqDataWarning
from tests.compat.make import (
    Model,
    data_module,
    digest,
    hash_of,
    lanes_module,
    parameters,
    quiet_trainer,
    sequences,
)

HERE = Path(__file__).parent
OLD = HERE / "plan_version_1"
REFUSAL = r"plan version 1, but this release makes plans of version 2.*on_changed='next_epoch'"
EXPECTED = json.loads((HERE / "saved" / "expected.json").read_text("utf-8"))
MODULES = {"module": data_module, "lanes": lanes_module}


@pytest.fixture
def saved(tmp_path) -> Path:
    """A copy of what was saved: reading may keep files of its own next to it."""
    return Path(shutil.copytree(HERE / "saved", tmp_path / "saved"))


@pytest.mark.parametrize("name", ["arrow", "tar"])
def test_a_store_opens_with_its_fingerprint_and_every_value(saved, name):
    store = open_store(saved / name)
    assert store.fingerprint == EXPECTED[name]["fingerprint"]
    for found, written in zip(store, sequences(), strict=True):
        assert found["note"] == written["note"]
        for field in ("x", "t", "y"):
            assert np.asarray(found[field]).tobytes() == np.asarray(written[field]).tobytes()


@pytest.mark.parametrize("name", ["arrow", "tar"])
def test_a_loader_continues_from_its_saved_state(saved, name):
    store = open_store(saved / name).select("x", "y")
    loader = Loader(store, TokenBudget(64), seed=5, world=World(0, 1))
    loader.load_state_dict(torch.load(saved / f"{name}-loader.pt", weights_only=True))
    assert [digest(batch) for batch in loader] == EXPECTED[name]["rest"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["module", "lanes"])
def test_a_fit_continues_from_its_saved_checkpoint(saved, name):
    model = Model(carried=name == "lanes")
    trainer = quiet_trainer(max_epochs=2, logger=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(model, MODULES[name](str(saved / "arrow")), ckpt_path=saved / f"{name}.ckpt")
    assert model.seen == EXPECTED[name]["rest"]
    torch.testing.assert_close(parameters(model), EXPECTED[name]["parameters"], rtol=1e-4, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "steps"), [("module", 12), ("lanes", 32)])
def test_a_batch_is_replayed_from_a_saved_run_file(saved, name, steps, monkeypatch):
    text = (saved / f"{name}-run.yaml").read_text("utf-8")
    tree = str(HERE.parents[1])
    run_file = saved / "seqdata-run.yaml"
    run_file.write_text(text.replace("@SAVED@", str(saved)).replace("@TREE@", tree), "utf-8")
    command = ["replay", str(run_file), "--epoch", "1", "--batch", "3", "--save", "batch.pt"]
    monkeypatch.chdir(saved)
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    batch = torch.load("batch.pt", weights_only=True)
    found = hash_of(batch["data"], batch["ids"], batch["lengths"], batch["weight"])
    assert found == EXPECTED[name]["rest"][steps + 3 - 9]


def test_a_loader_of_an_older_plan_is_refused_or_begins_the_next_epoch(saved):
    store = open_store(saved / "arrow").select("x", "y")
    state = torch.load(OLD / "arrow-loader.pt", weights_only=True)
    loader = Loader(store, TokenBudget(64), seed=5, world=World(0, 1))
    with pytest.raises(ResumeError, match=REFUSAL):
        loader.load_state_dict(state)
    with pytest.warns(SeqDataWarning, match="the state is of plan version 1"):
        loader.load_state_dict(state, on_changed="next_epoch")
    assert {batch.epoch for batch in loader} == {1}


@pytest.mark.slow
def test_a_checkpoint_of_an_older_plan_is_refused_or_begins_the_next_epoch(saved):
    def fit(**options):
        model, data = Model(), data_module(str(saved / "arrow"), **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = quiet_trainer(max_epochs=3, logger=False)
            trainer.fit(model, data, ckpt_path=OLD / "module.ckpt")
        return model, trainer

    with pytest.raises(ResumeError, match=REFUSAL):
        fit()
    model, trainer = fit(on_changed="next_epoch")
    batches = trainer.datamodule.train_dataloader().engine.num_batches
    assert len(model.seen) == (3 - 1) * batches  # the weights go on, the epoch is left
    weights = torch.load(OLD / "module.ckpt", weights_only=True)["state_dict"]
    assert Model().load_state_dict(weights).missing_keys == []


def test_a_run_file_of_an_older_plan_names_its_release(saved, monkeypatch):
    text = (OLD / "module-run.yaml").read_text("utf-8")
    run_file = saved / "seqdata-run.yaml"
    tree = str(HERE.parents[1])
    run_file.write_text(text.replace("@SAVED@", str(saved)).replace("@TREE@", tree), "utf-8")
    monkeypatch.chdir(saved)
    done = CliRunner().invoke(app, ["replay", str(run_file), "--epoch", "1", "--batch", "3"])
    assert done.exit_code
    assert "must have fingerprint" in done.output
    assert "the release of seqdata" in " ".join(done.output.split())
