"""Ranks compare the arguments of their Loaders once; real ranks are in ``tests/distributed``.

Here one process is each rank in turn, of a group over a real store that outlives it.
"""

import contextlib
import logging
import re

import pytest
import torch
import torch.distributed
from torch.testing._internal.distributed import fake_pg  # noqa: F401

from seqdata.errors import PlanError
from seqdata.loading import rank_comparison
from seqdata.loading.rank_comparison import RankComparison, describe_differences
from seqdata.sharing import World


def test_equal_facts_have_no_difference():
    assert describe_differences([{"a": 1, "b": None}] * 3) == ""
    assert describe_differences([{"a": 1}]) == ""
    assert describe_differences([{"a": None}, {}]) == ""


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([{"a": 1}, {"a": 2}], "`a` is 1 on rank 0 but 2 on rank 1"),
        ([{"a": 1}, {"a": 2}, {"a": 1}], "`a` is 1 on ranks 0, 2 but 2 on rank 1"),
        ([{"a": 1}, {"a": 2}, {"a": 3}], "`a` is 1 on rank 0 but 2 on rank 1 but 3 on rank 2"),
        ([{}, {"a": "x"}], "`a` is None on rank 0 but 'x' on rank 1"),
        (
            [{"a": 1, "b": 1}, {"a": 2, "b": 2}],
            "`a` is 1 on rank 0 but 2 on rank 1; `b` is 1 on rank 0 but 2 on rank 1",
        ),
        ([{"a": 0}] * 63 + [{"a": 1}], "`a` is 0 on ranks 0, 1, 2, 3 and 59 more but 1 on rank 63"),
    ],
)
def test_each_difference_is_told_with_its_ranks(values, text):
    assert describe_differences(values) == text


def test_a_count_is_not_the_fraction_that_is_equal_to_it():
    text = describe_differences([{"limit_val_batches": 1}, {"limit_val_batches": 1.0}])
    assert text == "`limit_val_batches` is 1 on rank 0 but 1.0 on rank 1"


class Ranks:
    """Two ranks that take turns: the store of their group stays, the group is left."""

    def __init__(self):
        self.store = torch.distributed.HashStore()

    @contextlib.contextmanager
    def being(self, rank, size=2):
        torch.distributed.init_process_group("fake", store=self.store, rank=rank, world_size=size)
        try:
            yield
        finally:
            torch.distributed.destroy_process_group()

    def check(self, comparison, rank, values):
        with self.being(rank):
            comparison.check(lambda: values)


@pytest.fixture
def ranks(monkeypatch):
    monkeypatch.setattr(rank_comparison, "PATIENCE", 0.0)  # the other rank cannot come meanwhile
    return Ranks()


def make():
    return [RankComparison(World(rank, 2)) for rank in range(2)]


WARNING = (
    "loader: not all ranks have begun to iterate, so their arguments are compared when this "
    "Loader begins its next epoch"
)


def test_a_rank_that_is_first_is_told_so_and_compares_later(ranks, caplog):
    first, second = make()
    with caplog.at_level(logging.WARNING, "seqdata"):
        ranks.check(first, 0, {"seed": 0})
        assert caplog.messages == [WARNING]
        ranks.check(second, 1, {"seed": 0})
        ranks.check(first, 0, {"seed": 0})
    assert caplog.messages == [WARNING]


def test_values_that_differ_are_an_error_on_every_rank(ranks):
    first, second = make()
    ranks.check(first, 0, {"seed": 0, "tail": "drop"})
    message = (
        "loader: ranks: `seed` is 0 on rank 0 but 1 on rank 1, which must be equal. Give the "
        "Loader of every rank the same data and options"
    )
    for comparison, rank, values in (
        (second, 1, {"seed": 1, "tail": "drop"}), (first, 0, {"seed": 7}),
    ):  # fmt: skip
        with pytest.raises(PlanError, match=f"^{re.escape(message)}"):
            ranks.check(comparison, rank, values)


def test_values_are_described_and_compared_once(ranks, caplog):
    first, second = make()
    asked = []

    def describe():
        asked.append(None)
        return {"seed": 0}

    for _ in range(2):
        for comparison, rank in ((first, 0), (second, 1)):
            with ranks.being(rank):
                comparison.check(describe)
    assert len(asked) == 2
    caplog.clear()
    ranks.store = torch.distributed.HashStore()  # in which the other rank has nothing
    ranks.check(first, 0, {"seed": 1})
    assert not caplog.messages


def test_the_loaders_of_a_rank_are_compared_in_their_order(ranks):
    train, val = make(), make()
    for pair, seed in ((train, 0), (val, 1)):
        for rank, comparison in enumerate(pair):
            ranks.check(comparison, rank, {"seed": seed})
    for pair in (train, val):
        ranks.check(pair[0], 0, {})  # neither is compared with the other


def test_one_rank_and_a_world_that_is_not_that_of_the_group_are_not_compared(ranks):
    def describe():
        raise AssertionError("asked")

    RankComparison(World(0, 1)).check(describe)
    RankComparison(World(0, 2)).check(describe)  # a World by hand, without a group
    with ranks.being(0, size=3):
        RankComparison(World(0, 2)).check(describe)
