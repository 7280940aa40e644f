"""What earlier code wrote opens and continues: stores, states, checkpoints, run files, bit for bit.

``tests/compat/saved`` was written once by ``tests.compat.make``, before modules were moved and
renamed.
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
