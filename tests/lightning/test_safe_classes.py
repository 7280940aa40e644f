"""Objects of the package among hyperparameters: checkpoints hold them, and are read by default."""

from io import BytesIO

import lightning.pytorch as pl
import numpy as np
import pytest
import torch

from seqdata import (
    TBPTT,
    Bucketed,
    Curriculum,
    Fixed,
    Jitter,
    Labels,
    MeanStd,
    Mix,
    Packed,
    Part,
    Quantiles,
    RandomStreams,
    Remote,
    Segments,
    SequenceDataModule,
    Sorted,
    TokenBudget,
    Vocabulary,
    Weighted,
    Windows,
    World,
    Zip,
)  # fmt: skip
from seqdata import (
    fit as fit_statistics,
)
from seqdata.builtin import COLLATORS, POLICIES
from seqdata.collators.jagged import Jagged
from seqdata.collators.packed import PackedRows
from seqdata.collators.padded import Padded
from seqdata.collators.varlen import Varlen
from tests.lightning.harness import QUIET, Recorder, quietly, sequences

MIX = Mix({"a": Part(1, Bucketed(2)), "b": Part(2.5, Fixed(2))}, batches=10)
VALUES = [{"x": np.ones((3, 2), "float32") * n, "y": n % 3} for n in range(9)]
STATISTICS = fit_statistics(VALUES, {"x": MeanStd(), "y": Labels()})
POLICY_OBJECTS = [
    Bucketed(4, max_length=9), TokenBudget(64), Fixed(4), Sorted(4), Packed(2, 16), Windows(8, 4),
    TBPTT(2, 4, segments=True, jitter=Jitter()), MIX, Zip({"a": Bucketed(2), "b": Fixed(2)}),
    Weighted(Bucketed(2)), Segments(MIX, 2),
    Curriculum(Bucketed(2), max_length=[(0, 4), (2, None)]),
]  # fmt: skip
COLLATOR_OBJECTS = [Jagged(), PackedRows(), Padded(), Varlen()]
OTHERS = [
    STATISTICS, STATISTICS.transform(), STATISTICS.inverse(), MeanStd(), Quantiles(0.1, 0.9),
    Labels(), Vocabulary(), Remote(), World(1, 4), RandomStreams(seed=3),
]  # fmt: skip


def name_of(value):
    return type(value).__name__


@pytest.mark.parametrize("value", [*POLICY_OBJECTS, *COLLATOR_OBJECTS, *OTHERS], ids=name_of)
def test_an_object_is_read_as_it_was_saved(value, tmp_path):
    torch.save({"hyperparameter": value}, tmp_path / "saved")
    read = torch.load(tmp_path / "saved", weights_only=True)["hyperparameter"]
    assert type(read) is type(value)
    assert repr(read) == repr(value)


def test_every_policy_and_collator_was_tried():
    tried = {name_of(value) for value in (*POLICY_OBJECTS, *COLLATOR_OBJECTS)}
    assert tried == {path.rpartition(":")[2] for path in (*POLICIES.values(), *COLLATORS.values())}


class Data(SequenceDataModule):
    def __init__(self, batching, statistics, collator):
        super().__init__(train=sequences(12), batching=batching, collator=collator, seed=3)
        self.save_hyperparameters()


class Model(Recorder):
    def __init__(self, batching=None):
        super().__init__()
        self.save_hyperparameters()


@pytest.mark.parametrize("batching", [Bucketed(4), TokenBudget(16)], ids=name_of)
def test_a_run_with_objects_among_its_hyperparameters_is_resumed_and_loaded(batching, tmp_path):
    def train(epochs, path=None):
        model, data = Model(batching), Data(batching, STATISTICS, Padded())
        with quietly():
            trainer = pl.Trainer(**QUIET, max_epochs=epochs, default_root_dir=tmp_path)
            trainer.fit(model, data, ckpt_path=path)
        return model, trainer

    _, trainer = train(1)
    path = tmp_path / "saved.ckpt"
    trainer.save_checkpoint(path)
    rest, _ = train(2, path)
    assert {epoch for epoch, _, _ in rest.log_of.train} == {1}
    data = Data.load_from_checkpoint(path)
    assert data.hparams["batching"] == batching
    assert data.hparams["statistics"].digest == STATISTICS.digest
    assert Model.load_from_checkpoint(path).hparams["batching"] == batching


@pytest.mark.parametrize(
    ("value", "earlier"),
    [
        (Bucketed(4), "policies.bucketed"),
        (Sorted(4), "policies.sorted"),
        (Jitter(), "planning.jitter"),
    ],
)
def test_checkpoints_of_when_a_class_was_in_another_module_are_read(value, earlier):
    saved = BytesIO()
    torch.save(value, saved, _use_new_zipfile_serialization=False)
    now, before = (
        f"{name}\n{name_of(value)}" for name in (type(value).__module__, f"seqdata.{earlier}")
    )
    assert now.encode() in saved.getvalue()
    content = saved.getvalue().replace(now.encode(), before.encode())
    assert torch.load(BytesIO(content), weights_only=True) == value
