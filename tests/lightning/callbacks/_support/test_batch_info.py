"""Information about a batch without its tensors: of the batch, or planned."""

from types import SimpleNamespace

import numpy as np
import pytest

from seqdata import Bucketed, Fixed, Loader, Zip
from seqdata.lightning.callbacks._support.batch_info import (
    get_batch_info,
    get_lr_scale,
    get_metadata,
    get_planned_info,
    get_train_loader,
)

ROWS = [{"x": np.zeros(size)} for size in (3, 1, 2)]


@pytest.fixture
def batch():
    return next(iter(Loader(ROWS, Fixed(3, shuffle=False))))


class Played:
    """What a TrainerLoader knows after its first batch."""

    def __init__(self, loader):
        self.engine = loader._engine
        start = SimpleNamespace(epoch=0, position=0)
        self.last_batch = SimpleNamespace(start_position=start, step=0)


def test_a_batch_has_facts_about_itself(batch):
    info = get_batch_info(batch, None)
    assert (info.epoch, info.number, info.rows, info.width) == (0, 0, 3, 3)
    assert (info.tokens, info.real, info.padded) == (6, 6, 9)
    assert info.ids.tolist() == [0, 1, 2]
    assert get_metadata(batch, None) is batch
    assert get_lr_scale(batch, None) == float(batch.lr_scale)


@pytest.mark.parametrize("other", [{}, {"x": 1}, (1, 2), None])
def test_of_other_batches_nothing_is_known_without_their_loader(other):
    assert get_batch_info(other, None) is None
    assert get_metadata(other, None) is other
    assert get_lr_scale(other, None) is None


def test_of_a_tuple_or_dict_what_was_planned_is_known(batch):
    loader = Played(Loader(ROWS, Fixed(3, shuffle=False), as_dict=["x"]))
    planned = get_batch_info({"x": batch["x"]}, loader)
    mine = get_batch_info(batch, None)
    for name in ("epoch", "number", "rows", "width", "tokens", "real", "padded"):
        assert getattr(planned, name) == getattr(mine, name)
    assert get_metadata({"x": 1}, loader).ids.tolist() == [0, 1, 2]
    assert get_lr_scale({"x": 1}, loader) == float(batch.lr_scale)
    loader.last_batch = None
    assert get_planned_info(loader) is None
    assert get_metadata({"x": 1}, loader) == {"x": 1}
    assert get_lr_scale({"x": 1}, loader) is None


def test_zipped_parts_are_counted_together():
    zipped = Loader({"a": ROWS, "b": ROWS[:1]}, Zip({"a": Bucketed(3), "b": Bucketed(1)}))
    step = next(iter(zipped))
    info = get_batch_info(step, None)
    assert (info.rows, info.width, info.tokens, info.padded) == (4, 3, 9, 12)
    assert sorted(info.ids.tolist()) == [0, 0, 1, 2]
    assert info.parts["b"].rows == 1
    assert get_batch_info(step, Played(zipped)).real == get_planned_info(Played(zipped)).real


def test_only_loaders_of_ours_are_asked():
    assert get_train_loader(SimpleNamespace(train_dataloader=[1])) is None
    assert get_train_loader(SimpleNamespace(train_dataloader=None)) is None
