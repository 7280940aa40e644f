import numpy as np
import pytest

from seqdata.planning.randomness import stable_argsort


@pytest.mark.parametrize("count", [0, 1, 5, 1023, 1024, 5000, 70_000])
@pytest.mark.parametrize("values", [1, 7, 40_000, 1 << 62])
def test_it_is_the_stable_argsort_however_many_keys_are_equal(count, values):
    rng = np.random.default_rng(count)
    for dtype in (np.int64, np.uint64):
        keys = rng.integers(0, values, size=count).astype(dtype)
        assert np.array_equal(stable_argsort(keys), np.argsort(keys, kind="stable"))


def test_a_few_long_runs_of_equal_keys_are_put_right():
    keys = np.arange(5000, dtype=np.int64)[::-1].copy()
    keys[::100] = 17
    keys[3::900] = -1
    assert np.array_equal(stable_argsort(keys), np.argsort(keys, kind="stable"))
