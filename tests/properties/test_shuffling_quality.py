"""Models learn as from a plain permutation, whatever the policy; nothing keeps its place.

The tables are those of ``benchmarks/shuffling.py``, which prints them with what a plain global
permutation of the same sequences gives; here every aim must be reached. By seeds that are fixed:
the same figures every night.
"""

import importlib
from pathlib import Path

import numpy as np
import pytest
import torch

from seqdata import Bucketed, Fixed, builtin

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
POLICIES = (
    *("Fixed", "Sorted", "Bucketed", "TokenBudget", "Packed", "Windows", "Windows, random"),
    *("Weighted", "Weighted, Fixed", "Mix", "Mix of rows", "Zip", "Curriculum", "Segments"),
)
ORDERED_BY_LENGTH = ("Sorted", "Bucketed", "TokenBudget")
OPTIMIZERS = ("Adam", "SGD with momentum")
RANKS = (1, 2, 4, 8)
SOURCES = ("Mix of rows, Fixed", "Mix of rows, Bucketed", "Windows, random")
TIES_BY_INDEX = "sequences of equal length stay in the order of the data"
FEW_LENGTHS = "apart means 24 of the 60 rare ones in every batch: 12 points of padding at least"
ROWS_OF_SLOTS = "slots follow from the histogram: only equal lengths may change places"
pytestmark = pytest.mark.timeout(3600)


def missed(*values, reason):
    """Return parameters of which an aim is known to be missed: it says so when it is reached."""
    return pytest.param(*values, marks=pytest.mark.xfail(strict=True, reason=reason))


@pytest.fixture
def tables(monkeypatch):
    """Return what finds a module of the tables."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums do not depend on the machine
    yield lambda name: importlib.import_module(f"shuffling_set.{name}")
    torch.set_num_threads(threads)


def check(rows):
    missed = [row for row in rows if row.reached is False]
    assert not missed, "\n".join(map(str, missed))
    assert any(row.reached for row in rows)


def test_the_tables_have_every_policy_without_lanes(tables):
    cases = tables("cases")
    assert tuple(cases.POLICIES) == POLICIES
    found = {type(make(64, 3_000)).__name__ for make in cases.POLICIES.values()}
    assert found == {place.partition(":")[2] for place in builtin.POLICIES.values()} - {"TBPTT"}


def test_what_is_counted_in_an_order(tables):
    orders = tables("orders")
    order = orders.Order(np.array([0, 0, 1, 2, 2, 2, 3]), np.array([0, 3, 6, 7]))
    repeats, copies = orders.count_copies(order)
    assert (repeats.tolist(), copies.tolist()) == ([1, 2, 0], [2, 3, 1])
    classes = np.array([0, 1, 1, 0])
    assert orders.count_values(order, classes).tolist() == [2, 1, 1]
    assert orders.count_values(order, classes, 2).tolist() == [2]
    mixed = orders.permute_batches(order, np.random.default_rng(3))
    cut = [own.tolist() for own in np.split(mixed.numbers, mixed.offsets[1:-1])]
    assert sorted(cut) == [[0, 0, 1], [2, 2, 2], [3]]


@pytest.mark.nightly
@pytest.mark.parametrize("name", POLICIES)
def test_a_model_learns_from_data_that_is_stored_class_by_class(tables, name):
    check(tables("stored_by_class").train_stored_by_class(name))


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name",
    [*(name for name in POLICIES if name != "Sorted"), missed("Sorted", reason=TIES_BY_INDEX)],
)
def test_a_batch_has_the_classes_of_a_permutation(tables, name):
    check(tables("stored_by_class").count_classes(name))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["Windows", "Windows, random"])
def test_batches_have_the_series_of_a_permutation(tables, name):
    check(tables("stored_by_class").count_series(name))


@pytest.mark.nightly
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["Fixed", *ORDERED_BY_LENGTH])
def test_a_model_learns_labels_that_go_along_with_length(tables, name, optimizer):
    check(tables("by_length").train_by_length(name, optimizer))


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", ORDERED_BY_LENGTH)
def test_a_step_is_not_like_the_next_one_while_its_ranks_have_like_work(tables, name, ranks):
    check(tables("by_length").correlate_steps(name, ranks))


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", ORDERED_BY_LENGTH)
def test_a_loader_balances_for_its_ranks(tables, name, ranks):
    check(tables("by_length").compare_loaders(name, ranks))


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", RANKS)
def test_a_mixture_does_not_stay_with_a_part(tables, ranks):
    check(tables("mixtures").count_runs(ranks))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "count"),
    [
        *(("Fixed", count) for count in (2_000, 20_000)),
        *(missed(name, 2_000, reason=FEW_LENGTHS) for name in ORDERED_BY_LENGTH),
        *((name, 20_000) for name in ORDERED_BY_LENGTH),
        *(missed("Packed", count, reason=ROWS_OF_SLOTS) for count in (2_000, 20_000)),
    ],
)
def test_draws_of_a_sequence_are_apart_for_little_padding(tables, name, count):
    check(tables("repeats").count_repeats(name, count))


@pytest.mark.nightly
@pytest.mark.parametrize(
    "source", [*SOURCES, missed("taken, Bucketed", reason="1.55 times in place of 1.5")]
)
def test_a_sequence_that_comes_several_times_is_apart(tables, source):
    check(tables("repeats").count_repeats_of(source))


@pytest.mark.nightly
@pytest.mark.parametrize("name", POLICIES)
def test_the_end_of_an_epoch_is_not_that_of_the_next(tables, name):
    check(tables("places").compare_epochs(name))


@pytest.mark.nightly
@pytest.mark.parametrize("count", [3_000, 300_000, 1_000_000])
@pytest.mark.parametrize("name", POLICIES)
def test_no_sequence_keeps_a_place_over_fifty_epochs(tables, name, count):
    check(tables("places").find_mean_places(name, count))


def all_missed(rows):
    return all(row.reached is False for row in rows if row.reached is not None)


@pytest.mark.nightly
def test_the_aims_are_missed_without_shuffling(tables, monkeypatch):
    monkeypatch.setitem(
        tables("cases").POLICIES, "Fixed", lambda rows, _: Fixed(rows, shuffle=False)
    )
    assert all_missed(tables("stored_by_class").train_stored_by_class("Fixed", 200_000))
    assert all_missed(tables("stored_by_class").count_classes("Fixed", 200_000))
    assert all_missed(tables("places").compare_epochs("Fixed", 30_000))
    by_number, _, _ = tables("places").find_mean_places("Fixed", 3_000)
    assert not by_number.reached


@pytest.mark.nightly
def test_the_aims_are_missed_in_blocks_of_neighbours(tables, monkeypatch):
    monkeypatch.setitem(
        tables("cases").POLICIES, "Bucketed", lambda rows, _: Bucketed(rows, shuffle="blocks")
    )
    assert all_missed(tables("stored_by_class").train_stored_by_class("Bucketed"))
    assert all_missed(tables("stored_by_class").count_classes("Bucketed"))


@pytest.mark.nightly
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_aims_are_missed_with_64_batches_of_like_length_in_a_row(
    tables, monkeypatch, optimizer
):
    by_length = tables("by_length")
    monkeypatch.setitem(by_length.POLICIES, "Bucketed", Bucketed(128, balance_ranks=64))
    assert all_missed(by_length.train_by_length("Bucketed", optimizer))
