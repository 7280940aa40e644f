"""Where a list or dict is taken, any Sequence or Mapping is: Hydra's ListConfig and DictConfig."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from seqdata.api import concat, open_store, split, write_store
from seqdata.arguments import to_plain
from seqdata.errors import ConfigError
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.loading.loader import Loader
from seqdata.planning.build import describe_policy
from seqdata.planning.parts import Part
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.mix import Mix
from seqdata.policies.windows import Windows
from seqdata.policies.zip import Zip


class Names(Sequence):
    """A Sequence that is no list."""

    def __init__(self, *items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, number):
        return self.items[number]


class Config(Mapping):
    """A Mapping that is no dict."""

    def __init__(self, **items):
        self.items_by_name = items

    def __getitem__(self, name):
        return self.items_by_name[name]

    def __iter__(self):
        return iter(self.items_by_name)

    def __len__(self):
        return len(self.items_by_name)


ROWS = [{"x": np.arange(n, dtype="float64"), "y": n % 3, "z": n} for n in range(1, 13)]


@pytest.fixture
def stores(tmp_path):
    for name in ("a", "b"):
        write_store(tmp_path / name, ROWS)
    return [str(tmp_path / "a"), str(tmp_path / "b")]


def test_options_of_a_loader():
    options = {
        "fields": (["x", "y"], Names("x", "y")),
        "as_tuple": (["x", "lengths"], Names("x", "lengths")),
        "as_dict": (["x", "y"], Names("x", "y")),
        "dtype": ({"x": "float32"}, Config(x="float32")),
        "padding": ({"x": -1}, Config(x=-1)),
        "shift": ({"x": 1}, Config(x=1)),
    }
    for name, (plain, other) in options.items():
        found = [
            repr(list(Loader(ROWS, Fixed(4, shuffle=False), **{name: value})))
            for value in (plain, other)
        ]
        assert found[0] == found[1]


def test_lists_and_dicts_of_locations(stores):
    several = Names(*stores)
    assert len(open_store(several)) == len(concat(several)) == 24
    assert len(list(Loader(several, Bucketed(12)))) == 2
    data = SequenceDataModule(
        train=Config(a=stores[0], b=Names(*stores)), val=Config(v=stores[1]),
        batching=Mix(Config(a=1, b=2), Fixed(4)),
    )  # fmt: skip
    assert len(list(data.train_dataloader())) > 0
    (loader,) = data.val_dataloader()
    assert len(list(loader)) == 3
    parts = split(open_store(stores[0]), Config(train=0.5, val=0.5), exact=True)
    assert sorted(parts) == ["train", "val"]


def test_options_of_a_datamodule(stores):
    def made(of_list, of_dict):
        data = SequenceDataModule(
            train=of_list(*stores), split=of_dict(train=0.5, val=0.5, exact=True),
            where=of_dict(y=of_list(0, 1)), rename=of_dict(z="label"), batching=Fixed(4),
            fields=of_list("x", "label"),
        )  # fmt: skip
        return data, repr([batch["label"].tolist() for batch in data.train_dataloader()])

    plain, found = made(lambda *items: list(items), dict), made(Names, Config)
    assert plain[1] == found[1]
    assert repr(found[0]._options.train) == repr(plain[0]._options.train)


def test_policies_are_the_same_policies():
    pairs = [
        (Windows([2, 4]), Windows(Names(2, 4))),
        (Mix({"a": 1, "b": 2}, Fixed(4)), Mix(Config(a=1, b=2), Fixed(4))),
        (Zip({"a": Fixed(2)}), Zip(Config(a=Fixed(2)))),
    ]
    for plain, found in pairs:
        assert describe_policy(plain) == describe_policy(found)
    assert to_plain(Config(a=Names(1, Config(b=2)))) == {"a": [1, {"b": 2}]}


@pytest.mark.parametrize("made", [
    lambda copy: SequenceDataModule(train=ROWS, batching=Fixed(4), statistics=Config(x=copy)),
    lambda copy: SequenceDataModule(train=ROWS, batching=Fixed(4), statistics={"x": dict(copy)}),
    lambda copy: Zip({"a": copy}),
    lambda copy: Mix({"a": copy}, Fixed(4)),
    lambda copy: Mix({"a": Part(1, copy)}),
])  # fmt: skip
def test_a_copy_of_an_objects_fields_is_told_with_the_option_of_hydra(made):
    """Hydra makes one of an object within a dict, unless its config says otherwise."""
    told = r", but is \{.*\}\. If Hydra made it, add `_convert_: all` to the config"
    with pytest.raises(ConfigError, match=told):
        made(HydraCopy({"weight": 1.0, "policy": None}))


class HydraCopy(dict):
    """A Mapping that prints itself as a dict does."""


def test_other_values_are_told_without_the_option_of_hydra():
    with pytest.raises(ConfigError) as raised:
        Zip({"a": 3})
    assert "Hydra" not in str(raised.value)
