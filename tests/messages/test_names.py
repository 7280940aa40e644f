"""Names that are misspelled, or come from another library."""

import pytest

import seqdata
from seqdata import (
    Bucketed,
    ConfigError,
    Fixed,
    Loader,
    PluginError,
    SequenceDataModule,
    Windows,
    open_store,
    split,
    write_store,
)
from tests.messages.said import rows, says


@pytest.fixture
def batch(store):
    return next(iter(Loader(store, Bucketed(4))))


@says(AttributeError, "SequenceDatamodule", "did you mean 'SequenceDataModule'?")
def test_a_public_name():
    _ = seqdata.SequenceDatamodule


@says(ConfigError, "'X'", "id, x, y")
def test_a_field_to_read(store):
    Loader(store, Bucketed(4), fields=("X", "y"))


@says(ConfigError, "'feature'", "id, x, y")
def test_a_field_of_a_batch(batch):
    _ = batch["feature"]


@says(AttributeError, "length")  # Python's traceback adds: Did you mean: 'lengths'?
def test_an_attribute_of_a_batch(batch):
    assert "lengths" in dir(batch)
    _ = batch.length


@says(KeyError, "'z'", "Choose one of x")
def test_a_field_of_the_context_of_windows(store):
    batch = next(iter(Loader(store, Windows(size=4, stride=1, batch_size=2, horizon=1))))
    _ = batch.context["z"]


@says(KeyError, "'text'", "time")
def test_an_axis_of_the_lengths(batch):
    _ = batch.lengths_of["text"]


@says(ConfigError, "'targets'", "shift=")
def test_targets_without_a_shift(batch):
    _ = batch["targets"]


@says(ConfigError, "'mel'", "id, x, y")
def test_a_field_to_pack(batch):
    batch.packed("mel")


@says(ConfigError, "'length'", "did you mean 'lengths'?")
def test_a_part_of_a_tuple(store):
    Loader(store, Bucketed(4), as_tuple=("x", "length", "y"))


@says(PluginError, "'buckets'", "did you mean 'bucketed'?")
def test_a_policy(store):
    Loader(store, "buckets")


@says(PluginError, "'pad'", "did you mean 'padded'?")
def test_a_collator(store):
    Loader(store, Bucketed(4), collator="pad")


@says(PluginError, "'arow'", "did you mean 'arrow'?")
def test_a_backend(written):
    open_store(written, backend="arow")


@says(ConfigError, "`tail`", "'dropp'", "'drop'")
def test_a_tail(store):
    Loader(store, Bucketed(4), tail="dropp")


@says(ConfigError, "`on_error`", "'skip'", "'mask'")
def test_what_an_error_does(store):
    Loader(store, Bucketed(4), on_error="skip")


@says(ConfigError, "`too_long`", "'cut'", "'truncate'")
def test_what_too_long_does():
    Fixed(4, max_length=10, too_long="cut")


@says(ConfigError, "`verify`", "'yes'", "first_read")
def test_how_to_verify(written):
    open_store(written, verify="yes")


@says(ConfigError, "`start_method`", "'thread'", "forkserver")
def test_a_start_method(store):
    Loader(store, Bucketed(4), num_workers=1, start_method="thread")


@says(ConfigError, "`shift`", "'tokens'", "x")
def test_a_field_to_shift(store):
    Loader(store, Bucketed(4), shift={"tokens": 1})


@says(ConfigError, "axis 'frames'", "time")
def test_the_axis_of_a_policy(store):
    Loader(store, Bucketed(4, axis="frames"))


@says(ConfigError, "'speaker'", "id, x, y")
def test_a_field_to_split_by(store):
    split(store, {"train": 0.5, "val": 0.5}, by="speaker")


@says(ConfigError, "`axes`", "'mel'", "id, x, y")
def test_a_field_with_an_axis(tmp_path):
    write_store(tmp_path / "new", rows(), axes={"mel": "time"})


@says(ConfigError, "'parquet'", "arrow")
def test_a_format_to_write(tmp_path):
    write_store(tmp_path / "new", rows(), format="parquet")


@says(ConfigError, "'mel'", "id, x, y")
def test_a_field_of_a_store(store):
    store.select("mel")


@says(TypeError, "batch_size", "Bucketed(32)")
def test_the_batch_size_of_a_torch_loader(store):
    Loader(store, Bucketed(4), batch_size=32)


@says(TypeError, "batch_size", "Bucketed(32)")
def test_the_batch_size_of_another_datamodule(store):
    SequenceDataModule(train=store, batch_size=32)


@says(TypeError, "shuffle", "Bucketed(32, shuffle=True)")
def test_the_shuffle_of_a_torch_loader(store):
    Loader(store, Bucketed(4), shuffle=True)


@says(ConfigError, "collate_fn", "a function of one argument, a list of items")
def test_the_collate_fn_of_a_torch_loader(store):
    Loader(store, Bucketed(4), collate_fn=3)


@says(TypeError, "drop_last", "tail='drop'")
def test_the_drop_last_of_a_torch_loader(store):
    Loader(store, Bucketed(4), drop_last=True)


@says(TypeError, "sampler", "batching=")
def test_the_sampler_of_a_torch_loader(store):
    Loader(store, Bucketed(4), sampler=None)


@says(TypeError, "num_worker", "did you mean 'num_workers'?")
def test_an_argument(store):
    Loader(store, Bucketed(4), num_worker=2)
