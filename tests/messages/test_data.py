"""Data that is not what it is taken for."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import default_collate

from seqdata import (
    Bucketed,
    ConfigError,
    DataError,
    DecodeError,
    Fixed,
    IncompleteDatasetError,
    Loader,
    concat,
    measure_lengths,
    open_store,
    write_store,
)
from tests.messages.said import rows, says


@says(DecodeError, "sequence 1", "'x'", "(3, 5)", "(T, 4)")
def test_sequences_of_other_widths(tmp_path):
    write_store(tmp_path / "new", [{"x": np.zeros((3, 4))}, {"x": np.zeros((3, 5))}])


@says(DecodeError, "sequence 1", "'x'", "(3, 5)", "(T, 4)")
def test_arrays_of_other_widths():
    Loader([np.zeros((3, 4)), np.zeros((3, 5))], Fixed(2))


@says(DecodeError, "sequence 1", "'y'", "same fields")
def test_a_field_that_is_missing(tmp_path):
    write_store(tmp_path / "new", [{"x": np.zeros(3), "y": 1}, {"x": np.zeros(3)}])


@says(DecodeError, "sequence 1", "'y'", "same fields")
def test_a_field_too_many(tmp_path):
    write_store(tmp_path / "new", [{"x": np.zeros(3)}, {"x": np.zeros(3), "y": 1}])


@says(DecodeError, "sequence 0", "'y'", "None")
def test_a_value_of_none(tmp_path):
    write_store(tmp_path / "new", [{"x": np.zeros(3), "y": None}])


@says(DecodeError, "sequence 0", "'text'", "5 timesteps", "'mel'", "3", "`axes`")
def test_fields_of_other_lengths(tmp_path):
    sequence = {"mel": np.zeros((3, 4)), "text": np.zeros(5, dtype=int)}
    write_store(tmp_path / "new", [sequence])


@says(ConfigError, "'a'", "array")
def test_numbers_only(tmp_path):
    write_store(tmp_path / "new", [{"a": 1, "b": 2}])


@says(ConfigError, "text")
def test_texts_only(tmp_path):
    write_store(tmp_path / "new", ["hello", "world"])


@says(ConfigError, "dict", "list")
def test_one_sequence_without_a_list(tmp_path):
    write_store(tmp_path / "new", {"x": np.zeros(3)})


@says(ConfigError, "empty")
def test_no_sequence_at_all(tmp_path):
    write_store(tmp_path / "new", [])


@says(ConfigError, "empty")
def test_an_empty_list():
    Loader([], Fixed(2))


@says(DecodeError, "sequence 0", "'x'", "object")
def test_an_array_of_objects(tmp_path):
    mixed = np.array([1, "a", None], dtype=object)
    write_store(tmp_path / "new", [{"x": mixed}])


@says(DecodeError, "sequence 1", "'y'", "float64", "int64")
def test_a_number_of_another_type(tmp_path):
    write_store(tmp_path / "new", [{"x": np.zeros(3), "y": 1}, {"x": np.zeros(3), "y": 1.5}])


@says(DecodeError, "'a'", "sequence 0", "unique")
def test_two_sequences_of_one_id(tmp_path):
    write_store(tmp_path / "new", [{"id": "a", "x": np.zeros(3)}, {"id": "a", "x": np.zeros(3)}])


@says(DecodeError, "'x'", "detach")
def test_a_tensor_with_gradients(tmp_path):
    write_store(tmp_path / "new", [{"x": torch.zeros(3, requires_grad=True)}])


@says(ConfigError, "series, t, v", "group=")
def test_a_frame_with_a_row_per_timestep():
    frame = pd.DataFrame({"series": [0, 0, 1], "t": [0, 1, 0], "v": [0.1, 0.2, 0.3]})
    Loader(frame, Fixed(2))


@says(ConfigError, "function", "list")
def test_a_generator_that_is_not_called(tmp_path):
    write_store(tmp_path / "new", rows)


@says(ConfigError, "holds a store", "overwrite")
def test_a_folder_that_holds_a_store(written):
    write_store(written, rows())


@says(ConfigError, "nowhere", "Check the path")
def test_a_path_that_is_not_there(tmp_path):
    open_store(tmp_path / "nowhere")


@says(DataError, "empty", "seqdata write")
def test_an_empty_folder(tmp_path):
    open_store(tmp_path)


@says(DataError, "a.txt", "seqdata write")
def test_a_text_file(tmp_path):
    (tmp_path / "a.txt").write_text("hello", "utf-8")
    open_store(tmp_path / "a.txt")


@says(IncompleteDatasetError, "seqdata.json", "Write the store again")
def test_a_store_that_was_not_finished(tmp_path):
    (tmp_path / "part-00000.arrow").write_bytes(b"x" * 100)
    open_store(tmp_path)


@says(ConfigError, "gcsfs", "pip install")
def test_a_bucket_without_its_package():
    open_store("gs://bucket/store")


@says(ConfigError, "'foo'", "s3")
def test_a_scheme_that_nobody_reads():
    open_store("foo://bucket/store")


@says(ConfigError, "store 1 differs", "float64")
def test_stores_of_other_fields(store):
    concat([store, [{"id": "a", "x": np.zeros((3, 2)), "y": 1}]])


@says(DecodeError, "'s11'", "None", "where")
def test_a_transform_that_drops_sequences(store):
    list(Loader(store, Bucketed(4), transform=lambda sequence, rng: None))


@says(DecodeError, "'s11'", "ndarray", "dict")
def test_a_transform_that_returns_an_array(store):
    list(Loader(store, Bucketed(4), transform=lambda sequence, rng: sequence["x"]))


@says(DecodeError, "'s11'", "'x'", "14 timesteps", "27", "lengths")
def test_a_transform_that_changes_lengths(store):
    list(Loader(store, Bucketed(4), transform=every_second))


def every_second(sequence, rng):
    return {**sequence, "x": sequence["x"][::2]}


@says(DecodeError, "float32[27, 2]", "float32[24, 1]", "'s11'")
def test_a_transform_of_two_minds(store):
    def cut(sequence, rng):
        return {**sequence, "x": sequence["x"][:, : 1 + len(sequence["x"]) % 2]}

    list(Loader(store, Bucketed(4), transform=cut))


@says(KeyError, "'z'", "sequence 's11'", "epoch 0, batch 0")
def test_a_transform_that_raises(store):
    list(Loader(store, Bucketed(4), transform=lambda sequence, rng: sequence["z"]))


@says(ConfigError, "lambda", "module", "fork")
def test_a_lambda_for_workers(store):
    list(Loader(store, Bucketed(4), transform=lambda sequence, rng: sequence, num_workers=1))


@says(RuntimeError, "equal size", "dict with id, x, y", "leave the function out")
def test_a_collate_function_that_stacks(store):
    list(Loader(store, Bucketed(4), collator=default_collate))


@says(DataError, "sequence 0", "'x'", "nan", "finite")
def test_values_that_are_no_numbers():
    list(Loader([np.array([0.0, np.nan])], Fixed(1), check_values=True))


@says(RuntimeError, "cannot open file", "item 0")
def test_a_dataset_that_raises():
    Loader(Raising(), Fixed(2), lengths=lambda item: len(item["x"]))


@says(RuntimeError, "cannot open file", "item 2", "epoch 0, batch 0")
def test_a_dataset_that_raises_while_it_is_read():
    list(Loader(Raising(only=2), Fixed(4), lengths=[1, 1, 1]))


class Raising(torch.utils.data.Dataset):
    def __init__(self, only=0):
        self.only = only

    def __len__(self):
        return 3

    def __getitem__(self, number):
        if number == self.only:
            raise RuntimeError("cannot open file")
        return {"x": torch.zeros(1)}


@says(ConfigError, "`lengths`", "1.5")
def test_lengths_that_are_no_integers():
    Loader(Raising(only=9), Fixed(2), lengths=lambda item: 1.5)


@pytest.mark.parametrize("transform", [lambda sequence, rng: {"x": sequence["x"], "n": None}])
def test_a_measured_value_of_none(store, transform):
    @says(DecodeError, "'n'", "None", "'s0'")
    def measured():
        measure_lengths(store, transform)

    measured()
