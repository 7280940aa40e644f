"""What Lightning itself does, pinned: a release that does otherwise is noticed here.

The numbers are items of docs/about/lightning-contract.md. None of these runs has a loader of
ours unless its name says so.
"""

import csv

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import ModelCheckpoint, ThroughputMonitor
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch.utils.data import DataLoader, IterableDataset

from seqdata import Bucketed, Loader, World, batch_size_fn, length_fn
from tests.lightning.harness import QUIET, Recorder, data_of, fit, quietly, sequences


class Plain(pl.LightningModule):
    """Takes tensors of any shape and writes down what it is given."""

    def __init__(self, fail_in_val: int | None = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.trained: list[tuple[int, list[float]]] = []
        self.validated: list[float] = []
        self.fail_in_val = fail_in_val

    def training_step(self, batch, batch_idx):
        found = batch if isinstance(batch, torch.Tensor) else batch[0]
        self.trained.append((batch_idx, found.flatten().tolist()))
        return self.layer(found.reshape(-1, 1).float()).sum()

    def validation_step(self, batch, batch_idx):
        if self.fail_in_val is not None and len(self.validated) == self.fail_in_val:
            raise OSError("told to fail in validation")
        self.validated.append(float(batch))

    def predict_step(self, batch, batch_idx):
        return batch.tolist()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Batches:
    """Batches of one number each, in order; a loader as anybody writes it."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self):
        return (torch.tensor([float(number)]) for number in range(self.count))


class Sized(Batches):
    def __len__(self) -> int:
        return self.count


class Stateful(Sized):
    """Its state is the number of batches that it has given away."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.begun = self.loaded = 0

    def __iter__(self):
        first, self.loaded = self.loaded, 0
        for number in range(first, self.count):
            self.begun = number + 1
            yield torch.tensor([float(number)])

    def state_dict(self):
        return {"begun": self.begun}

    def load_state_dict(self, state):
        self.loaded = state["begun"]


def trainer(**options) -> pl.Trainer:
    return pl.Trainer(**{**QUIET, "enable_checkpointing": False, "max_epochs": 1, **options})


def run(loader, *, model=None, val=None, ckpt=None, **options) -> tuple[Plain, pl.Trainer]:
    made, model = trainer(**options), model or Plain()
    with quietly():
        made.fit(model, loader, val, ckpt_path=None if ckpt is None else str(ckpt))
    return model, made


@pytest.mark.parametrize("option", ["limit_train_batches", "val_check_interval"])
def test_item_10_a_fraction_needs_a_length(option):
    with pytest.raises(MisconfigurationException, match=option):
        run(Batches(4), val=Sized(1), **{option: 0.5})
    model, _ = run(Sized(4), val=Sized(1), **{option: 0.5})
    assert len(model.trained) == (2 if option == "limit_train_batches" else 4)


def test_item_10_validating_less_often_than_an_epoch_needs_a_word():
    with pytest.raises(ValueError, match="must be less than or equal to the number of"):
        run(Sized(4), val=Sized(1), val_check_interval=6)
    options = {"val_check_interval": 6, "check_val_every_n_epoch": None, "max_epochs": 3}
    model, _ = run(Sized(4), val=Sized(1), **options)
    assert len(model.validated) == 2


@pytest.mark.parametrize("batches", ["list", "tuple", "dict"])
def test_item_12_batches_in_a_list_are_taken_for_loaders(batches):
    one = torch.tensor(0.0)
    with pytest.raises(TypeError, match="An invalid dataloader was passed"):
        run({"list": [one, one], "tuple": (one, one), "dict": {"one": one}}[batches])


def test_item_12_a_shorter_loader_of_several_begins_again_inside_the_epoch():
    class Both(Plain):
        def training_step(self, batch, batch_idx):
            self.trained.append((batch_idx, [float(one) for one in batch]))
            return self.layer(batch[0].reshape(-1, 1)).sum()

    model, _ = run([Sized(4), Sized(2)], model=Both())
    assert [one for _, one in model.trained] == [[0.0, 0.0], [1.0, 1.0], [2.0, 0.0], [3.0, 1.0]]


def test_item_12_states_of_several_loaders_go_by_their_order(tmp_path):
    saver = ModelCheckpoint(dirpath=tmp_path, filename="{step}", every_n_train_steps=2)
    options = {"enable_checkpointing": True, "limit_train_batches": 2}

    class First(Plain):
        def training_step(self, batch, batch_idx):
            return self.layer(batch[0].reshape(-1, 1)).sum()

    run([Stateful(4), Stateful(3)], model=First(), callbacks=[saver], **options)
    path = tmp_path / "step=2.ckpt"
    saved = torch.load(path)["loops"]["fit_loop"]["state_dict"]["combined_loader"]
    assert saved == [{"begun": 2}, {"begun": 2}]
    with pytest.raises(RuntimeError, match="has 3 stateful loaders, but found 2 states"):
        run([Stateful(4)] * 3, model=First(), ckpt=path, max_epochs=2)


@pytest.mark.parametrize("injected", [True, False])
def test_item_14_prediction_rebuilds_a_dataloader_and_not_ours(injected):
    given = DataLoader(torch.arange(5.0), batch_size=2, drop_last=True)
    made = trainer(use_distributed_sampler=injected)
    with quietly():
        made.predict(Plain(), given)
    assert made.predict_dataloaders is not given
    assert made.predict_dataloaders.drop_last is False
    data = data_of(val=None, predict=sequences(5))
    ours = trainer(use_distributed_sampler=injected)
    with quietly():
        predicted = ours.predict(Recorder(), datamodule=data)
    assert type(ours.predict_dataloaders).__name__ == "TrainerLoader"
    assert sorted(one for batch in predicted for one in batch) == list(range(5))


def test_item_15_overfitting_leaves_a_shuffling_loader_of_anybody_shuffling():
    class Shuffling(Sized):
        def __iter__(self):
            self.epochs = getattr(self, "epochs", -1) + 1
            return (torch.tensor([float(n + 10 * self.epochs)]) for n in range(self.count))

    model, _ = run(Shuffling(4), overfit_batches=2, max_epochs=2)
    first, second = model.trained[:2], model.trained[2:]
    assert [one for _, one in first] != [one for _, one in second]


def test_item_23_a_loader_without_state_is_warned_of(tmp_path):
    saver = ModelCheckpoint(dirpath=tmp_path, filename="{step}", every_n_train_steps=1)
    run(Sized(4), callbacks=[saver], enable_checkpointing=True, max_steps=2, max_epochs=2)
    with pytest.warns(UserWarning, match="your dataloader is not resumable"):
        run(Sized(4), ckpt=next(tmp_path.glob("*.ckpt")), max_epochs=2)
    run(Stateful(4), ckpt=next(tmp_path.glob("*.ckpt")), max_epochs=2)  # warnings are errors here


def test_item_3_a_loader_that_counts_what_it_gave_away_loses_an_epoch(tmp_path):
    saver = ModelCheckpoint(dirpath=tmp_path, filename="{step}", every_n_train_steps=4)
    whole, _ = run(Stateful(4), max_epochs=2)
    run(Stateful(4), callbacks=[saver], enable_checkpointing=True, max_epochs=1)
    rest, _ = run(Stateful(4), ckpt=tmp_path / "step=4.ckpt", max_epochs=2)
    assert len(whole.trained) == 8
    assert rest.trained == []


def test_item_24_a_validation_that_failed_goes_on_by_count_and_begins_again_by_data(tmp_path):
    saver = ModelCheckpoint(dirpath=tmp_path, filename="{step}", save_on_exception=True)
    failing = Plain(fail_in_val=2)
    with pytest.raises(OSError, match="told to fail"):
        run(Sized(2), model=failing, val=Sized(4), callbacks=[saver], enable_checkpointing=True)
    (path,) = tmp_path.glob("*.ckpt")
    model, _ = run(Sized(2), val=Sized(4), ckpt=path)
    assert failing.validated == model.validated == [0.0, 1.0]  # the rest would have been 2 and 3


def test_item_25_an_exception_ends_without_teardown():
    heard = []

    class Heard(pl.LightningDataModule):
        def train_dataloader(self):
            return Sized(2)

        def on_exception(self, exception):
            heard.append(str(exception))

        def teardown(self, stage):
            heard.append(stage)

    class Failing(Plain):
        def training_step(self, batch, batch_idx):
            raise OSError("told to fail")

    with quietly(), pytest.raises(OSError, match="told to fail"):
        trainer().fit(Failing(), datamodule=Heard())
    assert heard == ["told to fail"]


def test_item_31_a_batch_of_none_is_skipped_and_counted():
    class Holes(Sized):
        def __iter__(self):
            return (None if number == 1 else torch.tensor([float(number)]) for number in range(3))

    with pytest.warns(UserWarning, match="yielded None"):
        model, made = run(Holes(3))
    assert [one for _, one in model.trained] == [[0.0], [2.0]]
    assert [index for index, _ in model.trained] == [0, 2]
    assert made.global_step == 2


def test_item_32_without_a_length_the_number_of_steps_is_unknown():
    _, made = run(Batches(3), val=Sized(1))
    assert made.num_training_batches == float("inf")
    assert made.estimated_stepping_batches == -1
    assert made.fit_loop.epoch_loop.val_loop.batch_progress.total.completed == 1


def test_item_35_the_throughput_monitor_counts_our_sequences_and_timesteps(tmp_path):
    class Costed(Recorder):
        flops_per_batch = 1

    monitor = ThroughputMonitor(batch_size_fn=batch_size_fn, length_fn=length_fn, window_size=2)
    logged = {"logger": CSVLogger(tmp_path), "log_every_n_steps": 1}
    fit(data_of(val=None), model=Costed(), max_epochs=1, callbacks=(monitor,), **logged)
    (path,) = tmp_path.rglob("metrics.csv")
    with path.open() as file:
        last = list(csv.DictReader(file))[-1]
    assert float(last["train/samples"]) == 23
    assert float(last["train/lengths"]) == sum(map(len, sequences(23)))


class Once(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(4.0))


def test_item_37_fabric_takes_dataloaders_alone_and_counts_epochs_from_0():
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    ours = Loader(sequences(8), Bucketed(2), world=World(fabric.global_rank, fabric.world_size))
    with pytest.raises(TypeError, match="DataLoader"):
        fabric.setup_dataloaders(ours)
    wrapped = fabric.setup_dataloaders(DataLoader(Once(), batch_size=2))
    assert not isinstance(wrapped, DataLoader)
    assert [batch.tolist() for batch in wrapped] == [[0.0, 1.0], [2.0, 3.0]]
    assert wrapped._num_iter_calls == 1
    assert [fabric.to_device(batch).ids.tolist() for batch in ours]


def test_there_is_no_data_parallel_strategy_of_one_process():
    with pytest.raises(ValueError, match="strategy='dp'"):
        pl.Trainer(**QUIET, strategy="dp")
