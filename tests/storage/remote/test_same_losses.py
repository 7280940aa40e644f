"""The same training run from Arrow and tar shards, here and on S3: bitwise equal losses."""

import contextlib
import functools
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from seqdata_models import LSTMClassifier, StatefulTagger

from seqdata import (
    TBPTT,
    Bucketed,
    ResumeError,
    SequenceDataModule,
    SequenceIndex,
    open_store,
    write_store,
)

pytest.importorskip("seqdata_webdataset")

FORMATS = {"arrow": "arrow", "tar": "webdataset"}
PLACES = ["arrow here", "arrow on S3", "tar here", "tar on S3"]
KINDS = {"classifier": Bucketed(8), "tagger": TBPTT(4, 12)}
STEPS = {"classifier": 10, "tagger": 42}  # of two epochs
MIDDLE = 3  # steps after which a checkpoint is kept: in mid-epoch


def sequences(kind):
    rng = np.random.default_rng(3)
    for number, length in enumerate(rng.integers(1, 40, 40).tolist()):
        y = number % 3 if kind == "classifier" else rng.integers(0, 3, length)
        x = rng.normal(size=(length, 4)).astype(np.float32)
        yield {"id": f"utt-{number}", "x": x, "y": y}


@pytest.fixture(scope="module")
def written(s3, tmp_path_factory):
    """Kind and format -> a folder, whose copy lies in the bucket of the same name."""
    root, made = tmp_path_factory.mktemp("data"), {}
    for kind in KINDS:
        s3.mkdir(f"same-{kind}")
        for name, format in FORMATS.items():
            folder = root / kind / name
            write_store(folder, sequences(kind), format=format, shard_bytes=6_000)
            s3.put(f"{folder}/", f"same-{kind}/{name}/", recursive=True)
            made[kind, name] = folder
    return made


@pytest.fixture
def opened(written, remote):
    """Opens the data of a kind at a place."""

    def open_(kind, place):
        name, _, where = place.partition(" ")
        if where == "here":
            return open_store(written[kind, name])
        url = f"s3://same-{kind}/{name}"
        return open_store(url, backend=FORMATS[name], remote=remote())

    return open_


@dataclass
class Losses(Callback):
    """Keeps the loss of each step, bit for bit; and a checkpoint in mid-epoch."""

    keep: Path | None = None
    found: list[str] = field(default_factory=list)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.found.append(outputs["loss"].item().hex())
        if self.keep is not None and trainer.global_step == MIDDLE:
            trainer.save_checkpoint(self.keep)


def fit(kind, store, *, dropout, keep=None, resume=None, **options):
    """Train two epochs; gives the losses, and what is left in the end, as one comparable thing."""
    torch.manual_seed(0)
    make = LSTMClassifier if kind == "classifier" else StatefulTagger
    model, losses = make(4, 3, hidden=8, dropout=dropout), Losses(keep)
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=2, callbacks=[losses], logger=False, num_sanity_val_steps=0,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    policy = KINDS[kind]
    data = SequenceDataModule(
        train=store, val=store, batching=policy, eval_batching=policy, seed=5, **options
    )
    trainer.fit(model, data, ckpt_path=resume)
    left = torch.cat([one.detach().flatten() for one in model.parameters()])
    left = torch.cat([left, trainer.callback_metrics["val_loss"].reshape(1)])
    return losses.found, [one.hex() for one in left.tolist()]


@pytest.fixture(scope="module")
def one_thread(tmp_path_factory):
    """One thread; and a folder to stand in, where runs leave their files."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with contextlib.chdir(tmp_path_factory.mktemp("runs")):
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def must(written, one_thread):
    """Kind -> losses and parameters of the run from Arrow here, without workers."""
    return {kind: fit(kind, open_store(written[kind, "arrow"]), dropout=0.2) for kind in KINDS}


HERE = {  # each form, with and without workers
    ("classifier", "arrow on S3", 2),
    ("tagger", "tar on S3", 0),
}


def every_way():
    """Return kinds, places and workers; but for a few they are of the night."""
    for way in product(KINDS, PLACES, (0, 2)):
        yield pytest.param(*way, marks=[pytest.mark.nightly] * (way not in HERE))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "place", "workers"), list(every_way()))
def test_losses_are_bitwise_equal_wherever_the_data_lies(must, opened, kind, place, workers):
    losses, parameters = must[kind]
    assert len(set(losses)) == len(losses) == STEPS[kind]
    found = fit(kind, opened(kind, place), dropout=0.2, num_workers=workers)
    assert found == (losses, parameters)


@pytest.fixture(scope="module")
def begun(written, one_thread, tmp_path_factory):
    """Runs a kind from a format here; gives losses and parameters, and a checkpoint."""

    @functools.cache
    def run(kind, name):
        checkpoint = tmp_path_factory.mktemp(kind) / "middle.ckpt"
        store = open_store(written[kind, name])
        return fit(kind, store, dropout=0.0, keep=checkpoint), checkpoint

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("classifier", "tar"),
        ("tagger", "arrow"),
        pytest.param("classifier", "arrow", marks=pytest.mark.nightly),
        pytest.param("tagger", "tar", marks=pytest.mark.nightly),
    ],
)
def test_a_run_begun_here_goes_on_from_s3_in_mid_epoch(begun, opened, kind, name):
    (losses, parameters), checkpoint = begun(kind, name)
    store = opened(kind, f"{name} on S3")
    found, left = fit(kind, store, dropout=0.0, resume=checkpoint)
    assert found == losses[MIDDLE:]
    assert left == parameters


@pytest.mark.slow
def test_a_run_goes_on_from_another_form_only_with_its_next_epoch(begun, opened):
    """A digest is of the stored bytes' checksums: no data has to be read to know it."""
    (losses, _), checkpoint = begun("tagger", "arrow")
    store, arrow = opened("tagger", "tar on S3"), opened("tagger", "arrow here")
    assert store.keys([0, 39]) == arrow.keys([0, 39])
    text = (
        rf"resume: `data` was '{of(arrow)}', but is '{of(store)}'. A state continues only over the "
        r"same plan: restore what changed, pass on_changed='next_epoch' to begin the next epoch "
    )
    with pytest.raises(ResumeError, match=text):
        fit("tagger", store, dropout=0.0, resume=checkpoint)
    found, _ = fit("tagger", store, dropout=0.0, resume=checkpoint, on_changed="next_epoch")
    assert len(found) == len(losses) // 2


def of(store):
    return SequenceIndex.from_store(store).fingerprint
