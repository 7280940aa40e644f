"""Zipped parts under the Trainer: dicts of batches, exact resume, replay, monitors, YAML."""

import json
import warnings

import lightning.pytorch as pl
import numpy as np
import pytest
import torch

from seqdata import (
    Bucketed,
    ConfigError,
    DataMonitor,
    Fixed,
    Loader,
    RankConsistency,
    RankFileLogger,
    RankMemoryMonitor,
    RescaleLearningRate,
    ResumeError,
    SeqDataWarning,
    SequenceDataModule,
    TokenBudget,
    Zip,
    write_store,
)
from seqdata.runs.locate_batch import ReplayRequest, remake_batch
from seqdata.runs.replay import open_replay
from tests.lightning.harness import QUIET, Recorder, quietly, sequences
from tests.lightning.resuming import (
    assert_a_failed_fit_goes_on,
    find_replayable_run,
    fit_saving_steps,
    write_parts,
)

ZIP = Zip({"labelled": Bucketed(3), "unlabelled": TokenBudget(30)}, lead="labelled")


def named():
    labelled = [{"x": rows, "y": number} for number, rows in enumerate(sequences(30, 1))]
    return {"labelled": labelled, "unlabelled": [{"x": rows} for rows in sequences(71, 2)]}


class Zipped(Recorder):
    """It trains on both parts, and notes their ids and own epochs."""

    def training_step(self, batch, batch_idx):
        if self.fail_at is not None and len(self.log_of.train) == self.fail_at:
            raise OSError("told to fail")
        self.log_of.train.append(noted(batch))
        self.log_of.steps.append((self.current_epoch, batch_idx))
        loss = torch.zeros((), dtype=torch.float64)
        for part, aim in (("labelled", 1.0), ("unlabelled", 0.5)):
            own = batch[part]
            error = (self.layer(own["x"]).squeeze(-1) - aim) ** 2
            loss = loss + (own.score * error).sum() * own.loss_scale
        self.log("mean", loss.detach(), on_step=False, on_epoch=True)
        return loss


def noted(step):
    return [
        (name, batch.epoch, batch.number, batch.part_epoch, tuple(batch.real().ids.tolist()))
        for name, batch in step.items()
    ]


def fit(folder, data, *, fail_at=None, **options):
    return fit_saving_steps(Zipped(fail_at), folder, data, **options)


def test_a_fit_trains_what_a_loader_plays(tmp_path):
    model = fit(tmp_path, SequenceDataModule(train=named(), batching=ZIP, seed=4), max_epochs=3)
    loader = Loader(named(), ZIP, seed=4)
    assert model.log_of.train == [noted(step) for _ in range(3) for step in loader]
    assert len(model.log_of.train) == 3 * len(loader) == 30
    assert max(own for step in model.log_of.train for _, _, _, own, _ in step) > 1


@pytest.mark.parametrize("fail_at", [5, 10, 14])
def test_a_fit_that_fails_anywhere_goes_on_exactly(tmp_path, fail_at):
    def fit_new(folder, **options):
        return fit(folder, SequenceDataModule(train=named(), batching=ZIP), **options)

    assert_a_failed_fit_goes_on(fit_new, tmp_path, fail_at)


def test_another_lead_is_refused_on_resume(tmp_path):
    fit(tmp_path, SequenceDataModule(train=named(), batching=ZIP), max_epochs=1)
    other = SequenceDataModule(train=named(), batching=Zip(ZIP.parts, lead="unlabelled"))
    with pytest.raises(ResumeError, match="`policy` was"):
        fit(tmp_path, other, resume=tmp_path / "at.ckpt")


def test_steps_are_made_again_from_the_run_file(tmp_path):
    paths = write_parts(tmp_path, named())
    data = SequenceDataModule(train=paths, batching=ZIP, seed=4, fields=("x", "y"))
    model = fit(tmp_path / "run", data)
    path = find_replayable_run(tmp_path / "run", ["labelled", "unlabelled"])
    for epoch, number in ((0, 0), (0, 9), (1, 3)):
        found = open_replay(path, ReplayRequest(epoch=epoch, batch=number), "train")
        step = remake_batch(found.engine, found.located)
        assert noted(step) == model.log_of.train[10 * epoch + number]
        again = data.replay(epoch=epoch, batch=number)
        for name, batch in step.items():
            assert again[name]["x"].equal(batch["x"])
            assert again[name].loss_scale == batch.loss_scale


def test_a_failing_step_says_which_it_was(tmp_path):
    def failing(sequence, rng):
        if "y" in sequence and sequence["y"] == 7:
            raise ValueError("told to fail")
        return sequence

    data = SequenceDataModule(train=named(), batching=ZIP, transform=failing)
    with pytest.raises(ValueError, match="told to fail") as caught:
        fit(tmp_path, data)
    number = next(
        step["labelled"].number for step in Loader(named(), ZIP) if 7 in step["labelled"].ids
    )
    assert f"epoch 0, batch {number} " in "".join(caught.value.__notes__)
    model, other = Zipped(fail_at=4), SequenceDataModule(train=named(), batching=ZIP)
    with quietly(), pytest.raises(OSError, match="told to fail") as caught:
        pl.Trainer(**{**QUIET, "max_epochs": 1, "default_root_dir": tmp_path}).fit(model, other)
    assert "epoch 0, batch 4 " in "".join(caught.value.__notes__)


def test_skipped_errors_of_all_parts_count_in_checkpoints(tmp_path):
    def failing(sequence, rng):
        if sequence.get("y") == 7 or np.array_equal(sequence["x"], sequences(71, 2)[3]):
            raise ValueError("told to fail")
        return sequence

    data = SequenceDataModule(train=named(), batching=ZIP, transform=failing, on_error="mask")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(tmp_path / "run", data, max_epochs=1)
    saved = torch.load(tmp_path / "run" / "at.ckpt", weights_only=True)["SequenceDataModule"]
    listed = next(tmp_path.rglob("seqdata-errors-rank0.jsonl")).read_text().splitlines()
    assert saved["errors"] == len(listed) == 2
    assert {json.loads(line)["loader"] for line in listed} == {
        "train/labelled", "train/unlabelled"
    }  # fmt: skip


@pytest.mark.parametrize(
    "output", [{}, {"as_dict": ("x", "weight")}, {"as_tuple": ("x", "weight")}]
)
def test_monitors_count_the_timesteps_of_all_parts(tmp_path, output):
    class Any(Zipped):
        def training_step(self, batch, batch_idx):
            x = batch["labelled"]
            x = x[0] if isinstance(x, tuple) else x["x"]
            return self.layer(x).sum() * 0

    monitor, memory = DataMonitor(), RankMemoryMonitor(every_n_steps=2)
    callbacks = [monitor, memory, RankFileLogger(), RankConsistency(), RescaleLearningRate()]
    data = SequenceDataModule(train=named(), batching=ZIP, **output)
    settings = {**QUIET, "max_epochs": 1, "default_root_dir": "."}
    trainer = pl.Trainer(**settings, callbacks=callbacks)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", SeqDataWarning)
        trainer.fit(Any(), data)
    steps = list(Loader(named(), ZIP))
    (stats,) = monitor.ranks
    assert stats.tokens == sum(batch.num_tokens for step in steps for batch in step.values())
    assert stats.padded == sum(
        len(batch) * batch.padded_length for step in steps for batch in step.values()
    )
    text = next(tmp_path.rglob("ranks.jsonl")).read_text()
    lines = list(map(json.loads, text.splitlines()))
    assert [line["batch"] for line in lines] == list(range(10))
    assert lines[3]["tokens"] == sum(batch.num_tokens for batch in steps[3].values())


@pytest.mark.parametrize("output", [{}, {"as_tuple": ("x", "weight")}])
def test_memory_that_runs_out_names_the_sizes_of_all_parts(tmp_path, output):
    class Hungry(Zipped):
        def training_step(self, batch, batch_idx):
            if batch_idx == 3:
                raise MemoryError
            return self.layer(torch.zeros(1, 1, dtype=torch.float64)).sum()

    data = SequenceDataModule(train=named(), batching=ZIP, **output)
    settings = {**QUIET, "max_epochs": 1, "default_root_dir": tmp_path}
    with quietly(), pytest.raises(MemoryError) as caught:
        pl.Trainer(**settings, callbacks=[RankMemoryMonitor()]).fit(Hungry(), data)
    note = "".join(caught.value.__notes__)
    step = list(Loader(named(), ZIP))[3]
    for name, batch in step.items():
        shown = f"{name}: {len(batch)} rows x {batch.padded_length} timesteps"
        assert shown in note
        assert f"ids {', '.join(map(str, batch.ids.tolist()))}" in note
    assert "Lower the sizes of its parts' batches" in note


@pytest.mark.filterwarnings("ignore", "error:.*infer the `batch_size`")
def test_logged_means_are_weighted_by_the_rows_of_the_first_part(tmp_path):
    class Means(Zipped):
        def training_step(self, batch, batch_idx):
            self.log("y", batch["labelled"]["y"].double().mean(), on_step=False, on_epoch=True)
            return self.layer(batch["unlabelled"]["x"]).sum() * 0

    policy = Zip({"labelled": Fixed(4), "unlabelled": Fixed(2)}, lead="labelled")
    trainer = pl.Trainer(**{**QUIET, "max_epochs": 1, "default_root_dir": tmp_path})
    trainer.fit(Means(), SequenceDataModule(train=named(), batching=policy))
    assert float(trainer.callback_metrics["y"]) == pytest.approx(14.5)


def test_a_validation_plays_single_data_sets():
    """With the policy of the part of the same name, or with `eval_batching`; never zipped."""
    data = SequenceDataModule(train=named(), val=named(), batching=ZIP)
    loaders = data.val_dataloader()
    assert [loader.engine.policy for loader in loaders] == [
        Bucketed(3, shuffle=False),
        TokenBudget(30, shuffle=False),
    ]
    assert next(iter(loaders[0])).part is None
    single = SequenceDataModule(train=named(), val=named()["labelled"], batching=ZIP)
    with pytest.raises(
        ConfigError, match=r"`eval_batching` must be given for `val`, .* 2 policies"
    ):
        single.val_dataloader()
    given = SequenceDataModule(
        train=named(), val=named()["labelled"], batching=ZIP, eval_batching=Fixed(2)
    )
    assert len(given.val_dataloader()) == 15


def test_overfitting_plays_the_parts_unshuffled(tmp_path):
    model = fit(tmp_path, SequenceDataModule(train=named(), batching=ZIP), overfit_batches=4)
    ids = [[part[4] for part in step] for step in model.log_of.train]
    assert ids[:4] == ids[4:]
    plain = next(iter(Loader(named(), Zip(ZIP.parts, lead="labelled", shuffle=False))))
    assert ids[0] == [part[4] for part in noted(plain)]


def test_updates_of_several_steps_have_scales_of_each_part(tmp_path):
    data = SequenceDataModule(train=named(), batching=ZIP, batches_per_update=4)
    model = fit(tmp_path, data, max_epochs=1)
    whole = fit(
        tmp_path, SequenceDataModule(train=named(), batching=ZIP.for_ranks(4)), max_epochs=1,
        accumulate_grad_batches=4,
    )  # fmt: skip
    assert model.parameters_of() == whole.parameters_of()
    assert data.trainer.global_step == 3


YAML = """
data:
  train: {{labelled: {labelled}, unlabelled: {unlabelled}}}
  batching:
    class_path: {name}
    init_args:
      parts:
        labelled: {{class_path: {bucketed}, init_args: {{batch_size: 3}}}}
        unlabelled: {{class_path: seqdata.TokenBudget, init_args: {{max_tokens: 30}}}}
      lead: labelled
"""


@pytest.mark.parametrize(
    ("name", "bucketed"),
    [
        ("zip", "Bucketed"),
        *(
            pytest.param(*names, marks=pytest.mark.nightly)
            for names in (
                ("seqdata.Zip", "seqdata.Bucketed"),
                ("zip", "bucketed"),
                ("Zip", "Bucketed"),
            )
        ),
    ],
)
@pytest.mark.slow
def test_zipped_parts_are_written_in_a_configuration_file(tmp_path, monkeypatch, name, bucketed):
    cli = pytest.importorskip("lightning.pytorch.cli")
    pytest.importorskip("jsonargparse")
    monkeypatch.setattr("sys.argv", ["train.py"])
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    for part, rows in named().items():
        write_store(tmp_path / part, rows)
    places = {part: tmp_path / part for part in named()}
    text = YAML.format(name=name, bucketed=bucketed, **places)
    (tmp_path / "config.yaml").write_text(text)
    made = cli.LightningCLI(
        pl.LightningModule, SequenceDataModule, args=["--config", str(tmp_path / "config.yaml")],
        trainer_defaults=QUIET, seed_everything_default=False, run=False, save_config_callback=None,
    )  # fmt: skip
    assert made.datamodule._options.batching == ZIP
    step = next(iter(made.datamodule.train_dataloader()))
    assert list(step) == ["labelled", "unlabelled"]
