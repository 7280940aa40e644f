"""`as_batch` shapes a batch for the model; rows that do not count stay refused or marked."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from seqdata.errors import ConfigError, PlanError, SeqDataWarning
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.loading.loader import Loader
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.mix import Mix
from seqdata.policies.tbptt import TBPTT
from seqdata.policies.zip import Zip
from seqdata.sharing import World

ROWS = [{"x": np.arange(n + 1, dtype=np.float32), "y": n} for n in range(10)]


def bare(batch):
    return batch["x"], batch.lengths, batch["y"]


def weighted(batch):
    return {"inputs": (batch["x"], batch["y"]), "weight": batch.weight}


@dataclass
class Shaped:
    x: torch.Tensor
    score: torch.Tensor


def as_object(batch):
    return Shaped(batch["x"], batch.score)


def as_namespace(batch):
    return SimpleNamespace(x=batch["x"], masked=[batch.weight.numpy() > 0])


def whole(batch):
    batch["z"] = batch["x"] * 2
    return batch


def test_the_result_is_the_batch_of_the_model():
    plain = list(Loader(ROWS, Bucketed(4)))
    shaped = list(Loader(ROWS, Bucketed(4), as_batch=bare))
    assert [type(batch) for batch in shaped] == [tuple] * 3
    for (x, lengths, y), batch in zip(shaped, plain, strict=True):
        assert torch.equal(x, batch["x"])
        assert torch.equal(lengths, batch.lengths)
        assert torch.equal(y, batch["y"])
    data = SequenceDataModule(train=ROWS, batching=Bucketed(4), as_batch=bare)
    assert len(list(data.train_dataloader())) == 3


@pytest.mark.parametrize("function", [weighted, as_object, as_namespace, whole])
def test_a_function_that_keeps_the_marks_takes_part_in_every_step(function):
    loaders = [Loader(ROWS, Fixed(4), as_batch=function, world=World(rank, 2)) for rank in range(2)]
    assert [len(list(loader)) for loader in loaders] == [2, 2]


def test_the_weights_of_a_padding_batch_are_handed_on():
    last = list(Loader(ROWS, Fixed(4), as_batch=weighted, world=World(1, 2)))[-1]
    assert last["weight"].tolist() == [0]


@pytest.mark.parametrize("function", [bare, lambda batch: {"x": batch["x"], "mask": batch.mask}])
def test_a_function_that_loses_them_is_refused_before_the_first_step(function):
    message = (
        "3 batches on 2 ranks leave 1 without one, and the result of `as_batch` has no 'weight' to "
        "mark padding rows. Let `as_batch` return `batch.weight`, too, or pass tail='drop'"
    )
    for rank in range(2):
        with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
            Loader(ROWS, Fixed(4), as_batch=function, world=World(rank, 2))
    loader = Loader(ROWS, Fixed(4), as_batch=function, world=World(0, 2), tail="drop")
    assert len(list(loader)) == 1
    assert len(list(Loader(ROWS, Fixed(5), as_batch=function, world=World(0, 2)))) == 1


def test_no_tail_is_advised_that_would_drop_everything():
    world = World(0, 4)
    with pytest.raises(ConfigError, match=r"or pass tail='repeat' \(in training\), or use few"):
        Loader(ROWS, Fixed(4), as_batch=bare, world=world)
    with pytest.raises(PlanError, match="must leave at least one step"):
        next(iter(Loader(ROWS, Fixed(4), as_batch=bare, world=world, tail="drop")))
    assert len(list(Loader(ROWS, Fixed(4), as_batch=bare, world=world, tail="repeat"))) == 1


def test_missing_values_are_no_marks():
    rows = [{"x": np.full(3, np.nan, "float32"), "y": n} for n in range(9)]
    for function in (bare, lambda batch: batch["x"].numpy()):
        with pytest.raises(ConfigError, match="the result of `as_batch` has no 'weight'"):
            Loader(rows, Fixed(4), as_batch=function, world=World(0, 2))


def test_lanes_that_leave_a_rank_without_one_are_treated_alike():
    options = {"batching": TBPTT(1, 4), "world": World(0, 2)}
    with pytest.raises(ConfigError, match="1 lanes on 2 ranks leave 1 without one"):
        Loader(ROWS, as_batch=bare, **options)
    with pytest.warns(SeqDataWarning, match="uneven"):
        first = next(iter(Loader(ROWS, as_batch=weighted, **options)))
    assert first["weight"].tolist() == [0]


def test_masked_rows_must_be_marked():
    with pytest.raises(ConfigError, match=r"`on_error='mask'` masks must be told .*`as_batch` has"):
        Loader(ROWS, Fixed(4), as_batch=bare, on_error="mask")
    Loader(ROWS, Fixed(4), as_batch=weighted, on_error="mask")


def test_every_part_of_a_zip_is_shaped():
    loader = Loader({"a": ROWS, "b": ROWS}, Zip({"a": Fixed(4), "b": Fixed(5)}), as_batch=bare)
    step = next(iter(loader))
    assert [type(part) for part in step.values()] == [tuple, tuple]
    mixed = Loader({"a": ROWS, "b": ROWS}, Mix({"a": 1, "b": 1}, Fixed(4)), as_batch=weighted)
    assert "weight" in next(iter(mixed))


def test_what_is_no_function_and_two_outputs_are_refused():
    with pytest.raises(ConfigError, match="`as_batch` must be a function of the batch, but is 'x'"):
        Loader(ROWS, Fixed(4), as_batch="x")
    with pytest.raises(ConfigError, match="`as_tuple` and `as_batch` cannot both be given"):
        Loader(ROWS, Fixed(4), as_batch=bare, as_tuple=("x",))


def test_errors_of_the_function_name_the_batch():
    with pytest.raises(ConfigError, match="`as_batch` must be the batch of the model, but is None"):
        list(Loader(ROWS, Fixed(4), as_batch=lambda batch: None))

    def broken(batch):
        raise KeyError("speaker")

    with pytest.raises(KeyError) as caught:
        list(Loader(ROWS, Fixed(4), as_batch=broken))
    assert caught.value.__notes__[0] == "in `as_batch`, for batch 0 of epoch 0"

    def ended(batch):
        return next(iter(()))

    with pytest.raises(RuntimeError, match=r"`as_batch`.*in batch 0 of epoch 0"):
        list(Loader(ROWS, Fixed(4), as_batch=ended))
