"""Chunks that grow from epoch to epoch: the steps follow, under a Trainer and without."""

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer

from seqdata import TBPTT, Loader, SequenceDataModule
from seqdata.errors import ConfigError
from seqdata.storage.memory import MemoryStore

LENGTHS = (40, 31, 25, 12, 9, 33)
QUIET = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def growing(epoch):
    return 4 * 2**epoch


def nothing(epoch):
    return 4 - 2 * epoch


def store():
    return MemoryStore.from_sequences([np.arange(size) + 100 * k for k, size in enumerate(LENGTHS)])


class Recording(LightningModule):
    """Writes down what it is given."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen = []

    def training_step(self, batch, _):
        self.seen.append((batch.epoch, batch.number, batch.num_tokens, int(batch.lengths.max())))
        return self.weight * 0.0

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(folder, epochs, *, ckpt_path=None, **options):
    model = Recording()
    data = SequenceDataModule(train=store(), batching=TBPTT(2, growing))
    trainer = Trainer(
        max_epochs=epochs, accelerator="cpu", default_root_dir=folder,
        reload_dataloaders_every_n_epochs=1, **QUIET, **options,
    )  # fmt: skip
    trainer.fit(model, data, ckpt_path=ckpt_path)
    return model.seen, trainer


def steps_of(seen):
    return [sum(one[0] == epoch for one in seen) for epoch in range(3)]


def test_a_loader_has_the_length_of_the_epoch_that_it_plays_next():
    loader = Loader(store(), TBPTT(2, growing), prefetch=0)
    for _ in range(3):
        told = len(loader)
        batches = list(loader)
        assert told == len(batches)
        assert sum(batch.num_tokens for batch in batches) == sum(LENGTHS)
    assert len(loader) < 6


def test_a_loader_goes_on_inside_an_epoch_of_another_length():
    whole = Loader(store(), TBPTT(2, growing), prefetch=0)
    batches = [list(whole) for _ in range(2)][1]
    stopped = Loader(store(), TBPTT(2, growing), prefetch=0)
    list(stopped)
    playing = iter(stopped)
    for _ in range(3):
        next(playing)
    again = Loader(store(), TBPTT(2, growing), prefetch=0)
    again.load_state_dict(stopped.state_dict())
    rest = [batch.number for batch in again]
    assert rest == [batch.number for batch in batches[3:]]


def test_a_trainer_that_asks_in_every_epoch_trains_every_step(tmp_path):
    seen, _ = fit(tmp_path, 3)
    alone = Loader(store(), TBPTT(2, growing), prefetch=0)
    assert steps_of(seen) == [len(list(alone)) for _ in range(3)]
    assert [sum(one[2] for one in seen if one[0] == epoch) for epoch in range(3)] == 3 * [150]
    assert [max(one[3] for one in seen if one[0] == epoch) for epoch in range(3)] == [4, 8, 16]


def test_a_fit_goes_on_in_the_middle_of_a_longer_chunked_epoch(tmp_path):
    whole, _ = fit(tmp_path / "whole", 3)
    first = steps_of(whole)[0]
    begun, trainer = fit(tmp_path / "begun", 3, max_steps=first + 3)
    trainer.save_checkpoint(tmp_path / "middle.ckpt")
    rest, _ = fit(tmp_path / "rest", 3, ckpt_path=tmp_path / "middle.ckpt")
    assert begun + rest == whole


def test_a_trainer_that_asks_once_is_refused(tmp_path):
    data = SequenceDataModule(train=store(), batching=TBPTT(2, growing))
    trainer = Trainer(max_epochs=2, accelerator="cpu", default_root_dir=tmp_path, **QUIET)
    with pytest.raises(
        ConfigError, match=r"but the Trainer reads it only once. Pass Trainer\(reload"
    ):
        trainer.fit(Recording(), data)


def test_a_function_that_gives_no_length_is_refused():
    loader = Loader(store(), TBPTT(2, nothing), prefetch=0)
    for _ in range(2):
        list(loader)
    with pytest.raises(
        ConfigError,
        match=r"`chunk` must return .* but returned 0 for epoch 2",
    ):
        len(loader)
