"""Fits that resume with other parts of a mixture: exact, replayed, and refused with the reason."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from seqdata.api import write_store
from seqdata.errors import ConfigError, PlanError, ResumeError, SeqDataWarning
from seqdata.lightning.callbacks.feedback import Feedback
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.policies.fixed import Bucketed
from seqdata.policies.mix import Mix
from seqdata.policies.segments import Segments
from seqdata.runs.locate_batch import ReplayRequest, remake_batch
from seqdata.runs.replay import open_replay
from seqdata.runs.run_file import NAME
from tests.lightning import crashing
from tests.lightning.feeding import Feeding
from tests.lightning.harness import QUIET, fit, quietly, sequences

WARNED = "the mixture has changed: 'c' was added, 'b' was removed"
CHANGES = pytest.mark.filterwarnings(
    "ignore:.*the mixture has changed.*:seqdata.errors.SeqDataWarning"
)
NEXT = {"on_changed": "next_segment"}


def told(batch):
    """Return all that a batch says, bit by bit, and where it is from."""
    return {**crashing.told(batch), "part": (batch.part, batch.part_epoch)}


class Keeping(Feeding):
    """Keeps what each batch says, by epoch and number."""

    def __init__(self):
        super().__init__()
        self.kept = {}

    def training_step(self, batch, batch_idx):
        self.kept[batch.epoch, batch.number] = told(batch)
        return super().training_step(batch, batch_idx)


def data(names="ab", folder=None, policy=None, **options):
    parts = {name: sequences(count, count) for name, count in zip("abc", (9, 14, 5), strict=True)}
    train = {name: parts[name] for name in names}
    if folder is not None:
        for name, part in train.items():
            if not (folder / name).exists():
                write_store(folder / name, ({"x": x} for x in part))
        train = {name: str(folder / name) for name in names}
    mix = Mix(dict.fromkeys(names, 1), Bucketed(2), batches=20, batches_per_update=2)
    return SequenceDataModule(train=train, batching=policy or Segments(mix, 8), seed=3, **options)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    fit(data(), folder=folder, every=1, max_epochs=2, model=Keeping())
    return folder


@pytest.mark.parametrize(
    ("step", "first", "steps", "text"),
    [
        (5, (0, 8), 12 + 20, "Batches 5 to 7 of epoch 0 are dropped"),
        (8, (0, 8), 12 + 20, "No batch is dropped. It continues at batch 8 of epoch 0"),
        (17, (1, 0), 20, "Batches 17 to 19 of epoch 0 are dropped"),
        (20, (1, 0), 20, "No batch is dropped. It continues at batch 0 of epoch 1"),
        (29, (1, 16), 4, "Batches 9 to 15 of epoch 1 are dropped"),
    ],
)
def test_a_fit_continues_where_the_next_segment_begins(checkpoints, step, first, steps, text):
    with pytest.warns(SeqDataWarning, match=rf"{WARNED}\. {text}"):
        run = fit(
            data("ac", **NEXT), ckpt=checkpoints / f"step={step}.ckpt", max_epochs=2,
            model=Keeping(),
        )  # fmt: skip
    assert next(iter(run.model.kept)) == first
    assert len(run.model.kept) == steps
    assert run.log.steps[-1] == (1, 19)  # the Trainer counts as the data does
    assert {batch["part"][0] for batch in run.model.kept.values()} == {"a", "c"}


@CHANGES
def test_a_fit_resumes_exactly_after_a_change_and_is_replayed(checkpoints, tmp_path):
    options = {"folder": tmp_path, **NEXT}
    changed = data("ac", **options)
    whole = fit(
        changed, ckpt=checkpoints / "step=5.ckpt", folder=tmp_path / "saved", every=1, max_epochs=2,
        model=Keeping(),
    )  # fmt: skip
    kept = whole.model.kept
    shutil.copy(NAME, "run.yaml")
    for epoch, number in list(kept)[::9]:
        assert replayed(epoch, number, "run.yaml") == kept[epoch, number]
        assert told(changed.replay(epoch=epoch, batch=number)) == kept[epoch, number]
    with pytest.raises(
        PlanError, match=r"before batch 8 of epoch 0, where other parts .* have beg"
    ):
        changed.replay(epoch=0, batch=3)
    with pytest.raises(PlanError, match="policy of the earlier run, or its run file"):
        replayed(0, 3, "run.yaml")
    later = data("ac", **options)
    rest = fit(later, ckpt=tmp_path / "saved" / "step=12.ckpt", max_epochs=2, model=Keeping())
    assert rest.model.kept == dict(list(kept.items())[7:])
    assert rest.model.parameters_of() == whole.model.parameters_of()
    assert replayed(1, 4, NAME) == kept[1, 4]
    again = fit(later, max_epochs=1, model=Keeping())  # another fit begins with epoch 0
    assert list(again.model.kept) == [(0, number) for number in range(20)]


def replayed(epoch, batch, path):
    found = open_replay(Path(path), ReplayRequest(epoch=epoch, batch=batch), "train")
    return told(remake_batch(found.engine, found.located))


@CHANGES
@pytest.mark.filterwarnings("ignore:.*weights of the saved run do not fit.*")
@pytest.mark.filterwarnings("ignore:.*inside an update.*:seqdata.errors.SeqDataWarning")
def test_feedback_continues_with_other_parts(tmp_path):
    def feed(names, ckpt=None, saves=None, **options):
        import lightning.pytorch as pl

        mix = Mix(dict.fromkeys(names, 1), Bucketed(2), batches=22)
        module = data(names, tmp_path, mix, batches_per_update=2, **options)
        model, callbacks = Keeping(), [Feedback("row_loss", 3)]
        if saves:
            callbacks.append(
                ModelCheckpoint(tmp_path / saves, "{step}", every_n_train_steps=1, save_top_k=-1)
            )
        with quietly():
            pl.Trainer(
                **{**QUIET, "enable_checkpointing": bool(saves)}, max_epochs=2, callbacks=callbacks,
                default_root_dir=".",
            ).fit(model, module, ckpt_path=ckpt)  # fmt: skip
        return model, module

    feed("ab", saves="before")
    with pytest.raises(ResumeError, match="'c' was added, 'b' was removed"):
        feed("ac", tmp_path / "before" / "step=4.ckpt")
    whole, module = feed("ac", tmp_path / "before" / "step=4.ckpt", "after", **NEXT)
    kept = whole.kept
    assert next(iter(kept)) == (0, 12)
    weights = torch.load(tmp_path / "after" / "step=12.ckpt")["SequenceDataModule"]["weights"]
    assert re.match(r"0:12:@[\d.]+,0\.0;0:18:", weights)
    rest, _ = feed("ac", tmp_path / "after" / "step=12.ckpt", **NEXT)
    assert rest.kept == {key: kept[key] for key in list(kept)[-len(rest.kept) :]}
    assert rest.parameters_of() == whole.parameters_of()
    for epoch, number in list(kept)[::7]:
        assert told(module.replay(epoch=epoch, batch=number)) == kept[epoch, number]


@CHANGES
def test_an_epoch_that_a_limit_ends_is_left_out_with_its_rest(checkpoints):
    run = fit(
        data("ac", **NEXT), ckpt=checkpoints / "step=5.ckpt", max_epochs=2, model=Keeping(),
        limit_train_batches=0.4,
    )  # fmt: skip
    assert list(run.model.kept) == [(1, number) for number in range(8)]
    state = run.data.state_dict()
    assert state["weights"].startswith("1:0:@")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ResumeError, "resume: the mixture has changed since the state was saved: 'c' was "
         "added, 'b' was removed. Restore what changed, or pass on_changed='next_segment' .* or "
         "on_changed='next_epoch' .*, or fit without `ckpt_path`"),
        ({"policy": Mix({"a": 1, "c": 1}, Bucketed(2)), **NEXT}, ConfigError,
         r"datamodule: `batching` with `on_changed='next_segment'` must be segments of a mixture"),
        ({"trainer": {"overfit_batches": 4}, **NEXT}, ConfigError,
         "`on_changed='next_segment'` must be without `overfit_batches`"),
    ],
)  # fmt: skip
def test_what_cannot_continue_is_refused_before_the_first_batch(
    checkpoints, options, error, message
):
    trainer = options.get("trainer", {})
    module = data("ac", **{name: value for name, value in options.items() if name != "trainer"})
    with pytest.raises(error, match=message):
        fit(module, ckpt=checkpoints / "step=5.ckpt", max_epochs=2, model=Keeping(), **trainer)


@CHANGES
def test_both_remedies_help(checkpoints):
    run = fit(
        data("ac", on_changed="next_epoch"), ckpt=checkpoints / "step=5.ckpt", max_epochs=2,
        model=Keeping(),
    )  # fmt: skip
    assert list(run.model.kept) == [(1, number) for number in range(20)]
