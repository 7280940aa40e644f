"""A run that stops and goes on is the run that did not stop: the real Trainer, at every step."""

import itertools
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from tests.lightning.harness import Recorder, data_of, fit, sequences
from tests.lightning.resuming import assert_goes_on, count_steps, list_checkpoints

STEPS = 6  # of an epoch of data_of()

WAYS = {
    "max_epochs": {"max_epochs": 3},
    "max_steps": {"max_steps": 15, "max_epochs": -1},
    "limit": {"max_epochs": 3, "limit_train_batches": 4},
    "fraction": {"max_epochs": 3, "limit_train_batches": 0.7},
    "val_interval": {"max_epochs": 3, "val_check_interval": 2},
    "val_steps": {"max_epochs": 3, "val_check_interval": 5, "check_val_every_n_epoch": None},
    "accumulate": {"max_epochs": 3, "accumulate_grad_batches": 4},
    "reload": {"max_epochs": 3, "reload_dataloaders_every_n_epochs": 1, "num_sanity_val_steps": 2},
    "every_second_val": {"max_epochs": 4, "check_val_every_n_epoch": 2},
}


# Updates whose checkpoints are gone on with at every change: the first, and others in, at and
# behind ends of epochs, validations and limits. At night, and with "accumulate", all of them.
PLACES = {
    "max_epochs": {1, 3, 5, 6, 7, 12, 17},
    "max_steps": {1, 6, 11},
    "limit": {1, 4, 7},
    "fraction": {1, 4, 7},
    "val_interval": {1, 2, 6, 11},
    "val_steps": {1, 5, 6, 10, 12},
    "reload": {1, 6, 11},
    "every_second_val": {6, 12, 17},
}


@pytest.mark.parametrize(
    ("way", "places"),
    [(way, PLACES.get(way)) for way in WAYS]
    + [pytest.param(way, None, marks=pytest.mark.nightly) for way in PLACES],
)
@pytest.mark.slow
def test_every_step_is_a_place_to_go_on(way, places, tmp_path):
    whole = fit(data_of(), folder=tmp_path, every=1, **WAYS[way])
    saved = list_checkpoints(tmp_path)
    assert len(saved) == whole.trainer.global_step
    per_epoch = whole.trainer.num_training_batches
    for path in saved[:-1]:
        step = int(path.stem.split("=")[1])
        if places is not None and step not in places:
            continue
        rest = fit(data_of(), ckpt=path, **WAYS[way])
        rest.first_step = step
        assert_goes_on(whole, rest, count_steps(path), per_epoch=per_epoch)


OTHER_TRANSFORM = "ignore:resume. `transform` was .*:seqdata.errors.SeqDataWarning"
MID_UPDATE = "ignore:.*inside an update.*:seqdata.errors.SeqDataWarning"
"""A resumed ModelCheckpoint saves once before its first update, as if it had not done so before."""


@pytest.mark.filterwarnings(MID_UPDATE)
@pytest.mark.parametrize(
    ("way", "firsts"),
    [
        ("max_steps", {6, 11}),
        ("accumulate", None),
        pytest.param("max_steps", None, marks=pytest.mark.nightly),
        pytest.param("max_epochs", None, marks=pytest.mark.nightly),
        pytest.param("limit", None, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.slow
def test_a_run_may_stop_twice_anywhere(way, firsts, tmp_path):
    options = WAYS[way]
    whole = fit(data_of(), folder=tmp_path / "whole", every=1, **options)
    per_epoch = whole.trainer.num_training_batches
    around = {step for end in (per_epoch, 2 * per_epoch) for step in range(end - 1, end + 2)}
    for path in list_checkpoints(tmp_path / "whole")[:-1]:
        if count_steps(path) not in (firsts or {1, *around}):
            continue
        folder = tmp_path / path.stem
        fit(data_of(), ckpt=path, folder=folder, every=1, **options)
        for again in list_checkpoints(folder)[:-1]:
            if count_steps(again) % STEPS % options.get("accumulate_grad_batches", 1):
                continue
            rest = fit(data_of(), ckpt=again, **options)
            rest.first_step = int(again.stem.split("=")[1])
            assert_goes_on(whole, rest, count_steps(again), per_epoch=per_epoch)


@pytest.mark.filterwarnings(MID_UPDATE)
@pytest.mark.slow
def test_last_batches_may_be_resumed_from_three_times_in_a_row(tmp_path):
    options = {"max_epochs": 5, "accumulate_grad_batches": 4, "val_check_interval": 1.0}
    whole = fit(data_of(), **options)
    updates = 2  # of an epoch of 6 steps: 4 and 2
    path = None
    for epoch in range(3):
        folder = tmp_path / str(epoch)
        fit(
            data_of(),
            ckpt=path,
            folder=folder,
            every=updates,
            **{**options, "max_epochs": epoch + 1},
        )
        (path,) = folder.glob(f"step={updates * (epoch + 1)}.ckpt")
    rest = fit(data_of(), ckpt=path, **options)
    rest.first_step = updates * 3
    assert_goes_on(whole, rest, 3 * STEPS, per_epoch=STEPS)
    assert rest.log.validations() == [6, 8, 10]  # the first of them was due when it was saved


@pytest.mark.parametrize(
    ("way", "epoch_end"),  # or at the end of validation
    [
        ("max_epochs", True),
        ("max_steps", False),
        ("val_interval", True),
        ("limit", False),
        *(
            pytest.param(*one, marks=pytest.mark.nightly)
            for one in (
                ("max_epochs", False),
                ("max_steps", True),
                ("val_interval", False),
                ("limit", True),
            )
        ),
    ],
)
@pytest.mark.slow
def test_checkpoints_of_epoch_and_validation_ends_go_on(way, epoch_end, tmp_path):
    def keeping(folder: Path) -> tuple[ModelCheckpoint]:
        saving = {"save_top_k": -1, "save_on_train_epoch_end": epoch_end}
        return (ModelCheckpoint(dirpath=folder, filename="{step}", **saving),)

    options = {**WAYS[way], "enable_checkpointing": True}
    whole = fit(data_of(), callbacks=keeping(tmp_path / "whole"), **options)
    per_epoch = whole.trainer.num_training_batches
    saved = list_checkpoints(tmp_path / "whole")
    assert len(saved) > 1
    for path in saved[:-1]:
        folder = tmp_path / path.stem
        rest = fit(data_of(), ckpt=path, callbacks=keeping(folder), **options)
        rest.first_step = int(path.stem.split("=")[1])
        assert_goes_on(whole, rest, count_steps(path), per_epoch=per_epoch)
        for again in list_checkpoints(folder)[:-1]:
            last = fit(data_of(), ckpt=again, **options)
            last.first_step = int(again.stem.split("=")[1])
            assert_goes_on(whole, last, count_steps(again), per_epoch=per_epoch)


@pytest.mark.parametrize(
    ("way", "steps"),
    [
        ("max_epochs", (1, 5, 6, 17)),
        ("max_steps", (6, 13)),
        ("limit", (3, 4)),
        *(
            pytest.param(way, range(1, last), marks=pytest.mark.nightly)
            for way, last in (("max_epochs", 18), ("max_steps", 15), ("limit", 12))
        ),
    ],
)
@pytest.mark.slow
def test_a_batch_whose_step_failed_is_trained_again(way, steps, tmp_path):
    options = WAYS[way]
    whole = fit(data_of(), **options)
    per_epoch = whole.trainer.num_training_batches
    assert steps[-1] < len(whole.log.train)
    for failing in steps:
        folder = tmp_path / str(failing)
        cut = fit(data_of(), model=Recorder(fail_at=failing), folder=folder, every=100, **options)
        assert str(cut.error) == "told to fail"
        (path,) = folder.glob(f"step={failing}.ckpt")
        rest = fit(data_of(), ckpt=path, **options)
        rest.first_step = failing
        begun = [epoch for epoch in cut.log.epochs if epoch * per_epoch == failing]
        rest.log.epochs[:0] = begun  # the failing batch was the epoch's first
        assert_goes_on(whole, rest, failing, per_epoch=per_epoch)


@pytest.mark.parametrize("way", ["max_epochs", "val_steps"])
def test_a_run_whose_step_failed_goes_on_from_every_later_checkpoint(way, tmp_path):
    options = WAYS[way]
    whole = fit(data_of(), **options)
    model = Recorder(fail_at=3)
    fit(data_of(), model=model, folder=tmp_path / "0", every=100, **options)
    (path,) = (tmp_path / "0").glob("*.ckpt")
    resumed = fit(data_of(), ckpt=path, folder=tmp_path / "1", every=1, **options)
    resumed.first_step = 3
    assert_goes_on(whole, resumed, count_steps(path), per_epoch=STEPS)
    for again in list_checkpoints(tmp_path / "1"):
        total = torch.load(again)["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]
        assert total["ready"] == total["started"] == total["processed"] == count_steps(again)
    for again in list_checkpoints(tmp_path / "1")[:-1:3]:
        rest = fit(data_of(), ckpt=again, **options)
        rest.first_step = int(again.stem.split("=")[1])
        assert_goes_on(whole, rest, count_steps(again), per_epoch=STEPS)


class Skipping(Recorder):
    """Ends its first epoch at the fourth batch."""

    def on_train_batch_start(self, batch, batch_idx):
        return -1 if (batch.epoch, batch_idx) == (0, 3) else None


def test_a_run_that_ended_an_epoch_early_goes_on_from_every_later_checkpoint(tmp_path):
    whole = fit(data_of(), model=Skipping(), folder=tmp_path, every=1, max_epochs=2)
    saved = list_checkpoints(tmp_path)[4:-1:2]
    assert saved
    for path in saved:
        rest = fit(data_of(), model=Skipping(), ckpt=path, max_epochs=2)
        assert rest.log.train == whole.log.train[int(path.stem.split("=")[1]) :]
        assert rest.model.parameters_of() == whole.model.parameters_of()


@pytest.mark.parametrize("every", [2, 1.0])
@pytest.mark.parametrize("failing", [0, 1])
def test_a_validation_that_failed_is_run_again_as_a_whole(every, failing, tmp_path):
    options = {"max_epochs": 2, "val_check_interval": every}
    whole = fit(data_of(), **options)
    model = Recorder(fail_in_val=failing)
    cut = fit(data_of(), model=model, folder=tmp_path, every=100, **options)
    assert "validation" in str(cut.error)
    (path,) = tmp_path.glob("*.ckpt")
    rest = fit(data_of(), ckpt=path, **options)
    assert rest.log.val == whole.log.val
    assert cut.log.train + rest.log.train == whole.log.train
    assert cut.log.epochs + rest.log.epochs == whole.log.epochs
    assert rest.model.parameters_of() == whole.model.parameters_of()
    assert rest.trainer.current_epoch == whole.trainer.current_epoch


@pytest.mark.parametrize("every", [2, 1.0])
@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.slow
@pytest.mark.filterwarnings(OTHER_TRANSFORM)
def test_a_validation_whose_data_failed_is_run_again_as_a_whole(every, first, tmp_path):
    options = {"max_epochs": 2, "val_check_interval": every}
    lengths = [2, 2, 3, 3, 4]
    bad = [[[1.0 + (length == lengths[first])]] * length for length in lengths]
    whole = fit(data_of(val=bad), **options)
    cut = fit(data_of(val=bad, transform=Failing(2.0)), folder=tmp_path, every=100, **options)
    assert "told to fail" in str(cut.error)
    (path,) = tmp_path.glob("*.ckpt")
    rest = fit(data_of(val=bad), ckpt=path, **options)
    assert rest.log.val == whole.log.val
    assert cut.log.train + rest.log.train == whole.log.train
    assert rest.model.parameters_of() == whole.model.parameters_of()


AT_EVERY_CHANGE = {
    (6, True, "max_epochs"), (12, False, "max_epochs"), (6, False, "max_steps"),
    (8, True, "max_steps"), (4, False, "val_interval"), (12, True, "val_interval"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("stop", "late", "way"),
    [
        pytest.param(*one, marks=() if one in AT_EVERY_CHANGE else pytest.mark.nightly)
        for one in itertools.product(
            (4, 6, 8, 12), (True, False), ("max_epochs", "max_steps", "val_interval")
        )
    ],
)
def test_a_run_that_reached_its_steps_may_be_given_more(way, late, stop, tmp_path):
    """Lightning closes the epoch in which it stops; it is opened again."""
    whole = fit(data_of(), **WAYS[way])
    saving = () if late else (ModelCheckpoint(dirpath=tmp_path, save_on_train_epoch_end=True),)
    short = {**WAYS[way], "max_epochs": -1, "max_steps": stop, "enable_checkpointing": True}
    cut = fit(data_of(), callbacks=saving, **short)
    if late:
        cut.trainer.save_checkpoint(tmp_path / "after.ckpt")
    (path,) = tmp_path.glob("*.ckpt")
    rest = fit(data_of(), ckpt=path, **WAYS[way])
    rest.first_step = stop
    assert_goes_on(whole, rest, stop, per_epoch=STEPS)


class Failing:
    """A transform that fails once, at the sequence with this first value."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self, sequence, rng):
        if sequence["x"][0, 0] == self.value:
            raise OSError("told to fail")
        return sequence


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.filterwarnings(OTHER_TRANSFORM)
def test_a_batch_that_could_not_be_read_is_the_one_to_go_on_with(prefetch, tmp_path):
    whole = fit(data_of(prefetch=prefetch), max_epochs=2)
    cut = {"transform": Failing(sequences(23)[12][0, 0]), "prefetch": prefetch}
    failed = fit(data_of(**cut), folder=tmp_path, every=100, max_epochs=2)
    assert "told to fail" in str(failed.error)
    (path,) = tmp_path.glob("*.ckpt")
    rest = fit(data_of(prefetch=prefetch), ckpt=path, max_epochs=2)
    assert failed.log.train + rest.log.train == whole.log.train
    assert 12 in rest.log.train[0][2]
