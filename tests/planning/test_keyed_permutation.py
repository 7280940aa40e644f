"""A permutation of any size, computed for some numbers at a time.."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.planning.randomness import KeyedPermutation
from tests.properties.counts import examples

COUNTS = [0, 1, 2, 3, 4, 5, 7, 10, 16, 17, 99, 100, 101, 1000, 8191, 8192, 8193, 40_000]


@pytest.mark.parametrize("count", COUNTS)
def test_each_number_goes_to_another_and_comes_back(count):
    permutation = KeyedPermutation(count, 1)
    numbers = np.arange(count)
    there = permutation.apply(numbers)
    assert np.sort(there).tolist() == numbers.tolist()
    assert permutation.invert(there).tolist() == numbers.tolist()
    assert permutation.apply(permutation.invert(numbers)).tolist() == numbers.tolist()


@examples(5, here=60)
@given(st.integers(1, (1 << 62) - 1), st.integers(0, 1 << 20), st.data())
def test_any_number_of_a_huge_count_comes_back(count, key, data):
    chosen = np.array(data.draw(st.lists(st.integers(0, count - 1), unique=True, max_size=30)))
    numbers = chosen.astype(np.int64)
    permutation = KeyedPermutation(count, key)
    there = permutation.apply(numbers)
    assert ((there >= 0) & (there < count)).all()
    assert len(np.unique(there)) == len(numbers)
    assert permutation.invert(there).tolist() == numbers.tolist()


def test_what_is_asked_does_not_matter():
    """One number, some in any order, or more than are mapped at once: each goes where it goes."""
    permutation = KeyedPermutation(50_000, 2)
    there = permutation.apply(np.arange(50_000))
    for numbers in ([0], [49_999, 3, 3], range(20_000, 40_000)):
        assert permutation.apply(np.array(numbers)).tolist() == there[list(numbers)].tolist()


def test_keys_and_counts_make_others_and_none_ever_changes():
    first = KeyedPermutation(1000, 2).apply(np.arange(1000))
    for other in (KeyedPermutation(1000, 3), KeyedPermutation(1001, 2)):
        assert (other.apply(np.arange(1000)) == first).mean() < 0.02
    assert KeyedPermutation(1000, 2).apply(np.arange(6)).tolist() == GOLDEN


GOLDEN = [592, 538, 244, 733, 105, 422]


def chi_square(counts, due):
    """Return by how many standard deviations counts are off an even distribution."""
    statistic = ((counts - due) ** 2 / due).sum()
    freedom = counts.size - 1
    return (statistic - freedom) / (2 * freedom) ** 0.5


@pytest.mark.parametrize("count", [10_000, 1 << 16, 65_537, 123_456])
@pytest.mark.parametrize("key", [1, 2])
def test_there_is_no_structure(count, key):
    there = KeyedPermutation(count, key).apply(np.arange(count))
    low = np.arange(count) * 16 // count
    high = there * 16 // count
    table = np.bincount(low * 16 + high, minlength=256)  # places: from where to where
    assert abs(chi_square(table, count / 256)) < 5
    for distance in (1, 2, 3, 16, 100, int(count**0.5), int(count**0.5) + 1):
        pairs = np.bincount(high[distance:] * 16 + high[:-distance], minlength=256)
        assert abs(chi_square(pairs, (count - distance) / 256)) < 6
        steps = np.diff(there[::distance])
        repeated = np.unique(steps, return_counts=True)[1].max()
        assert repeated < 12  # no step comes again and again
    parity = np.bincount((there % 2) * 2 + np.arange(count) % 2, minlength=4)
    assert abs(chi_square(parity, count / 4)) < 5


@pytest.mark.parametrize("blocks", [4, 40, 400])
def test_neighbours_meet_in_a_block_as_often_as_by_chance(blocks):
    count = 120_000
    of_item = KeyedPermutation(count, 2).apply(np.arange(count)) * blocks // count
    for distance in (1, 2, 7, 64, 346, 347):
        meet = int((of_item[distance:] == of_item[:-distance]).sum())
        due = (count - distance) / blocks
        assert abs(meet - due) < 5 * due**0.5


def test_few_numbers_are_permuted_in_many_ways():
    orders = {tuple(KeyedPermutation(4, key).apply(np.arange(4))) for key in range(600)}
    assert len(orders) == 24
