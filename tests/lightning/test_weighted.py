"""Weighted and Curriculum under a Trainer: fits, resumes, evaluations, run files, LightningCLI."""

import os
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger

from seqdata import (
    TBPTT,
    Bucketed,
    Curriculum,
    Loader,
    SequenceDataModule,
    TokenBudget,
    Weighted,
    balanced,
    write_store,
)
from seqdata.errors import ConfigError, ResumeError
from seqdata.runs.locate_batch import ReplayRequest
from seqdata.runs.replay import open_replay
from seqdata.runs.run_file import NAME, RunFile
from tests.lightning.harness import QUIET, Recorder, sequences

pytestmark = [
    pytest.mark.filterwarnings("ignore:You defined a `validation_step`"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
]
COUNT = 60
LABELS = (np.arange(COUNT) % 12 == 0).astype(int)  # 5 of 60 are positive
WEIGHTS = 1.0 + np.arange(COUNT) % 4


@pytest.fixture
def store(tmp_path):
    rows = (
        {"x": x, "label": int(label), "weight": float(weight)}
        for x, label, weight in zip(sequences(COUNT), LABELS, WEIGHTS, strict=True)
    )
    write_store(tmp_path / "store", rows, axes={"x": "time", "label": None, "weight": None})
    return str(tmp_path / "store")


def fit(data, folder, *, ckpt_path=None, **options):
    model = Recorder()
    trainer = Trainer(
        **{"max_epochs": 2, "default_root_dir": folder, "enable_checkpointing": False,
           **QUIET, **options}
    )  # fmt: skip
    trainer.fit(model, data, ckpt_path=ckpt_path)
    return model, trainer


def drawn(model, epoch):
    return Counter(k for at, _, ids in model.log_of.train if at == epoch for k in ids)


def test_a_fit_draws_each_label_equally_often_and_validates_each_sequence_once(store, tmp_path):
    policy = Weighted(Bucketed(8), weights=balanced("label"), draws=80)
    data = SequenceDataModule(train=store, val=store, batching=policy)
    model, _ = fit(data, tmp_path)
    for epoch in range(2):
        found = drawn(model, epoch)
        assert sum(found.values()) == 80
        assert sum(found[k] for k in np.flatnonzero(LABELS)) == 40
        assert {found[k] for k in np.flatnonzero(LABELS)} == {8}
    assert len(model.log_of.train) == 2 * 10
    validated = Counter(k for _, ids in model.log_of.val for k in ids)
    assert validated == Counter(dict.fromkeys(range(COUNT), 2))


def test_a_fit_goes_on_in_the_middle_of_an_epoch(store, tmp_path):
    def data():
        return SequenceDataModule(train=store, batching=Weighted(Bucketed(8), "weight", 100))

    whole, _ = fit(data(), tmp_path)
    begun, trainer = fit(data(), tmp_path, max_steps=17)
    trainer.save_checkpoint(tmp_path / "middle.ckpt")
    rest, _ = fit(data(), tmp_path, ckpt_path=tmp_path / "middle.ckpt")
    assert begun.log_of.train + rest.log_of.train == whole.log_of.train
    assert rest.parameters_of() == whole.parameters_of()
    other = SequenceDataModule(train=store, batching=Weighted(Bucketed(8), "label", 100))
    with pytest.raises(ResumeError, match="policy"):
        fit(other, tmp_path, ckpt_path=tmp_path / "middle.ckpt")


def test_predictions_come_for_each_sequence_once(store):
    data = SequenceDataModule(predict=store, batching=Weighted(Bucketed(8), "weight", draws=300))
    predicted = Trainer(**QUIET).predict(Recorder(), data)
    assert sorted(k for batch in predicted for k in batch) == list(range(COUNT))


@pytest.mark.parametrize(
    "policy",
    [
        Curriculum(Weighted(Bucketed(8), "weight"), max_length=[(0, 9)]),
        Curriculum(Bucketed(8), max_length=[(0, 9)], segment=3),
    ],
    ids=["weights", "segments"],
)
def test_an_evaluation_of_some_sequences_is_refused(store, policy):
    data = SequenceDataModule(val=store, batching=Bucketed(8), eval_batching=policy)
    with pytest.raises(
        ConfigError, match="`eval_batching` must return each sequence once, but draws"
    ):
        Trainer(**QUIET).validate(Recorder(), data)


def test_overfitting_plays_the_inner_policy(store, tmp_path):
    data = SequenceDataModule(train=store, batching=Weighted(Bucketed(8), "weight", draws=300))
    model, _ = fit(data, tmp_path, overfit_batches=2)
    assert {len(set(ids)) for _, _, ids in model.log_of.train} == {8}


def test_epochs_that_vary_need_a_trainer_that_asks_in_each(store, tmp_path):
    for policy in (
        Weighted(TokenBudget(40), "weight"),
        Curriculum(Bucketed(8), max_length=[(0, 4), (1, None)]),
    ):
        data = SequenceDataModule(train=store, batching=policy, seed=3)
        with pytest.raises(ConfigError, match="reload_dataloaders_every_n_epochs=1"):
            fit(data, tmp_path)
        model, _ = fit(data, tmp_path, max_epochs=3, reload_dataloaders_every_n_epochs=1)
        loader = Loader(store, policy, seed=3, prefetch=0)
        due = [(batch.epoch, batch.number) for _ in range(3) for batch in loader]
        assert [(epoch, number) for epoch, number, _ in model.log_of.train] == due
    found = [max(ids) for epoch, _, ids in model.log_of.train if epoch == 0]
    assert found


def test_a_curriculum_of_draws_needs_no_such_trainer(store, tmp_path):
    policy = Curriculum(Weighted(Bucketed(8), "weight", draws=40), max_length=[(0, 4), (1, None)])
    model, _ = fit(SequenceDataModule(train=store, batching=policy), tmp_path)
    lengths = np.array([len(x) for x in sequences(COUNT)])
    longest = [max(lengths[k] for k in drawn(model, epoch)) for epoch in range(2)]
    assert longest == [4, 9]
    assert len(model.log_of.train) == 2 * 5


def test_a_curriculum_by_segments_needs_no_such_trainer_and_continues_anywhere(store, tmp_path):
    def data():
        rules = [(0, 4), (2, 6), (5, None)]
        policy = Curriculum(Bucketed(8), max_length=rules, segment=3)
        return SequenceDataModule(train=store, val=store, batching=policy)

    whole, _ = fit(data(), tmp_path, max_epochs=3)
    lengths = np.array([len(x) for x in sequences(COUNT)])
    longest = [max(lengths[k] for k in ids) for _, _, ids in whole.log_of.train]
    assert len(longest) == 3 * 8
    assert max(longest[:6]) == 4 < max(longest[6:15]) <= 6 < max(longest[15:])
    validated = Counter(k for _, ids in whole.log_of.val for k in ids)
    assert validated == Counter(dict.fromkeys(range(COUNT), 3))
    begun, trainer = fit(data(), tmp_path, max_epochs=3, max_steps=11)
    trainer.save_checkpoint(tmp_path / "middle.ckpt")
    rest, _ = fit(data(), tmp_path, max_epochs=3, ckpt_path=tmp_path / "middle.ckpt")
    assert begun.log_of.train + rest.log_of.train == whole.log_of.train
    assert rest.parameters_of() == whole.parameters_of()


def limit_by(first, segment, longest):
    return first + 2 * segment if segment < longest else None


@pytest.mark.parametrize(
    "policy",
    [
        Curriculum(Bucketed(8), by=partial(limit_by, 4, longest=2), segment=3),
        TBPTT(6, partial(limit_by, 3, longest=9)),
    ],
    ids=["limit", "chunk"],
)
def test_a_function_with_arguments_is_continued_and_replayed(store, tmp_path, policy):
    def data(policy=policy):
        return SequenceDataModule(train=store, batching=policy)

    options = {"reload_dataloaders_every_n_epochs": 1}
    whole, _ = fit(data(), tmp_path, logger=CSVLogger(tmp_path), **options)
    begun, trainer = fit(data(), tmp_path, max_steps=11, **options)
    trainer.save_checkpoint(tmp_path / "middle.ckpt")
    rest, _ = fit(data(), tmp_path, ckpt_path=tmp_path / "middle.ckpt", **options)
    assert begun.log_of.train + rest.log_of.train == whole.log_of.train
    path = next(tmp_path.rglob(NAME))
    epoch, number, ids = whole.log_of.train[-2]
    made = open_replay(path, ReplayRequest(epoch=epoch, batch=number), "train", None)
    assert made.engine.plan(epoch).batch(number).spans[:, 0].tolist() == list(ids)
    option = "chunk" if isinstance(policy, TBPTT) else "by"
    changed = replace(policy, **{option: partial(limit_by, 5, longest=2)})
    with pytest.raises(ResumeError, match=r"partial\(limit_by, 5.*\)"):
        fit(data(changed), tmp_path, ckpt_path=tmp_path / "middle.ckpt", **options)


def test_importance_weights_are_in_the_batch(store):
    policy = Weighted(Bucketed(8), "weight", draws=90, importance=True)
    for batch in Loader(store, policy, prefetch=0):
        p = WEIGHTS[batch.ids.numpy()] / WEIGHTS.sum()
        assert np.allclose(batch.weight.numpy(), 1 / (COUNT * p), rtol=1e-6)
        assert bool(batch.score.any(dim=1).all())


@pytest.mark.parametrize(
    "policy",
    [
        Weighted(Bucketed(8), "weight", 90),
        Weighted(TokenBudget(40), balanced("label"), importance=True),
        Curriculum(Weighted(Bucketed(8), "weight", 90), max_length=[(0, 4), (1, None)]),
        Curriculum(Bucketed(8), max_length=[(0, 4), (2, None)], segment=3),
    ],
    ids=["field", "balanced", "curriculum", "segments"],
)
def test_a_batch_is_made_again_from_the_run_file(store, tmp_path, policy):
    data = SequenceDataModule(train=store, batching=policy)
    model, _ = fit(data, tmp_path, reload_dataloaders_every_n_epochs=1, logger=CSVLogger(tmp_path))
    path = next(tmp_path.rglob(NAME))
    assert RunFile.read(path).missing == []
    epoch, number, ids = model.log_of.train[-2]
    made = open_replay(path, ReplayRequest(epoch=epoch, batch=number), "train", None)
    assert tuple(made.engine.plan(epoch).batch(number).spans[:, 0].tolist()) == ids
    again = data.replay(epoch=epoch, batch=number)
    assert tuple(again.ids.tolist()) == ids


def fit_with_array(store, folder, weights=WEIGHTS):
    """Return the model, the run file and the file of weights next to it."""
    data = SequenceDataModule(train=store, batching=Weighted(Bucketed(8), weights, draws=90))
    model, _ = fit(data, folder, logger=CSVLogger(folder))
    path = next(folder.rglob(NAME))
    return model, path, path.with_name("seqdata-run-batching.npz")


def test_weights_in_an_array_are_in_a_file_next_to_the_run_file(store, tmp_path):
    model, path, weights = fit_with_array(store, tmp_path / "run", WEIGHTS / 7)
    assert RunFile.read(path).missing == []
    assert weights.exists()
    path.parent.rename(tmp_path / "moved")
    epoch, number, ids = model.log_of.train[-1]
    request = ReplayRequest(epoch=epoch, batch=number)
    made = open_replay(tmp_path / "moved" / NAME, request, "train", None)
    assert tuple(made.engine.plan(epoch).batch(number).spans[:, 0].tolist()) == ids


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda file, other: file.unlink(), r"which cannot be read from .* \(.*No such file"),
        (
            lambda file, other: file.write_bytes(file.read_bytes().replace(b"\x00@", b"\x01@")),
            r"which cannot be read from .* \(its checksum does not match",
        ),
        (
            lambda file, other: file.write_bytes(other.read_bytes()),
            "must have the digest .*: they are of another run. Copy the file of this run there",
        ),
    ],
    ids=["missing", "damaged", "of another run"],
)
def test_weights_that_are_not_those_of_the_run_are_named(store, tmp_path, harm, message):
    _, path, weights = fit_with_array(store, tmp_path / "run")
    *_, other = fit_with_array(store, tmp_path / "other", WEIGHTS + 1)
    harm(weights, other)
    request = ReplayRequest(epoch=0, batch=0)
    with pytest.raises(ConfigError, match=message) as caught:
        open_replay(path, request, "train", None)
    assert "`batching`" in str(caught.value)
    assert "'seqdata-run-batching.npz'" in str(caught.value)


@pytest.mark.slow
def test_policies_around_policies_have_short_names_in_a_configuration(tmp_path, monkeypatch):
    cli = pytest.importorskip("lightning.pytorch.cli")
    pytest.importorskip("jsonargparse")
    monkeypatch.setattr("sys.argv", ["train.py"])
    monkeypatch.setitem(os.environ, "JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    inner = "{class_path: Bucketed, init_args: {batch_size: 8}}"
    label = "{class_path: seqdata.balanced, init_args: {field: label}}"
    weighted = f"{{class_path: %s, init_args: {{policy: {inner}, weights: {label}, draws: 9}}}}"
    due = Weighted(Bucketed(8), balanced("label"), draws=9)
    (tmp_path / "c.yaml").write_text(
        "data:\n"
        f"  batching: {weighted % 'weighted'}\n"
        "  eval_batching:\n    class_path: Curriculum\n    init_args:\n"
        f"      policy: {weighted % 'seqdata.Weighted'}\n      segment: 7\n"
        "      max_length: [[0, 256], [2, null]]\n"
    )
    made = cli.LightningCLI(
        Recorder, SequenceDataModule, args=["--config", str(tmp_path / "c.yaml")],
        trainer_defaults=QUIET, seed_everything_default=False, run=False,
        save_config_callback=None,
    )  # fmt: skip
    options = made.datamodule._options
    assert options.batching == due
    assert options.eval_batching == Curriculum(due, [(0, 256), (2, None)], segment=7)
