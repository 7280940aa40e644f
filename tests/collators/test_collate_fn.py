"""A torch `collate_fn` is a collator."""

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

from seqdata.batch.batch import SequenceBatch
from seqdata.collators.collate_fn import Samples
from seqdata.collators.padded import Padded
from seqdata.errors import ConfigError
from seqdata.loading.loader import Loader
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.packed import Packed
from seqdata.resolve import resolve_collator
from seqdata.sharing import World

ROWS = [{"x": np.arange(n + 1) + 10 * n, "y": n, "name": f"n{n}"} for n in range(5)]


def as_pairs(samples):
    x = pad_sequence([sample["x"] for sample in samples], batch_first=True)
    return x, torch.stack([sample["y"] for sample in samples])


def as_mapping(samples):
    x, y = as_pairs(samples)
    return {"x": x, "y": y}


def test_what_the_function_makes_is_handed_out():
    batches = list(Loader(ROWS, Fixed(2, shuffle=False), collator=as_pairs))
    assert [type(batch) for batch in batches] == [tuple] * 3
    x, y = batches[1]
    assert x.tolist() == [[20, 21, 22, 0], [30, 31, 32, 33]]
    assert y.tolist() == [2, 3]


def test_samples_are_dicts_of_tensors_and_texts():
    ((first, second),) = Loader(ROWS[:2], Fixed(2, shuffle=False), collator=lambda them: them)
    assert first["x"].tolist() == [0]
    assert second["x"].tolist() == [10, 11]
    assert second["y"].shape == ()
    assert second["name"] == "n1"


def test_a_shift_gives_inputs_and_targets():
    (made,) = Loader(
        ROWS[2:4], Fixed(2, shuffle=False), collator=lambda them: them, shift=1, fields=("x",)
    )
    assert made[1]["x"].tolist() == [30, 31, 32]
    assert made[1]["targets"].tolist() == [31, 32, 33]


def test_parts_of_a_mapping_go_with_parts_of_the_batch():
    loader = Loader(
        ROWS, Bucketed(2), collator=as_mapping, as_tuple=("x", "y", "weight"), world=World(1, 2)
    )
    for x, y, weight in loader:
        assert len(x) == len(y) == len(weight)


def test_the_default_of_torch_is_accepted():
    rows = [{"x": np.arange(3) + n, "y": n} for n in range(4)]
    (made,) = Loader(rows, Fixed(4, shuffle=False), collator=default_collate)
    assert made["x"].shape == (4, 3)
    assert made["y"].tolist() == [0, 1, 2, 3]


def test_dummy_rows_that_it_could_not_tell_are_refused():
    with pytest.raises(ConfigError, match=r"has no 'weight' to mark padding rows. .*tail='drop'"):
        Loader(ROWS, Fixed(2), collator=as_pairs, world=World(0, 2))
    loader = Loader(ROWS, Fixed(2), collator=as_pairs, world=World(0, 2), tail="drop")
    assert len(list(loader)) == 1


def test_rows_of_several_spans_are_refused():
    with pytest.raises(ConfigError, match="a `collate_fn` takes one sequence per row, but rows of"):
        list(Loader(ROWS, Packed(1, 8), collator=as_pairs))


def test_a_function_of_one_argument_is_a_collate_fn():
    class Callable:
        def __call__(self, features, pad_to=None):
            return features

    def collator(columns, batch):
        return batch

    for function in (as_pairs, default_collate, Callable(), lambda them: them):
        assert isinstance(resolve_collator(function), Samples)
    for function in (collator, Padded(), max, lambda *given: given):
        assert resolve_collator(function) is function


def test_a_collator_gives_a_batch_as_before():
    (batch,) = Loader(ROWS, Fixed(5), collator="padded")
    assert isinstance(batch, SequenceBatch)
