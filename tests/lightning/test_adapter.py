"""Lightning's private counters are where we read them; the first test to fail when they move."""

import ast
import csv
import inspect
import signal
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from seqdata.errors import SeqDataWarning
from seqdata.lightning import adapter
from seqdata.lightning.adapter import Counters, Tracker
from seqdata.sharing import World
from tests.lightning.harness import QUIET, Recorder, data_of, fit, quietly, sequences
from tests.runs.run_files import read_run_file


@pytest.mark.filterwarnings("ignore:.*is a time of 1 seconds:seqdata.errors.SeqDataWarning")
def test_every_attribute_that_is_set_on_a_trainer_is_lightnings():
    """A name that Lightning does not have is taken without a word, and has no effect."""
    tree = ast.parse(inspect.getsource(adapter))
    targets = [
        target
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AugAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    names = {target.attr for target in targets if isinstance(target, ast.Attribute)}
    trainer = fit(data_of(8), max_epochs=1, val_check_interval="00:00:00:01").trainer
    loop = trainer.fit_loop
    owners = (
        trainer, trainer.state, loop, loop.epoch_loop, loop.epoch_loop.val_loop,
        loop.epoch_loop._results, loop.epoch_progress.current,
        loop.epoch_loop.batch_progress.total, Callback, ModelCheckpoint(),
    )  # fmt: skip
    assert len(names) >= 8
    assert not [name for name in names if not any(hasattr(owner, name) for owner in owners)]


class Reading(Callback):
    """Reads the counters at three hooks of each step."""

    def __init__(self):
        self.read = []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.read.append(("start", adapter.read_counters(trainer)))

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.read.append(("end", adapter.read_counters(trainer)))

    def on_validation_start(self, trainer, module):
        self.read.append(("validation", adapter.read_counters(trainer)))


def test_lightnings_counters_mean_what_they_meant():
    reading = Reading()
    fit(data_of(8), max_epochs=2, callbacks=(reading,))
    of_epoch = [
        ("start", Counters(ready=1, processed=0, total=2, is_last=False, steps=2)),
        ("end", Counters(ready=1, processed=1, total=3, is_last=False, steps=2)),
        ("start", Counters(ready=2, processed=1, total=3, is_last=True, steps=2)),
        ("end", Counters(ready=2, processed=2, total=4, is_last=True, steps=2)),
        ("validation", Counters(ready=2, processed=2, total=4, is_last=True, steps=2)),
    ]
    assert reading.read[5:] == of_epoch


def test_the_loop_states_of_a_checkpoint_are_where_they_were(tmp_path):
    fit(data_of(), folder=tmp_path, every=1, max_epochs=1)
    states = adapter.loop_states(torch.load(tmp_path / "step=2.ckpt"))
    assert states.epochs["current"] == tracker(1, 1, 0, 0)
    assert states.batches["current"] == states.batches["total"] == tracker(2, 2, 2, 1)
    assert states.batches["is_last_batch"] is False
    assert states.validation["current"] == tracker(0, 0, 0, 0)


def tracker(ready: int, started: int, processed: int, completed: int) -> Tracker:
    return {"ready": ready, "started": started, "processed": processed, "completed": completed}


def test_only_what_the_running_loop_draws_is_drawn():
    drawn, looked = [], []

    class Looking(Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            drawn.extend(adapter.get_active_iterators(trainer))
            looked.extend(iter(one) for one in (trainer.train_dataloader, trainer.val_dataloaders))

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            assert all(adapter.is_drawn_from(trainer, one) for one in drawn[-1:])
            assert not any(adapter.is_drawn_from(trainer, one) for one in looked)

        def on_validation_batch_start(self, trainer, module, batch, batch_idx, dataloader_idx=0):
            assert not adapter.is_drawn_from(trainer, drawn[-1])
            (running,) = adapter.get_active_iterators(trainer)
            assert adapter.is_drawn_from(trainer, running)
            assert not adapter.is_trained_from(trainer, running)
            assert running.loader is trainer.val_dataloaders

    data = data_of()
    fit(data, max_epochs=1, callbacks=(Looking(),), num_sanity_val_steps=0)
    assert len(set(map(id, drawn))) == 1
    assert len(drawn) == 6
    assert adapter.get_active_iterators(pl.Trainer(**QUIET, max_epochs=1)) == ()


@pytest.mark.parametrize(
    ("call", "stage"),
    [("validate", "validation"), ("test", "test"), ("predict", "prediction")],
)
def test_an_evaluation_goes_on_until_its_last_batch_is_done(call, stage):
    seen = []

    def look(trainer):
        seen.append((adapter.is_in_evaluation(trainer), adapter.get_stage(trainer)))

    class Looking(Callback):
        pass

    for name in ("start", "batch_start", "batch_end", "epoch_end"):
        hook = {"validate": "validation"}.get(call, call)
        setattr(Looking, f"on_{hook}_{name}", lambda self, trainer, *_, **__: look(trainer))
    data = data_of(val=[[[0.5]] * 3] * 3, test=sequences(3), predict=sequences(3))
    with quietly():
        trainer = pl.Trainer(**QUIET, max_epochs=1, callbacks=[Looking()])
        getattr(trainer, call)(Recorder(), datamodule=data)
    assert [inside for inside, _ in seen[1:-1]] == [True] * 4  # two batches, begun and ended
    assert not seen[-1][0]
    assert {what for _, what in seen} == {stage}


def test_one_device_is_a_world_of_one():
    assert adapter.get_world(pl.Trainer(**QUIET, max_epochs=1)) == World(0, 1)


def test_a_strategy_that_splits_rows_in_time_says_which_part():
    trainer = pl.Trainer(**QUIET, max_epochs=1, strategy="ddp")
    trainer.strategy.time_part = (1, 2)
    assert adapter.get_world(trainer) == World(0, 1, 1, 2)


def test_logs_have_a_folder_where_they_lie_on_this_machine(tmp_path):
    options = {**QUIET, "max_epochs": 1}
    assert adapter.get_log_folder(pl.Trainer(**options, default_root_dir=tmp_path)) == tmp_path
    assert adapter.get_log_folder(pl.Trainer(**options, default_root_dir="memory://logs")) is None


class NamesTheWorkingFolder(CSVLogger):
    """As loggers of services do by default."""

    save_dir = log_dir = root_dir = "."


def test_a_run_has_a_folder_where_one_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert adapter.get_run_folder(pl.Trainer(**QUIET)) is None
    assert (
        adapter.get_run_folder(pl.Trainer(**QUIET, default_root_dir=tmp_path / "run")) is not None
    )
    assert adapter.get_run_folder(pl.Trainer(**QUIET, default_root_dir=".")) == Path(".")
    logged = {**QUIET, "logger": NamesTheWorkingFolder(tmp_path)}
    assert adapter.get_run_folder(pl.Trainer(**logged)) is None
    logged = {**QUIET, "logger": CSVLogger(tmp_path, name="runs", version=1)}
    assert adapter.get_run_folder(pl.Trainer(**logged)) == tmp_path / "runs" / "version_1"


def test_a_fit_without_a_folder_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = data_of()
    with quietly():
        pl.Trainer(**QUIET, max_epochs=1, enable_checkpointing=False).fit(Recorder(), data)
    assert list(tmp_path.iterdir()) == []
    assert data.replay_command(epoch=0, batch=1) == "data.replay(epoch=0, batch=1)"
    assert adapter.get_log_folder(None) is None


def test_a_run_is_in_a_step_from_its_batch_to_its_end():
    seen = []

    class Looking(Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            seen.append(adapter.is_in_step(trainer))

        def on_validation_batch_start(self, trainer, module, batch, batch_idx):
            seen.append(adapter.is_in_step(trainer))

    run = fit(data_of(8), max_epochs=1, callbacks=(Looking(),))
    assert seen == [True, True, False, False, False]
    assert not adapter.is_in_step(run.trainer)


def test_without_a_trainer_the_process_group_tells_the_world():
    assert adapter.get_world(None) == World.current() == World(0, 1)


def test_limits_are_counted_as_lightning_counts_them():
    for limit in (1.0, 0.7, 0.34, 3, 99):
        run = fit(data_of(), max_epochs=1, limit_train_batches=limit)
        assert adapter.count_trained_steps(run.trainer, 6) == run.trainer.num_training_batches


def test_validation_by_the_clock_is_told_to_the_user_and_to_the_run_file(tmp_path):

    options = {"max_epochs": 1, "val_check_interval": "00:00:30:00", "log_every_n_steps": 1}
    with pytest.warns(
        SeqDataWarning, match=r"is a time of 1800 seconds: validation runs after oth"
    ):
        run = fit(data_of(), logger=CSVLogger(tmp_path), **options)
    assert run.log.train
    assert adapter.get_validation_seconds(run.trainer) == 1800
    (path,) = tmp_path.rglob("seqdata-run.yaml")
    told = read_run_file(path)["trainer"]["val_check_interval"]
    assert told == "1800 seconds"
    run = fit(data_of(val=None), **options)  # nothing is validated: no warning
    assert adapter.get_validation_seconds(run.trainer) is None


def test_our_callback_is_attached_once_and_taken_off():
    data = data_of()
    run = fit(data, max_epochs=1)
    assert not [one for one in run.trainer.callbacks if type(one).__name__ == "CounterRepair"]
    callback = Reading()
    adapter.attach(run.trainer, callback)
    adapter.attach(run.trainer, callback)
    assert run.trainer.callbacks.count(callback) == 1
    adapter.detach(run.trainer, callback)
    assert callback not in run.trainer.callbacks


class Logging(Callback):
    """Logs at each step what Lightning writes at some, and at once where it will."""

    def __init__(self):
        self.will = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        module.log("lightning", float(batch_idx))
        if adapter.is_logging_step(trainer):
            self.will.append(batch_idx)
            adapter.log_now(trainer, {"ours": float(batch_idx)})


def test_lightning_writes_logs_where_we_say_so_and_we_at_the_same_step(tmp_path):
    for accumulate, expected in ((1, [1, 3, 5]), (2, [3])):
        logging, folder = Logging(), tmp_path / str(accumulate)
        fit(
            data_of(val=None), max_epochs=1, callbacks=(logging,), log_every_n_steps=2,
            accumulate_grad_batches=accumulate, logger=CSVLogger(folder, name="", version=""),
        )  # fmt: skip
        assert logging.will == expected
        table = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
        written = {
            name: [(row["step"], float(row[name])) for row in table if row[name]]
            for name in ("lightning", "ours")
        }
        assert written["ours"] == written["lightning"]
        assert [value for _, value in written["ours"]] == expected


class Noting(Callback):
    """Notes what a Trainer does about an exception, from the second callback on."""

    def __init__(self, told, *, raises=False):
        self.told, self.raises = told, raises

    def on_exception(self, trainer, module, exception):
        self.told.append(("callback", str(exception)))
        if self.raises:
            raise OSError("disk full")


class Noted(CSVLogger):
    """Notes how it ended."""

    def __init__(self, folder, told):
        super().__init__(folder)
        self.told = told

    def finalize(self, status):
        self.told.append(("logger", status))


class Instead(Callback):
    """Raises another exception in place of one."""

    def on_exception(self, trainer, module, exception):
        self.others = adapter.end_run(trainer, exception, after=self)
        raise LookupError("in its place") from exception


def ended(folder, kind, *callbacks, told):
    """Let a fit fail; gives what it raised, and how the Trainer was left."""
    data = data_of()
    data.on_exception = lambda exception: told.append(("data", str(exception)))
    before = signal.getsignal(signal.SIGTERM)
    trainer = pl.Trainer(
        **{**QUIET, "logger": Noted(folder, told), "log_every_n_steps": 1}, max_epochs=1,
        callbacks=list(callbacks), enable_checkpointing=False,
    )  # fmt: skip
    trainer.strategy.on_exception = lambda exception: told.append(("strategy", str(exception)))
    with quietly(), pytest.raises(kind) as raised:
        trainer.fit(Recorder(fail_at=1), datamodule=data)
    assert signal.getsignal(signal.SIGTERM) == before
    return raised.value, (trainer.state.status, trainer.state.stage, trainer.interrupted)


def test_an_exception_that_another_one_replaces_ends_the_run_as_it_would_have_itself(tmp_path):
    plainly, replaced = [], []
    _, left = ended(tmp_path, OSError, Noting(plainly), told=plainly)
    error, left_too = ended(tmp_path, LookupError, Instead(), Noting(replaced), told=replaced)
    assert [kind for kind, _ in plainly] == ["callback", "data", "strategy", "logger"]
    assert (replaced, left_too) == (plainly, left)
    assert str(error.__cause__) == "told to fail"


def test_who_raises_when_a_run_is_ended_keeps_nobody_from_being_told(tmp_path):
    told, instead = [], Instead()
    ended(tmp_path, LookupError, instead, Noting(told, raises=True), Noting(told), told=told)
    assert [str(one) for one in instead.others] == ["disk full"]
    assert [kind for kind, _ in told] == ["callback", "callback", "data", "strategy", "logger"]
