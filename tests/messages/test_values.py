"""Values of the wrong type or size."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from seqdata import (
    TBPTT,
    Bucketed,
    ConfigError,
    DataError,
    Fixed,
    Loader,
    Packed,
    PlanError,
    TokenBudget,
    Windows,
    World,
    folds,
    measure_lengths,
    split,
)
from tests.messages.said import says


@says(ConfigError, "32", "Bucketed(64)")
def test_a_number_for_a_policy(store):
    Loader(store, 32)


@says(ConfigError, "Bucketed", "Bucketed(64)")
def test_the_class_of_a_policy(store):
    Loader(store, Bucketed)


@says(ConfigError, "int", "list")
def test_a_number_for_data():
    Loader(7, Bucketed(4))


@says(ConfigError, "None", "`return`")
def test_nothing_for_data():
    Loader(None, Bucketed(4))


@says(ConfigError, "DataLoader", "dataset")
def test_a_torch_dataloader_for_data():
    Loader(DataLoader([torch.zeros(3)]), Fixed(2))


@pytest.mark.parametrize("size", [4.5, "4", 0, -1, True])
def test_a_batch_size(size):
    @says(ConfigError, "`batch_size`", repr(size), "at least 1")
    def given():
        Bucketed(size)

    given()


@says(PlanError, "10 sequences", "`max_tokens=3`", "'s0'", "too_long")
def test_a_budget_below_every_sequence(store):
    Loader(store, TokenBudget(3))


@pytest.mark.parametrize("seed", [1.5, -1, "0"])
def test_a_seed(store, seed):
    @says(ConfigError, "`seed`", repr(seed), "2**64")
    def given():
        Loader(store, Bucketed(4), seed=seed)

    given()


@says(ConfigError, "`world`", "2", "World(rank, size)")
def test_a_number_for_the_world(store):
    Loader(store, Bucketed(4), world=2)


@says(ConfigError, "`rank`", "2", "from 0")
def test_a_rank_that_counts_from_one():
    World(2, 2)


@says(ConfigError, "`fields`", "'x'", "tuple")
def test_a_text_for_fields(store):
    Loader(store, Bucketed(4), fields="x")


@says(ConfigError, "`as_tuple`", "'x'", "('x', 'lengths')")
def test_a_text_for_a_tuple(store):
    Loader(store, Bucketed(4), as_tuple="x")


@says(ConfigError, "`as_tuple` and `as_dict`", "Leave one of them out")
def test_a_tuple_and_a_dict(store):
    Loader(store, Bucketed(4), as_tuple=("x",), as_dict=("x",))


@says(ConfigError, "`num_workers`", "-1", "integer")
def test_fewer_workers_than_none(store):
    Loader(store, Bucketed(4), num_workers=-1)


@says(ConfigError, "`transform`", "'log'", "function")
def test_a_text_for_a_transform(store):
    Loader(store, Bucketed(4), transform="log")


@says(ConfigError, "`transform`", "(sequence, rng)")
def test_a_transform_of_one_argument(store):
    Loader(store, Bucketed(4), transform=lambda sequence: sequence)


@says(ConfigError, "`transform`", "'tok'", "function")
def test_a_text_to_measure_with(store):
    measure_lengths(store, "tok")


@says(ConfigError, "split", "[0.8, 0.2]", "{'train': 0.8")
def test_a_list_of_shares(store):
    split(store, [0.8, 0.2])


@says(ConfigError, "split", "{'train': 0.8, 'val': 0.4}", "add up to 1")
def test_shares_of_more_than_all(store):
    split(store, {"train": 0.8, "val": 0.4})


@says(ConfigError, "'val'", "2 sequences", "seed")
def test_a_part_without_a_sequence(store):
    split(store.take([0, 1]), {"train": 0.5, "val": 0.25, "test": 0.25})


@says(ConfigError, "folds", "1", "[2, 12]")
def test_one_fold(store):
    folds(store, 1)


@says(ConfigError, "take", "99", "[0, 12)")
def test_a_sequence_beyond_the_last(store):
    store.take([99])


@says(IndexError, "99", "12")
def test_a_number_beyond_the_last(store):
    _ = store[99]


@says(ConfigError, "where", "(2,)", "(12,)", "one bool per sequence")
def test_a_mask_of_another_length(store):
    store.where([True, False])


@says(ConfigError, "100", "[0, 12)")
def test_the_id_of_a_sequence_beyond_the_last(store):
    store.keys([100])


@says(ConfigError, "sequence 0", "'x'", "0..10000", "0..25")
def test_timesteps_beyond_the_last(store):
    _ = store.read(np.array([[0, 0, 10_000]]), ["x"])["x"][0]


@says(PlanError, "window", "500", "2 to 27 timesteps")
def test_a_window_longer_than_every_sequence(store):
    Loader(store, Windows(size=500, stride=1, batch_size=2))


@says(PlanError, "of which a shift takes 100")
def test_a_shift_longer_than_every_sequence(store):
    Loader(store, Bucketed(4), shift=100)


@says(PlanError, "`max_length=5`", "'s0'", "too_long")
def test_sequences_that_are_too_long(store):
    Loader(store, Fixed(4, max_length=5))


@says(PlanError, "12", "`too_long`")
def test_all_sequences_dropped(store):
    Loader(store, Fixed(4, max_length=1, too_long="drop"))


@says(PlanError, "`row_length=8`", "'s0'", "too_long")
def test_a_row_shorter_than_a_sequence(store):
    Loader(store, Packed(rows=2, row_length=8))


@says(PlanError, "`tail='drop'`", "2 ranks", "fill")
def test_a_tail_that_drops_everything(store):
    next(iter(Loader(store, Bucketed(64), tail="drop", world=World(0, 2))))


@says(ConfigError, "'weight'", "tail='drop'")
def test_dummy_rows_without_a_weight(store):
    Loader(store, Bucketed(5), as_tuple=("x", "y"), world=World(0, 2))


@says(ConfigError, "`advance`", "9", "`chunk=8`")
def test_windows_that_leave_a_gap():
    TBPTT(lanes=4, chunk=8, advance=9)


@says(ConfigError, "'replace'", "lanes", "'mask'")
def test_another_sequence_in_a_lane(store):
    Loader(store, TBPTT(lanes=4, chunk=8), on_error="replace")


@says(DataError, "3", "`lengths`")
def test_lengths_that_are_not_the_items(store):
    items = [{"x": torch.zeros(1)}, {"x": torch.zeros(2)}, {"x": torch.zeros(3)}]
    list(Loader(_Items(items), Fixed(2), lengths=[1, 2, 4]))


@says(ConfigError, "`lengths`", "(2,)", "(3,)")
def test_lengths_of_fewer_items():
    Loader(_Items([torch.zeros(1)] * 3), Fixed(2), lengths=[1, 2])


@says(ConfigError, "no lengths", "`lengths`")
def test_a_dataset_without_lengths():
    Loader(_Items([torch.zeros(1)] * 3), Fixed(2))


class _Items(torch.utils.data.Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, number):
        return self.items[number]
