"""`padding` of a Loader or DataModule is the padding of its collator."""

import numpy as np
import pytest

from seqdata.collators.padded import Padded
from seqdata.errors import ConfigError
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.loading.loader import Loader
from seqdata.policies.fixed import Fixed
from seqdata.policies.zip import Zip

ROWS = [{"x": np.arange(n, dtype=np.float32), "tokens": np.arange(n) + 1} for n in (1, 3)]
FIXED = Fixed(2, shuffle=False)


@pytest.mark.parametrize("collator", [None, "padded", Padded()])
def test_one_value_or_one_by_field(collator):
    (batch,) = Loader(ROWS, FIXED, padding=-1, collator=collator)
    assert batch["x"][0].tolist() == [0, -1, -1]
    assert batch["tokens"][0].tolist() == [1, -1, -1]
    data = SequenceDataModule(train=ROWS, batching=FIXED, padding={"tokens": 9}, collator=collator)
    (batch,) = data.train_dataloader()
    assert batch["x"][0].tolist() == [0, 0, 0]
    assert batch["tokens"][0].tolist() == [1, 9, 9]


def test_targets_of_a_shift_have_a_value_of_their_own():
    options = {"fields": ("tokens",), "shift": 1}
    rows = [{"tokens": np.arange(n)} for n in (2, 4)]
    (batch,) = Loader(rows, FIXED, padding={"targets": -100, "tokens": 7}, **options)
    assert batch["tokens"].tolist() == [[0, 7, 7], [0, 1, 2]]
    assert batch["targets"].tolist() == [[1, -100, -100], [1, 2, 3]]
    (batch,) = Loader(rows, FIXED, padding=-1, **options)
    assert batch["targets"].tolist() == [[1, -1, -1], [1, 2, 3]]


def test_of_a_zip_each_part_takes_its_fields():
    parts = {"a": [{"x": [1, 2]}, {"x": [1]}], "b": [{"z": [1, 2]}, {"z": [1]}]}
    loader = Loader(parts, Zip({"a": FIXED, "b": FIXED}), padding={"x": 5, "z": 6})
    (step,) = loader
    assert step["a"]["x"][1].tolist() == [1, 5]
    assert step["b"]["z"][1].tolist() == [1, 6]


def test_it_is_refused_where_nothing_is_padded_or_two_are_given():
    with pytest.raises(ConfigError, match="`padding` requires a collator that pads, but `collat"):
        Loader(ROWS, FIXED, padding=1, collator="varlen")
    with pytest.raises(ConfigError, match="`padding` is 1, and `collator` has 2"):
        Loader(ROWS, FIXED, padding=1, collator=Padded(2))


def test_values_and_names_are_checked():
    with pytest.raises(ConfigError, match="`padding` must be a number, or field -> number, but is"):
        Loader(ROWS, FIXED, padding="x")
    with pytest.raises(ConfigError, match="`padding` must be a number, or field -> number, but is"):
        SequenceDataModule(train=ROWS, padding={"x": None})
    with pytest.raises(ConfigError, match="`padding`: no field 'token'; did you mean 'tokens'"):
        list(Loader(ROWS, FIXED, padding={"token": 1}))
    with pytest.raises(ConfigError, match="`padding` of field 'tokens' must be a value of int64"):
        list(Loader(ROWS, FIXED, padding={"tokens": 0.5}))
