"""Mixtures under the Trainer: named training data, exact resume, replay, YAML by name."""

import functools

import lightning.pytorch as pl
import numpy as np
import pytest

from seqdata import (
    Bucketed,
    ConfigError,
    Fixed,
    Loader,
    Mix,
    Part,
    ResumeError,
    SequenceDataModule,
    TokenBudget,
    Weighted,
    measure_lengths,
    write_store,
)
from seqdata.runs.locate_batch import ReplayRequest, remake_batch
from seqdata.runs.replay import open_replay
from seqdata.runs.run_file import NAME
from tests.lightning.harness import QUIET, Recorder, sequences
from tests.lightning.resuming import (
    assert_a_failed_fit_goes_on,
    find_replayable_run,
    fit_saving_steps,
    write_parts,
)

MIX = Mix(
    {"books": Part(0.7, Bucketed(3)), "code": Part(0.3, TokenBudget(30))},
    batches=24,
    batches_per_update=4,
)


def named():
    return {"books": sequences(30, 1), "code": sequences(11, 2)}


class Mixed(Recorder):
    """It notes the part of each batch, too."""

    def training_step(self, batch, batch_idx):
        self.log_of.rates.append((batch.part, batch.part_epoch))
        return super().training_step(batch, batch_idx)


def fit(folder, data, *, fail_at=None, **options):
    return fit_saving_steps(Mixed(fail_at), folder, data, **options)


def test_a_fit_trains_what_a_loader_plays(tmp_path):
    model = fit(tmp_path, SequenceDataModule(train=named(), batching=MIX, seed=4))
    loader = Loader(named(), MIX, seed=4)
    played = [
        (batch.epoch, batch.number, tuple(batch.ids.tolist()), (batch.part, batch.part_epoch))
        for _ in range(2)
        for batch in loader
    ]
    noted = zip(model.log_of.train, model.log_of.rates, strict=True)
    assert [(*train, label) for train, label in noted] == played
    assert {part for *_, (part, _) in played} == {"books", "code"}


@pytest.mark.parametrize("fail_at", [5, pytest.param(24, marks=pytest.mark.nightly), 37])
def test_a_fit_that_fails_anywhere_goes_on_exactly(tmp_path, fail_at):
    def fit_new(folder, **options):
        return fit(folder, SequenceDataModule(train=named(), batching=MIX), **options)

    assert_a_failed_fit_goes_on(fit_new, tmp_path, fail_at)


def test_other_weights_are_refused_on_resume(tmp_path):
    fit(tmp_path, SequenceDataModule(train=named(), batching=MIX), max_epochs=1)
    other = Mix({**MIX.parts, "code": Part(0.5, TokenBudget(30))}, batches=24)
    with pytest.raises(ResumeError, match="`policy` was"):
        fit(
            tmp_path,
            SequenceDataModule(train=named(), batching=other),
            resume=tmp_path / "at.ckpt",
        )


def test_batches_are_made_again_from_the_run_file(tmp_path):
    paths = write_parts(tmp_path, named())
    data = SequenceDataModule(train=paths, batching=MIX, seed=4)
    model = fit(tmp_path / "run", data, max_epochs=1)
    path = find_replayable_run(tmp_path / "run", ["books", "code"])
    for number in (0, 9, 23):
        found = open_replay(path, ReplayRequest(epoch=0, batch=number), "train")
        batch = remake_batch(found.engine, found.located)
        assert tuple(batch.ids.tolist()) == model.log_of.train[number][2]
        assert (batch.part, batch.part_epoch) == model.log_of.rates[number]
        again = data.replay(epoch=0, batch=number)
        assert again["x"].equal(batch["x"])


def repeat(sequence, rng, times):
    return {"x": np.repeat(sequence["x"], times, axis=0)}


def test_parts_that_carry_a_transform_are_trained_on_and_replayed(tmp_path):
    transform, parts = functools.partial(repeat, times=3), {}
    for name, rows in named().items():
        write_store(tmp_path / name, rows)
        parts[name] = measure_lengths(tmp_path / name, transform, cache=False)
    mix = Mix({"books": 2, "code": 1}, Bucketed(3), batches=24)
    model = fit(
        tmp_path / "run", SequenceDataModule(train=parts, batching=mix, seed=4), max_epochs=1
    )
    (path,) = (tmp_path / "run").rglob(NAME)
    for number in (0, 9, 23):
        found = open_replay(path, ReplayRequest(epoch=0, batch=number), "train")
        batch = remake_batch(found.engine, found.located)
        assert tuple(batch.ids.tolist()) == model.log_of.train[number][2]
        stored = parts[batch.part].base[int(batch.ids[0])]["x"]
        assert batch["x"][0, : batch.lengths[0]].tolist() == np.repeat(stored, 3, axis=0).tolist()


def test_data_in_memory_is_named_where_it_cannot_be_replayed(tmp_path):
    data = SequenceDataModule(train=named(), batching=MIX)
    fit(tmp_path, data, max_epochs=1)
    assert data.replay_command(epoch=0, batch=3) == "data.replay(epoch=0, batch=3)"


def test_evaluation_takes_the_policy_of_the_part_of_the_same_name():
    data = SequenceDataModule(train=named(), val=named(), batching=MIX)
    loaders = data.val_dataloader()
    assert [loader.engine.policy for loader in loaders] == [
        Bucketed(3, shuffle=False),
        TokenBudget(30, shuffle=False),
    ]
    one = Mix({"books": 1, "code": 2}, Fixed(4))
    single = SequenceDataModule(train=named(), val=sequences(5, 3), batching=one)
    assert single.val_dataloader().engine.policy == Fixed(4, shuffle=False)


def test_evaluation_by_several_policies_must_say_which():
    data = SequenceDataModule(train=named(), val=sequences(5, 3), batching=MIX)
    with pytest.raises(
        ConfigError, match=r"`eval_batching` must be given for `val`, .* 2 policies"
    ):
        data.val_dataloader()
    given = SequenceDataModule(
        train=named(), val=sequences(5, 3), batching=MIX, eval_batching=Fixed(2)
    )
    assert len(given.val_dataloader()) == 3


def test_overfitting_plays_the_parts_unshuffled(tmp_path):
    model = fit(tmp_path, SequenceDataModule(train=named(), batching=MIX), overfit_batches=4)
    ids = [train[2] for train in model.log_of.train]
    assert ids[:4] == ids[4:]


def test_overfitting_plays_each_sequence_of_a_weighted_part_once(tmp_path):
    weighted = Weighted(Fixed(2), [100.0] + 29 * [1.0], draws=300)
    mix = Mix({"books": Part(1, weighted), "code": Part(0, Fixed(2))}, batches=15)
    data = SequenceDataModule(train=named(), batching=mix)
    model = fit(tmp_path, data, max_epochs=1, overfit_batches=15)
    assert [ids for _, _, ids in model.log_of.train] == [(k, k + 1) for k in range(0, 30, 2)]


def test_weights_of_a_part_in_an_evaluation_are_refused():
    weighted = Mix({"books": Part(1, Weighted(Fixed(2))), "code": Part(1, Fixed(2))})
    data = SequenceDataModule(val=named(), batching=Fixed(2), eval_batching=weighted)
    with pytest.raises(
        ConfigError, match="`eval_batching` must return each sequence once, but draws"
    ):
        data.val_dataloader()


@pytest.mark.parametrize("own", [None, 3])
def test_the_batches_of_an_update_are_of_one_part(tmp_path, own):
    """The Trainer accumulates 4 batches: the mixture draws 4 of a part, unless it says otherwise"""
    mix = Mix({"books": 2, "code": 1}, Fixed(2), batches=24, batches_per_update=own)
    data = SequenceDataModule(train=named(), batching=mix, batches_per_update=4, seed=2)
    model = fit(tmp_path, data, max_epochs=1)
    group = own or 4
    parts = [part for part, _ in model.log_of.rates]
    assert all(len(set(parts[k : k + group])) == 1 for k in range(0, 24, group))
    assert len({parts[k] for k in range(0, 24, 24 // group)}) == 2
    loader = Loader(named(), Mix(mix.parts, Fixed(2), batches=24, batches_per_update=group), seed=2)
    assert [batch.part for batch in loader] == parts


def test_one_location_cannot_be_mixed_and_names_need_a_mixture():
    with pytest.raises(ConfigError, match="must be several named stores, but is one"):
        SequenceDataModule(train=sequences(5), batching=MIX).train_dataloader()
    with pytest.raises(
        ConfigError, match=r"`train` must be one location, but has 2 named locations"
    ):
        SequenceDataModule(train=named(), batching=Fixed(2))


YAML = """
data:
  train: {{books: {books}, code: {code}}}
  batching:
    class_path: {name}
    init_args:
      parts:
        books:
          class_path: seqdata.Part
          init_args:
            weight: 0.7
            policy: {{class_path: seqdata.Bucketed, init_args: {{batch_size: 3}}}}
        code:
          class_path: seqdata.Part
          init_args:
            weight: 0.3
            policy: {{class_path: seqdata.TokenBudget, init_args: {{max_tokens: 30}}}}
      batches: 24
      batches_per_update: 4
"""

SHORT = """
data:
  train: {{books: {books}, code: {code}}}
  batching:
    class_path: mix
    init_args:
      parts: {{books: 0.7, code: 0.3}}
      policy: {{class_path: seqdata.Bucketed, init_args: {{batch_size: 3}}}}
"""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (YAML, "Mix"),
        (SHORT, "mix"),
        pytest.param(YAML, "seqdata.Mix", marks=pytest.mark.nightly),
        pytest.param(YAML, "mix", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.slow
def test_a_mixture_is_written_in_a_configuration_file(tmp_path, monkeypatch, text, name):
    cli = pytest.importorskip("lightning.pytorch.cli")
    pytest.importorskip("jsonargparse")
    monkeypatch.setattr("sys.argv", ["train.py"])
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    for part, rows in named().items():
        write_store(tmp_path / part, rows)
    places = {part: tmp_path / part for part in named()}
    (tmp_path / "config.yaml").write_text(text.format(name=name, **places))
    made = cli.LightningCLI(
        pl.LightningModule, SequenceDataModule, args=["--config", str(tmp_path / "config.yaml")],
        trainer_defaults=QUIET, seed_everything_default=False, run=False, save_config_callback=None,
    )  # fmt: skip
    batching = made.datamodule._options.batching
    short = Mix({"books": 0.7, "code": 0.3}, Bucketed(3))
    assert batching == (short if text is SHORT else MIX)
    assert next(iter(made.datamodule.train_dataloader())).part in {"books", "code"}
