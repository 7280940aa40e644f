"""Items of the contract about our loaders that need a Trainer or a DataModule of their own."""

import json
import multiprocessing

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.profilers import PyTorchProfiler, SimpleProfiler

from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.lightning.trainer_loader import TrainerLoader
from seqdata.loading import pipeline
from seqdata.policies.fixed import Bucketed
from tests.lightning.harness import Recorder, data_of, fit, quietly, sequences
from tests.lightning.resuming import assert_goes_on, count_steps, list_checkpoints


class Unsized(TrainerLoader):
    """Our loader, if it had no length."""

    __len__ = None


class UnsizedData(SequenceDataModule):
    def train_dataloader(self):
        loader = super().train_dataloader()
        return Unsized(loader.engine, loader._get_start)


def unsized_data() -> UnsizedData:
    return UnsizedData(train=sequences(23), val=sequences(5, 1), batching=Bucketed(4), seed=3)


def test_item_1_asking_for_an_iterator_starts_no_process_and_no_thread():
    data = data_of(num_workers=1)
    data.setup("fit")
    loader = data.train_dataloader()
    before = set(multiprocessing.active_children())  # of tests in this process before
    iterators = [iter(loader) for _ in range(3)]
    assert set(multiprocessing.active_children()) <= before
    assert [batch.number for batch in iterators[1]] == list(range(6))
    data.teardown("fit")


@pytest.mark.parametrize("way", [{"max_epochs": 3}, {"max_epochs": -1, "max_steps": 15}])
@pytest.mark.slow
def test_item_2_the_position_is_right_where_lightning_fetches_a_batch_ahead(way, tmp_path):
    whole = fit(unsized_data(), folder=tmp_path, every=1, **way)
    assert whole.trainer.num_training_batches == float("inf")
    for path in list_checkpoints(tmp_path)[:-1:5]:  # steps 1, 6, 11 and 16; 6 steps an epoch
        rest = fit(unsized_data(), ckpt=path, **way)
        assert rest.log.train == whole.log.train[count_steps(path) :]
        assert rest.log.steps == whole.log.steps[count_steps(path) :]
        assert rest.model.parameters_of() == whole.model.parameters_of()


class Ahead(Callback):
    """Compares what the loader handed out with what is trained."""

    def __init__(self) -> None:
        self.found: list[int] = []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.found.append(trainer.train_dataloader.last_batch.step - batch_idx)


@pytest.mark.parametrize(("data", "ahead"), [(data_of, {0}), (unsized_data, {0, 1})])
def test_item_2_lightning_fetches_ahead_only_without_a_length(data, ahead):
    callback = Ahead()
    fit(data(), max_epochs=2, callbacks=(callback,))
    assert set(callback.found) == ahead


class Told(TrainerLoader):
    """Our loader with what Lightning would tell an epoch to."""

    told: list[int]

    def set_epoch(self, epoch):
        self.told.append(epoch)


def test_items_5_and_6_nobody_tells_the_loader_an_epoch_and_order_needs_none(tmp_path):
    class Telling(SequenceDataModule):
        def train_dataloader(self):
            loader = super().train_dataloader()
            made = Told(loader.engine, loader._get_start)
            made.told = told
            return made

    told: list[int] = []
    data = Telling(train=sequences(23), val=sequences(5, 1), batching=Bucketed(4), seed=3)
    run = fit(data, max_epochs=3)
    assert told == []
    orders = [[ids for epoch, _, ids in run.log.train if epoch == one] for one in range(3)]
    assert orders[0] != orders[1] != orders[2]


@pytest.mark.parametrize("injected", [True, False])
def test_item_11_every_kind_of_loader_passes_through_untouched(injected):
    data = data_of(test=sequences(5), predict=sequences(5))
    run = fit(data, max_epochs=1, use_distributed_sampler=injected)
    trainer = run.trainer
    assert type(trainer.train_dataloader) is type(trainer.val_dataloaders) is TrainerLoader
    with quietly():
        trainer.test(run.model, datamodule=data, verbose=False)
        assert type(trainer.test_dataloaders) is TrainerLoader
        trainer.predict(run.model, datamodule=data)
    assert type(trainer.predict_dataloaders) is TrainerLoader


def test_item_12_several_training_sets_are_refused_with_what_to_do():
    with pytest.raises(ValueError, match="`train` must be one location, but has 2 named locations"):
        data_of().__class__(train={"one": sequences(3), "two": sequences(3)})


class Cycled(Recorder):
    """Asks the Trainer how many updates there will be, as OneCycle wants to know."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=0.2, total_steps=self.trainer.estimated_stepping_batches
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


@pytest.mark.parametrize("accumulate", [1, 4])
def test_item_32_one_cycle_ends_with_the_run_and_goes_on_after_a_resume(accumulate, tmp_path):
    way = {"max_epochs": 3, "accumulate_grad_batches": accumulate}
    whole = fit(data_of(), model=Cycled(), folder=tmp_path, every=1, **way)
    assert whole.trainer.estimated_stepping_batches == whole.trainer.global_step
    for path in list_checkpoints(tmp_path)[: -1 : 5 if accumulate == 1 else 2]:
        rest = fit(data_of(), model=Cycled(), ckpt=path, **way)
        rest.first_step = int(path.stem.split("=")[1])
        assert_goes_on(whole, rest, count_steps(path), per_epoch=6)


def test_a_profiler_has_a_range_for_each_part_of_a_step():
    profiler = SimpleProfiler()
    fit(data_of(), max_epochs=1, profiler=profiler)
    ranges = set(profiler.recorded_durations)
    for part in ("train_dataloader_next", "batch_to_device", "run_training_batch"):
        assert any(name.endswith(part) for name in ranges)


def test_a_trace_shows_the_parts_of_making_a_batch_and_of_a_step(tmp_path):
    profiler = PyTorchProfiler(dirpath=tmp_path, filename="trace", emit_nvtx=False)
    fit(data_of(prefetch=0, val=None), max_epochs=1, profiler=profiler)
    (path,) = tmp_path.glob("*.json")
    names = {event.get("name", "") for event in json.loads(path.read_text())["traceEvents"]}
    for part in (
        "seqdata.fetch", "seqdata.collate", "train_dataloader_next", "batch_to_device",
        "training_step", "optimizer_step",
    ):  # fmt: skip
        assert any(part in name for name in names), part


def test_without_a_profiler_there_are_no_ranges(monkeypatch):
    monkeypatch.delattr(pipeline, "record_function")
    fit(data_of(prefetch=0, val=None), max_epochs=1)


@pytest.mark.slow
def test_item_36_reloaded_loaders_go_on_where_the_epoch_stands(tmp_path):
    whole = fit(data_of(), max_epochs=4)
    way = {"max_epochs": 4, "reload_dataloaders_every_n_epochs": 2}
    assert fit(data_of(), folder=tmp_path, every=1, **way).log.train == whole.log.train
    # around the end of an epoch, and around the reload after two epochs of 6
    for path in list_checkpoints(tmp_path)[5:14:2]:
        assert fit(data_of(), ckpt=path, **way).log.train == whole.log.train[count_steps(path) :]
