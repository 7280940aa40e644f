import numpy as np
import pytest

from seqdata.planning.randomness import Draw, group_size, shuffle_batches


@pytest.mark.parametrize(
    ("batches", "group"),
    [(0, 1), (1, 1), (15, 1), (16, 1), (31, 1), (32, 2), (63, 2), (64, 4), (1024, 64), (10**6, 64)],
)
def test_a_group_is_a_power_of_two_at_most_64_and_a_sixteenth(batches, group):
    assert group_size(batches) == group


@pytest.mark.parametrize("count", [1, 2, 17, 100, 1000, 1024, 5000])
def test_every_batch_is_played_once(count):
    longest = np.arange(count)[::-1].copy()
    order = shuffle_batches(longest, Draw(0, 1), block=0, lead=None)
    assert sorted(order.tolist()) == list(range(count))


def test_aligned_neighbours_are_neighbours_in_length():
    longest = np.random.default_rng(0).permutation(2048)
    order = shuffle_batches(longest, Draw(3, 1), block=0, lead=None)
    for width in (2, 4, 8, 16, 32, 64):
        played = longest[order].reshape(-1, width)
        assert (played.max(1) - played.min(1) == width - 1).all()


def test_the_remainder_comes_last_and_is_one_slice_of_the_lengths():
    longest = np.random.default_rng(0).permutation(2048 + 37)
    order = shuffle_batches(longest, Draw(3, 1), block=0, lead=None)
    rest = np.sort(longest[order[-37:]])
    assert (np.diff(rest) == 1).all()


@pytest.mark.parametrize("count", [1, 20, 37, 100, 1000, 2085])
@pytest.mark.parametrize("epoch", range(4))
def test_the_lead_comes_first_whatever_is_drawn(count, epoch):
    longest = np.random.default_rng(epoch).permutation(count)
    for lead in {0, count // 2, count - 1, int(np.argmax(longest))}:
        order = shuffle_batches(longest, Draw(9, epoch), block=2, lead=lead)
        assert order[0] == lead
        assert sorted(order.tolist()) == list(range(count))


@pytest.mark.parametrize("epoch", range(2))
def test_the_remainder_leaves_out_whichever_leads(epoch):
    longest = np.random.default_rng(epoch).permutation(8 * 16 + 7)  # groups of 8, and 7 remain
    for lead in range(len(longest)):
        order = shuffle_batches(longest, Draw(1, epoch), block=0, lead=lead)
        assert order[0] == lead
        assert sorted(order.tolist()) == list(range(len(longest)))


def test_the_lead_brings_its_group():
    longest = np.arange(1024)[::-1].copy()
    order = shuffle_batches(longest, Draw(0, 0), block=0, lead=0)
    assert sorted(order[:64].tolist()) == list(range(64))


def test_halves_are_shuffled_inside_a_group():
    longest = np.arange(1024)[::-1].copy()
    firsts = {
        int(shuffle_batches(longest, Draw(0, epoch), block=0, lead=None)[0]) % 64
        for epoch in range(200)
    }
    assert len(firsts) > 50
