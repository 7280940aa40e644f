"""LossRecord: what each step trained is on disk, once, whatever stops and resumes the run."""

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger

from seqdata import Bucketed, LossRecord, Mix, SeqDataWarning, SequenceDataModule, Zip
from seqdata.errors import ConfigError
from seqdata.lightning.callbacks import loss_record
from seqdata.runs.loss_files import LossFiles
from seqdata.runs.step_losses import StepLosses
from seqdata.runs.suspects import explain_steps
from tests.lightning.harness import QUIET, Recorder, RowLosses, data_of, fit, quietly, sequences


class ByRow(Recorder):
    """Returns a loss for each row as well; has its own record of them."""

    def __init__(self, **options):
        super().__init__(**options)
        self.losses = []

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        each = batch.ids.double() + 1000 * self.trainer.global_step
        counted = batch.weight > 0
        self.losses += list(
            zip(
                [self.trainer.global_step] * int(counted.sum()),
                batch.ids[counted].tolist(),
                each[counted].tolist(),
                strict=True,
            )
        )
        return {"loss": loss, "losses": each}


class Ending(Callback):
    """Ends the process' part in the run as a kill would: nothing is written after it."""

    def __init__(self, after):
        self.after = after

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_step == self.after:
            for callback in trainer.callbacks:
                if isinstance(callback, LossRecord):
                    callback._write = lambda: None
            raise OSError("killed")


def rows_in(*folders):
    """(step, id, score) of all records, sorted."""
    found = [
        (int(block.steps[batch]), int(id_), float(score))
        for block in LossFiles.open(folders).iterate_blocks()
        for batch, id_, score in zip(block.batch_of_row, block.ids, block.scores, strict=True)
    ]
    return sorted(found)


@pytest.mark.parametrize("every", [1, 5, 1000])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_every_row_of_every_step_is_recorded_once(tmp_path, every, accumulate):
    model, record = ByRow(), LossRecord(tmp_path, "losses", every=every)
    fit(
        data_of(),
        model=model,
        callbacks=(record,),
        max_epochs=3,
        accumulate_grad_batches=accumulate,
    )
    assert rows_in(tmp_path) == sorted(model.losses)
    assert record.path == tmp_path / "seqdata-losses-fit1-rank0.bin"


def test_batches_are_known_by_epoch_and_number(tmp_path):
    run = fit(data_of(), callbacks=(LossRecord(tmp_path),), max_epochs=2)
    blocks = list(LossFiles.open([tmp_path]).iterate_blocks())
    found = [
        (int(block.epochs[i]), int(block.numbers[i]), tuple(block.ids[low:high].tolist()))
        for block in blocks
        for i, (low, high) in enumerate(zip(block.offsets, block.offsets[1:], strict=False))
    ]
    assert found == run.log.train
    assert all(block.is_shared.all() for block in blocks)


def test_the_files_are_in_the_log_folder_next_to_the_run_file(tmp_path):
    logger = CSVLogger(tmp_path / "logs", name="", version="")
    options = {"logger": logger, "max_epochs": 1, "log_every_n_steps": 1}
    fit(data_of(), callbacks=(LossRecord(),), **options)
    assert (tmp_path / "logs" / "seqdata-run.yaml").is_file()
    assert LossFiles.open([tmp_path / "logs"]).run_folders == [tmp_path / "logs"]
    fit(data_of(), callbacks=(LossRecord(tmp_path / "own"),), **options)
    assert LossFiles.open([tmp_path / "own"]).run_folders == [tmp_path / "logs"]


@pytest.mark.parametrize("every", [1, 4, 100])
def test_a_run_that_was_killed_and_resumed_has_each_step_once(tmp_path, every):
    folder, losses = tmp_path / "checkpoints", tmp_path / "losses"
    whole = ByRow()
    fit(data_of(), model=whole, max_epochs=3)

    def record():
        return LossRecord(losses, "losses", every=every)

    fit(
        data_of(), model=ByRow(), folder=folder, every=4, max_epochs=3,
        callbacks=(record(), Ending(after=10)),
    )  # fmt: skip
    assert [row for row in rows_in(losses) if row[0] < 8] == sorted(
        row for row in whole.losses if row[0] < 8
    )
    fit(data_of(), model=ByRow(), max_epochs=3, callbacks=(record(),), ckpt=folder / "step=8.ckpt")
    assert rows_in(losses) == sorted(whole.losses)
    fit(  # again from an earlier checkpoint, and no further
        data_of(), model=ByRow(), max_steps=7, max_epochs=3, callbacks=(record(),),
        ckpt=folder / "step=4.ckpt",
    )  # fmt: skip
    assert rows_in(losses) == sorted(row for row in whole.losses if row[0] < 7)


def test_what_failed_is_written(tmp_path):
    model = ByRow(fail_at=5)
    run = fit(data_of(), model=model, callbacks=(LossRecord(tmp_path, "losses"),), max_epochs=3)
    assert isinstance(run.error, OSError)
    assert rows_in(tmp_path) == sorted(model.losses)
    assert len({step for step, _, _ in model.losses}) == 5


def test_the_loss_is_as_it_was_returned(tmp_path):
    """Lightning divides it by the steps of an update."""

    class Constant(Recorder):
        def training_step(self, batch, batch_idx):
            return self.layer.weight.sum() * 0 + 3.0

    fit(
        data_of(), model=Constant(), callbacks=(LossRecord(tmp_path),), max_epochs=1,
        accumulate_grad_batches=2,
    )  # fmt: skip
    assert {score for _, _, score in rows_in(tmp_path)} == {3.0}


@pytest.mark.parametrize("form", ["as_tuple", "as_dict"])
def test_batches_of_other_forms_are_known_from_the_plan(tmp_path, form):
    class Bare(Recorder):
        def training_step(self, batch, batch_idx):
            x = batch["x"] if isinstance(batch, dict) else batch[0]
            return self.layer(x).mean()

    run = fit(data_of(), callbacks=(LossRecord(tmp_path / "a"),), max_epochs=2)
    fit(
        data_of(val=None, **{form: ("x", "weight")}),
        model=Bare(),
        callbacks=(LossRecord(tmp_path / "b"),),
        max_epochs=2,
    )
    ids = [[row[:2] for row in rows_in(tmp_path / name)] for name in "ab"]
    assert ids[0] == ids[1]
    assert len(ids[0]) == sum(len(ids) for _, _, ids in run.log.train)


def parts_in(folder):
    """The parts and ids of all rows."""
    losses = LossFiles.open([folder])
    return [
        (losses.names[part], int(id_))
        for block in losses.iterate_blocks()
        for part, id_ in zip(block.parts, block.ids, strict=True)
    ]


@pytest.mark.parametrize("as_tuple", [None, ("x", "weight")])
def test_parts_of_a_mixture_have_their_own_ids(tmp_path, as_tuple):
    class Bare(Recorder):
        def training_step(self, batch, batch_idx):
            x = batch["x"] if as_tuple is None else batch[0]
            return self.layer(x).mean()

    data = SequenceDataModule(
        train={"a": sequences(9), "b": sequences(5, 1)}, as_tuple=as_tuple,
        batching=Mix({"a": 0.5, "b": 0.5}, Bucketed(2), batches=32), seed=0,
    )  # fmt: skip
    fit(data, model=Bare(), callbacks=(LossRecord(tmp_path),), max_epochs=1)
    assert set(parts_in(tmp_path)) == {("a", i) for i in range(9)} | {("b", i) for i in range(5)}


def test_zipped_parts_are_recorded_each(tmp_path):
    class Both(Recorder):
        def training_step(self, batch, batch_idx):
            each = {name: part["x"].mean((1, 2)) for name, part in batch.items()}
            return {"loss": self.layer.weight.sum() + each["a"].sum(), "losses": each}

    data = SequenceDataModule(
        train={"a": sequences(8), "b": sequences(5, 1)}, seed=0,
        batching=Zip({"a": Bucketed(2), "b": Bucketed(1)}, lead="a"),
    )  # fmt: skip
    fit(data, model=Both(), callbacks=(LossRecord(tmp_path, "losses"),), max_epochs=2)
    found = parts_in(tmp_path)
    assert set(found) == {("a", i) for i in range(8)} | {("b", i) for i in range(5)}
    assert len(found) == 2 * (8 + 4)


def test_a_bad_sequence_of_a_real_run_is_named_first(tmp_path):
    draws = np.random.default_rng(0)
    given = [draws.normal(size=(draws.integers(3, 12), 1)).astype("f4") for _ in range(300)]
    given[123] += 30
    data = SequenceDataModule(train=given, batching=Bucketed(8), seed=1)
    record = LossRecord(tmp_path, "losses")
    with quietly():
        trainer = pl.Trainer(**{**QUIET, "enable_checkpointing": False}, max_epochs=2,
                             callbacks=[record])  # fmt: skip
        trainer.fit(RowLosses(1e-4), data)
    losses = LossFiles.open([tmp_path])
    table = StepLosses.read(losses)
    worst, second = explain_steps(losses, table, table.find_worst(2), 1)
    for report in (worst, second):
        assert (report.suspects[0].id, report.suspects[0].draws) == (123, 2)
        assert report.stands_out
        assert report.is_explained


@pytest.mark.filterwarnings("ignore:.*returned `None`")
def test_a_step_that_returns_nothing_is_not_recorded(tmp_path):
    class Skipping(Recorder):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) if batch_idx % 2 else None

    fit(data_of(), model=Skipping(), callbacks=(LossRecord(tmp_path),), max_epochs=1)
    numbers = [
        int(number)
        for block in LossFiles.open([tmp_path]).iterate_blocks()
        for number in block.numbers
    ]
    assert numbers == [1, 3, 5]


def test_a_fit_of_a_few_steps_for_debugging_writes_nothing(tmp_path):
    fit(data_of(), callbacks=(LossRecord(tmp_path),), fast_dev_run=2)
    assert not list(tmp_path.iterdir())


def test_without_a_log_folder_it_asks_for_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError,
        match=r"LossRecord: `folder` must be given, since the Trainer has no log folder, but is "
        r"None. Pass a folder, or a logger to the Trainer",
    ):
        fit(data_of(), callbacks=(LossRecord(),), max_epochs=1, default_root_dir=None)


def test_a_score_that_is_not_returned_ends_the_first_step(tmp_path):
    with pytest.raises(ConfigError, match=r"LossRecord: `score` must be a key .*\('loss'\)"):
        fit(data_of(), callbacks=(LossRecord(tmp_path, "losses"),), max_epochs=1)


def test_a_loader_without_ids_is_refused(tmp_path):
    class Bare(Recorder):
        def training_step(self, batch, batch_idx):
            return self.layer(batch).mean()

    trainer = pl.Trainer(
        **{**QUIET, "enable_checkpointing": False},
        max_epochs=1,
        callbacks=[LossRecord(tmp_path)],
    )
    loader = torch.utils.data.DataLoader(torch.ones(4, 1, dtype=torch.float64))
    with (
        quietly(),
        pytest.raises(ConfigError, match="LossRecord: the batch must be a SequenceBatch"),
    ):
        trainer.fit(Bare(), loader)


def test_a_folder_that_cannot_be_written_is_warned_of_once(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.warns(
            SeqDataWarning, match=r"LossRecord: 6 batches could not be written to .*file/in, and"
        ),
        pytest.warns(SeqDataWarning, match=r"LossRecord: losses cannot be written to .*Training"),
    ):
        run = fit(
            data_of(), callbacks=(LossRecord(tmp_path / "file" / "in", every=1),), max_epochs=1
        )
    assert run.error is None
    assert len(run.log.train) == 6


def test_what_is_kept_between_writes_is_bounded(tmp_path, monkeypatch):
    held = []
    take = loss_record.ScoreCollector.take_batches
    monkeypatch.setattr(
        loss_record.ScoreCollector,
        "take_batches",
        lambda self: held.append(len(self)) or take(self),
    )
    fit(data_of(), callbacks=(LossRecord(tmp_path, every=4),), max_epochs=3)
    assert held == [4, 4, 4, 4, 2]


@pytest.mark.parametrize("every", [0, -1, 1.5, "2", None])
def test_every_is_a_number_of_batches(every):
    with pytest.raises(ConfigError, match="LossRecord: `every` must be an integer of at least 1"):
        LossRecord(every=every)


@pytest.mark.parametrize("folder", ["s3://bucket/run", 3])
def test_the_folder_is_one_of_this_machine(folder):
    with pytest.raises(ConfigError, match="LossRecord: `folder` must be a folder of this machine"):
        LossRecord(folder)
