"""A DataModule goes to other processes, and is copied, whatever was done with it before."""

import copy
import pickle

import lightning.pytorch as pl
import pytest
from torch.multiprocessing import ProcessRaisedException

from seqdata import Loader, write_store
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.policies.fixed import Bucketed
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
    made = copied(data)
    assert fit(made, max_epochs=2).log == due
    assert fit(data, max_epochs=2).log == due


@pytest.mark.parametrize("copied", [lambda data: pickle.loads(pickle.dumps(data)), copy.deepcopy])
def test_a_copy_belongs_to_no_trainer(copied):
    data = data_of()
    run = fit(data, max_epochs=1)
    made = copied(data)
    assert made.trainer is None
    assert data.trainer is run.trainer
    assert made.state_dict() == {}
    assert made.replay(epoch=0, batch=1).ids.tolist() == data.replay(epoch=0, batch=1).ids.tolist()


@pytest.mark.nightly
@pytest.mark.parametrize("before", [set_up, trained])
def test_whatever_was_done_before_it_goes_through_ddp_spawn(before, tmp_path):
    write_store(tmp_path / "store", sequences(23))
    data = SequenceDataModule(train=tmp_path / "store", batching=Bucketed(4))
    before(data)
    model = Recorder()
    parameters = model.parameters_of()
    options = {**TWO, "devices": 2, "strategy": "ddp_spawn", "enable_checkpointing": False}
    with quietly():
        pl.Trainer(**options).fit(model, datamodule=data)
    assert model.parameters_of() != parameters


@pytest.mark.nightly
def test_a_loader_that_was_made_before_the_ranks_is_refused_by_each_of_them(tmp_path):
    write_store(tmp_path / "store", sequences(23))
    loader = Loader(tmp_path / "store", Bucketed(4))
    options = {**TWO, "devices": 2, "strategy": "ddp_spawn", "enable_checkpointing": False}
    wanted = "ConfigError: loader: it was made for one process, before the process group of 2 ranks"
    with quietly(), pytest.raises(ProcessRaisedException, match=wanted):
        pl.Trainer(**options).fit(Recorder(), loader)
