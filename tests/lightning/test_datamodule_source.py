"""The DataModule's own source: opened by arguments, split, standardized, and restored."""

import warnings

import lightning.pytorch as pl
import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from seqdata import (
    ConfigError,
    Fixed,
    Labels,
    MeanStd,
    Robust,
    SequenceDataModule,
    open_store,
    split,
)
from seqdata.errors import SeqDataWarning
from seqdata.fitting.fit import fit
from tests.lightning.harness import QUIET, quietly


def rows(count=40, seed=0, shift=0.0):
    random = np.random.default_rng(seed)
    return [
        {
            "id": f"r{number}",
            "x": random.normal(size=(int(random.integers(2, 9)), 2)) * 3 + shift,
            "kind": ("a", "b", "c")[number % 3],
            "year": 2000 + number % 5,
        }
        for number in range(count)
    ]


SPLIT = {"train": 0.7, "val": 0.3, "seed": 4}


def data_of(**options):
    chosen = {
        "train": rows(), "split": SPLIT, "statistics": {"x": MeanStd(), "kind": Labels()},
        "batching": Fixed(4), "seed": 2,
    }  # fmt: skip
    return SequenceDataModule(**{**chosen, **options})


class Model(pl.LightningModule):
    """Writes down what it is given."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1).double()
        self.seen, self.tested = [], []

    def training_step(self, batch):
        self.seen.append((batch.number, batch["x"].sum().item()))
        return self.layer(batch["x"]).mean()

    def validation_step(self, batch):
        pass

    def test_step(self, batch):
        self.tested.append(batch["x"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.0)


def trainer_of(folder, **options):
    return pl.Trainer(**{**QUIET, "max_epochs": 2, "default_root_dir": folder, **options})


def all_values(loader, name="x"):
    batches = [(batch, batch.lengths.tolist()) for batch in loader]
    return np.concatenate(
        [
            batch[name][row][:length]
            for batch, lengths in batches
            for row, length in enumerate(lengths)
        ]
    )


def test_parts_are_those_of_split_and_statistics_those_of_the_training_part():
    parts = split(rows(), {"train": 0.7, "val": 0.3}, seed=4)
    stats = fit(parts["train"], {"x": MeanStd(), "kind": Labels()})
    data = data_of()
    data.setup("fit")
    assert data.statistics == stats
    stored = {row["id"]: row for row in rows()}
    for loader, part in ((data.train_dataloader(), "train"), (data.val_dataloader(), "val")):
        names = [name for batch in loader for name in batch["id"]]
        assert sorted(names) == sorted(parts[part].ids)
    train = np.concatenate([stored[name]["x"] for name in parts["train"].ids])
    scaled = all_values(data.val_dataloader())
    own = np.concatenate([stored[name]["x"] for b in data.val_dataloader() for name in b["id"]])
    np.testing.assert_allclose(scaled, (own - train.mean(axis=0)) / train.std(axis=0))


def test_values_of_the_validation_part_do_not_reach_statistics():
    ids = set(open_store(rows()).ids)
    data = data_of()
    data.setup("fit")
    train = {name for batch in data.train_dataloader() for name in batch["id"]}
    changed = rows()
    for row in changed:
        if row["id"] in ids - train:
            row["x"] = row["x"] + 1e9
    other = data_of(train=changed)
    other.setup("fit")
    assert other.statistics.digest == data.statistics.digest
    assert abs(all_values(data.train_dataloader()).mean()) < 1e-12


def test_a_table_is_grouped_ordered_and_renamed():
    table = pd.DataFrame(
        {"site": list("babab"), "hour": [1, 1, 0, 0, 2], "load": [1.0, 2, 3, 4, 5]}
    )
    data = SequenceDataModule(
        train=table, group="site", order="hour", rename={"load": "x"}, batching=Fixed(2), seed=0
    )
    (batch,) = data.train_dataloader()
    found = dict(zip(batch["site"], batch["x"].tolist(), strict=True))
    assert found == {"a": [4.0, 2.0, 0.0], "b": [3.0, 1.0, 5.0]}
    assert "rows of each 'site' are in the order of 'hour'" in data.describe()


def halve(sequence, rng):
    return {**sequence, "x": sequence["x"] / 2}


def test_a_transform_gets_standardized_values():
    plain, halved = data_of(), data_of(transform=halve)
    for data in (plain, halved):
        data.setup("fit")
    np.testing.assert_allclose(
        all_values(halved.val_dataloader()), all_values(plain.val_dataloader()) / 2
    )
    assert all(
        torch.equal(a["kind"], b["kind"])
        for a, b in zip(plain.val_dataloader(), halved.val_dataloader(), strict=True)
    )


def test_a_run_goes_on_in_mid_epoch_with_its_statistics(tmp_path):
    whole = Model()
    trainer_of(tmp_path / "whole", enable_checkpointing=False).fit(whole, data_of())
    first = Model()
    saving = ModelCheckpoint(tmp_path / "saved", save_top_k=-1, every_n_train_steps=3)
    trainer_of(tmp_path / "a", callbacks=[saving], max_steps=3).fit(first, data_of())
    (saved,) = (tmp_path / "saved").glob("*.ckpt")
    second = Model()
    saving = ModelCheckpoint(tmp_path / "saved", save_top_k=-1, every_n_train_steps=3)
    with quietly():  # the folder of checkpoints is not empty
        trainer_of(tmp_path / "b", callbacks=[saving]).fit(second, data_of(), ckpt_path=saved)
    assert first.seen + second.seen == whole.seen
    state = torch.load(saved, weights_only=True)
    assert "statistics" in state["SequenceDataModule"]


def test_an_evaluation_without_training_data_uses_the_statistics_of_the_checkpoint(tmp_path):
    data = data_of()
    trainer = trainer_of(tmp_path, max_epochs=1)
    trainer.fit(Model(), data)
    checkpoint = trainer.checkpoint_callback.best_model_path
    test = rows(6, seed=9, shift=100.0)
    model = Model()
    alone = SequenceDataModule(
        test=test, statistics={"x": MeanStd(), "kind": Labels()}, batching=Fixed(6)
    )
    trainer_of(tmp_path).test(model, alone, ckpt_path=checkpoint, verbose=False)
    fitted = data.statistics["x"]
    expected = np.concatenate([(row["x"] - fitted.mean) / fitted.std for row in test])
    np.testing.assert_allclose(all_values(alone.test_dataloader()), expected)
    alone = SequenceDataModule(test=test, statistics={"x": MeanStd()}, batching=Fixed(6))
    with pytest.raises(ConfigError, match=r"`statistics` .x. are fitted on `train`"):
        trainer_of(tmp_path).test(Model(), alone, verbose=False)


def test_a_run_on_changed_data_keeps_its_statistics(tmp_path):
    data = data_of()
    trainer = trainer_of(tmp_path, max_epochs=1)
    trainer.fit(Model(), data)
    checkpoint = trainer.checkpoint_callback.best_model_path
    other = data_of(train=[{**row, "x": row["x"] + 1} for row in rows()], on_changed="next_epoch")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer_of(tmp_path, max_epochs=2).fit(Model(), other, ckpt_path=checkpoint)
    assert any(
        "the model was trained with" in str(each.message)
        for each in caught
        if issubclass(each.category, SeqDataWarning)
    )
    assert other.statistics.digest == data.statistics.digest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": {"val": 0.5}}, "`split` must be a mapping with a part 'train'"),
        ({"split": {"train": 0.5, "tst": 0.5}}, r"but 'tst' is neither; did you mean 'test'\?$"),
        (
            {"split": {"train": 0.5, "dev": 0.5}},
            r"the keys of `split` must be parts \(train, val, test, predict\) or options",
        ),
        ({"train": None}, "`split` splits `train`, but it is None"),
        ({"val": rows(3)}, "`val` is given, and `split` has a part 'val'"),
        ({"statistics": {"x": 3}}, "`statistics` must be field -> estimator"),
        ({"statistics": {"x": "MeanStdd"}}, "of 'x' in `statistics` must be one of MeanStd.*'MeanStdd'"),  # noqa: E501
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_meant_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        data_of(**options)


def test_estimators_have_names():
    names = {
        "x": {"class_path": "seqdata.Robust", "init_args": {"nan": "ignore"}},
        "kind": "Labels",
    }
    data = data_of(statistics=names)
    data.setup("fit")
    expected = data_of(statistics={"x": Robust(nan="ignore"), "kind": Labels()})
    expected.setup("fit")
    assert data.statistics.digest == expected.statistics.digest
    assert data.sizes["classes"] == {"kind": 3}
    assert data.sizes["features"]["x"] == 2


def test_what_is_predicted_is_the_last_part():
    data = data_of()
    data.setup("predict")
    assert sorted(n for b in data.predict_dataloader() for n in b["id"]) == sorted(
        n for b in data.val_dataloader() for n in b["id"]
    )


@pytest.mark.parametrize(
    ("options", "is_said"),
    [
        ({}, True),
        ({"exact": True}, False),
        ({"stratify": "kind"}, False),
        ({"seed": 1}, False),  # 4 and 2 of 6
    ],
)
def test_parts_that_are_far_from_their_fractions_are_noted_and_logged_once(
    options, is_said, caplog
):
    few = [{"x": np.ones(3), "kind": "ab"[number % 2]} for number in range(6)]
    parts = {"train": 0.7, "val": 0.3}
    data = SequenceDataModule(train=few, split={**parts, **options})
    counts = [len(data._sources.get_store(kind)) for kind in parts]
    assert (abs(counts[0] / 6 - 0.7) > 0.05) == is_said
    note = (
        f"parts are train {counts[0]}, val {counts[1]} of 6 sequences, farther from {parts} than "
        "they need to be: each is chosen by a hash. Write 'exact': True in `split`"
    )
    assert (note in data.describe()) == is_said
    data.setup("fit")
    data.setup("fit")
    assert caplog.text.count(note) == is_said
    along = SequenceDataModule(train=few, split={**parts, "along": "time"})
    assert "parts are" not in along.describe()
