"""The options of a DataModule: checked together, and the locations, names and lengths of kinds."""

import dataclasses
import inspect

import numpy as np
import pytest

from seqdata import Bucketed, Fixed, Mix, SequenceDataModule, World, open_store
from seqdata.errors import ConfigError
from seqdata.runs.options import DataOptions, choose_eval_policy

DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(SequenceDataModule.__init__).parameters.items()
    if parameter.default is not parameter.empty
}
MIX = Mix({"a": 1, "b": 1}, Bucketed(2))


def make(**options):
    return DataOptions(**{**DEFAULTS, "batching": Bucketed(32), **options})


def test_options_are_the_arguments_and_an_engine_has_those_that_concern_it():
    assert {field.name for field in dataclasses.fields(DataOptions)} == set(DEFAULTS)
    options = make(train="data/", seed=3, shift=2, pin_memory=False)
    assert (options.train, options.seed) == ("data/", 3)
    engine = options.make_engine_options(world=World(1, 2), seed=7)
    assert (engine.world, engine.seed, engine.collator) == (World(1, 2), 7, None)
    assert engine.shift == 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"on_changed": "ignore"}, "`on_changed` must be 'error'.*'next_epoch'.*'ignore'"),
        ({"batches_per_update": 0}, "`batches_per_update` must be an integer of at least 1"),
        ({"batches_per_update": "2"}, "`batches_per_update` must be an integer of at least 1"),
        ({"batches_per_update": 2, "tail": "drop"}, "`tail` must be 'fill' with `batches_per_up"),
        ({"lengths": {"training": len}}, "keys of `lengths` must be train, .*, but are training"),
        ({"train": {"a": "x", "b": "y"}}, "`train` must be one location, but has 2 named"),
    ],
)
def test_options_that_cannot_be_are_named(options, text):
    with pytest.raises(ConfigError, match=text):
        make(**options)


def test_kinds_have_locations_with_names_or_without():
    options = make(train={"a": "x", "b": "y"}, val={"en": "u", "de": "v"}, test="w", batching=MIX)
    assert options.get_locations("train") == [{"a": "x", "b": "y"}]  # a mixture is one
    assert options.get_names("train") == [None]
    assert options.get_locations("val") == ["u", "v"]
    assert options.get_names("val") == ["en", "de"]
    assert (options.get_locations("test"), options.get_names("test")) == (["w"], [None])
    assert options.get_locations("predict") == options.get_names("predict") == []
    assert [options.is_named(kind) for kind in ("train", "val", "test")] == [False, True, False]


def test_lengths_are_of_the_training_data_unless_they_are_named():
    data = [np.zeros(2)]
    assert make(train=data, val=data, lengths=[2]).get_lengths("train") == [[2]]
    assert make(train=data, val=data, lengths=[2]).get_lengths("val") == [None]
    by_kind = make(val={"a": data, "b": data}, lengths={"val": {"a": [2]}})
    assert by_kind.get_lengths("val") == [[2], None]
    assert by_kind.get_lengths("train") == []
    with pytest.raises(ConfigError, match=r"names of its locations \(a, b\), but is a list"):
        make(val={"a": data, "b": data}, lengths={"val": [2]}).get_lengths("val")
    with pytest.raises(ConfigError, match="but has the names "):
        make(val={"a": data}, lengths={"val": {"z": [2]}}).get_lengths("val")


def test_a_function_counts_items_of_datasets_only():
    class Dataset:
        def __len__(self):
            return 1

        def __getitem__(self, number):
            return np.zeros(2)

    store = open_store([np.zeros(2)])
    options = make(val={"a": Dataset(), "b": store}, lengths=len)
    assert options.get_lengths("val") == [len, None]


def test_the_part_of_a_mixture_evaluates_the_data_of_its_name():
    mix = MIX
    assert choose_eval_policy(Fixed(2), "val", "a") == Fixed(2)
    assert choose_eval_policy(mix, "val", "b") == mix.policies["b"]
    assert choose_eval_policy(mix, "val", None) == Bucketed(2)
