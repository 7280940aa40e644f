import numpy as np
import pytest

from seqdata.errors import ConfigError
from seqdata.planning.randomness import Draw, Purpose


def test_raw_numbers_are_philox_of_random123():
    # Known answer of Random123 (kat_vectors, philox4x64-10: counter 0, key 0). NumPy raises the
    # counter before it draws: a counter of all ones wraps to 0.
    key, counter = np.zeros(2, np.uint64), np.full(4, 2**64 - 1, np.uint64)
    raw = np.random.Philox(key=key, counter=counter).random_raw(4)
    assert [hex(word) for word in raw.tolist()] == [
        "0x16554d9eca36314c",
        "0xdb20fe9d672d0fdc",
        "0xd7e772cee186176b",
        "0x7e68b68aec7ba23b",
    ]


def test_draws_never_change():
    draw = Draw(seed=7, epoch=3)
    assert [hex(word) for word in draw.raw(Purpose.MEMBERS, 2, block=5).tolist()] == GOLDEN_RAW
    assert draw.permutation(Purpose.GROUPS, 8).tolist() == GOLDEN_PERMUTATION


GOLDEN_RAW = ["0xe39e6995ef06233a", "0x9ff7441555dd1da7"]
GOLDEN_PERMUTATION = [0, 7, 2, 6, 4, 5, 3, 1]


@pytest.mark.parametrize(
    "other",
    [
        lambda: Draw(1, 1).raw(Purpose.MEMBERS, 4),
        lambda: Draw(0, 2).raw(Purpose.MEMBERS, 4),
        lambda: Draw(0, 1).raw(Purpose.NOISE, 4),
        lambda: Draw(0, 1).raw(Purpose.MEMBERS, 4, block=1),
    ],
)
def test_seed_epoch_purpose_and_block_all_count(other):
    assert not np.array_equal(Draw(0, 1).raw(Purpose.MEMBERS, 4), other())


def test_many_draws_at_once_are_those_of_numpys_philox_one_by_one():
    seed, epoch = 2**64 - 5, 12
    occurrences = np.array([0, 1, 0, 7], dtype=np.int64)
    sequences = np.array([0, 0, 3, 2**62], dtype=np.int64)
    drawn = Draw(seed, epoch).each(Purpose.CROPS, occurrences, sequences)
    for number in range(4):
        key = np.array([seed, epoch], dtype=np.uint64)
        counter = np.array(
            [0, occurrences[number], int(Purpose.CROPS), sequences[number]], dtype=np.uint64
        )
        assert drawn[number] == np.random.Philox(key=key, counter=counter).random_raw()


def test_more_draws_than_fit_the_cache_are_the_same():
    numbers = np.arange(20_000)
    drawn = Draw(1, 2).each(Purpose.CROPS, np.zeros_like(numbers), numbers)
    again = Draw(1, 2).each(Purpose.CROPS, np.zeros(1, np.int64), numbers[15_000:15_001])
    assert drawn[15_000] == again[0]
    assert len(np.unique(drawn)) == 20_000


GOLDEN_HASHED = [14554730553754982224, 12896786494367592893, 4574008713594750430]


def test_hashed_numbers_are_these():
    """What columnar transforms are seeded with must not change between versions."""
    zero, some = np.zeros(3, np.int64), np.array([0, 1, 2**40])
    drawn = Draw(1, 2).hash_each(Purpose.TRANSFORM, zero, some)
    assert drawn.tolist() == GOLDEN_HASHED
    again = Draw(1, 2).hash_each(Purpose.TRANSFORM, zero + 1, some)
    other = Draw(1, 3).hash_each(Purpose.TRANSFORM, zero, some)
    assert len({*drawn.tolist(), *again.tolist(), *other.tolist()}) == 9


def test_hashed_numbers_are_spread_evenly_and_do_not_meet():
    numbers = np.arange(100_000)
    both = [Draw(0, 0).hash_each(Purpose.TRANSFORM, numbers * 0 + k, numbers) for k in range(2)]
    drawn = np.concatenate(both)
    assert len(np.unique(drawn)) == len(drawn)
    for bit in range(64):
        ones = int(((drawn >> np.uint64(bit)) & np.uint64(1)).sum())
        assert abs(ones - 100_000) < 1_200  # more than five standard deviations
    counts = np.bincount((drawn >> np.uint64(56)).astype(np.int64), minlength=256)
    assert abs(counts - len(drawn) / 256).max() < 6 * (len(drawn) / 256) ** 0.5


def test_purposes_keep_their_numbers():
    assert {purpose.name: int(purpose) for purpose in Purpose} == {
        "BLOCKS": 1,
        "MEMBERS": 2,
        "NOISE": 3,
        "MIX": 4,
        "REMAINDER": 5,
        "GROUPS": 6,
        "HALVES": 7,
        "LAST_HALVES": 8,
        "TRANSFORM": 9,
        "CROPS": 10,
        "PAIRS": 11,
        "CUTS": 12,
        "LANES": 13,
        "LENGTHS": 14,
        "SCHEDULE": 15,
        "SHARED": 16,
        "PER_RANK": 17,
        "PER_LANE": 18,
        "PARTS": 19,
        "OFFSET": 20,
        "DRAWS": 21,
        "ROWS": 22,
        "WRITING": 23,
        "RUNS": 24,
        "SHORT_GROUPS": 25,
        "SIZES": 26,
    }


@pytest.mark.parametrize(("seed", "epoch"), [(-1, 0), (1 << 64, 0), (0, -1)])
def test_a_seed_or_epoch_out_of_range_is_refused(seed, epoch):
    with pytest.raises(ConfigError, match=r"must be in \[0, 2\*\*64\)"):
        Draw(seed, epoch)
