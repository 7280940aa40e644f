"""A DataModule goes to other processes, and is copied, whatever was done with it before."""

import copy
import pickle

import lightning.pytorch as pl
import pytest

from seqdata import write_store
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.policies.bucketed import Bucketed
from tests.lightning.harness import QUIET, Recorder, data_of, fit, quietly, sequences

TWO = {**QUIET, "max_epochs": 2}


def set_up(data):
    data.setup("fit")
    list(data.train_dataloader())


def trained(data):
    fit(data, max_epochs=1)


@pytest.mark.parametrize("copied", [lambda data: pickle.loads(pickle.dumps(data)), copy.deepcopy])
@pytest.mark.parametrize("before", [lambda data: None, set_up, trained])
def test_a_copy_trains_as_the_original_does(before, copied):
    due = fit(data_of(), max_epochs=2).log
    data = data_of()
    before(data)
    if before is trained:
        data.trainer = None  # which cannot be pickled after a fit, and is not copied
    made = copied(data)
    assert fit(made, max_epochs=2).log == due
    assert fit(data, max_epochs=2).log == due


def test_a_deep_copy_belongs_to_no_trainer():
    data = data_of()
    run = fit(data, max_epochs=1)
    made = copy.deepcopy(data)
    assert made.trainer is None
    assert data.trainer is run.trainer
    assert made.state_dict() == {}
    assert made.replay(epoch=0, batch=1).ids.tolist() == data.replay(epoch=0, batch=1).ids.tolist()


@pytest.mark.nightly
def test_after_setup_by_hand_it_goes_through_ddp_spawn(tmp_path):
    write_store(tmp_path / "store", sequences(23))
    data = SequenceDataModule(train=tmp_path / "store", batching=Bucketed(4))
    data.setup("fit")
    model = Recorder()
    before = model.parameters_of()
    options = {**TWO, "devices": 2, "strategy": "ddp_spawn", "enable_checkpointing": False}
    with quietly():
        pl.Trainer(**options).fit(model, datamodule=data)
    assert model.parameters_of() != before
