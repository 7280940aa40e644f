"""How often sequences are drawn: as often as expected, rounded down or up, and exactly in all."""

import numpy as np
import pytest

from seqdata.planning import draws
from seqdata.planning.draws import DrawRates
from seqdata.planning.randomness import Draw

WEIGHTS = np.array([0.0, 1.0, 2.5, 0.25, 7.0, 0.0, 3.0])


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_rates_add_up_to_the_draws_exactly(count):
    thirds = DrawRates.from_weights(np.ones(3), count)
    assert int(thirds.fixed.sum()) == count << 32
    rates = DrawRates.from_weights(WEIGHTS, count)
    assert int(rates.fixed.sum()) == count << 32
    np.testing.assert_allclose(rates.to_float(), count * WEIGHTS / WEIGHTS.sum(), atol=1e-6)
    assert rates.support.tolist() == [1, 2, 3, 4, 6]


@pytest.mark.parametrize("epoch", range(4))
@pytest.mark.parametrize("block", [2, draws.MAX_BLOCK_ITEMS])
def test_each_is_drawn_as_often_as_expected_rounded_down_or_up(epoch, block, monkeypatch):
    monkeypatch.setattr(draws, "MAX_BLOCK_ITEMS", block)
    rates = DrawRates.from_weights(WEIGHTS, 20)
    draw = Draw(5, epoch)
    counts = rates.count(draw)
    assert counts.sum() == 20
    assert (np.abs(counts - rates.to_float()) < 1).all()
    assert np.bincount(rates.draw_numbers(draw), minlength=7).tolist() == counts.tolist()
    assert (np.diff(rates.draw_numbers(draw).astype(int)) >= 0).all()


def test_weights_of_any_size_mean_the_same():
    rates = DrawRates.from_weights(WEIGHTS, 20)
    for scale in (2.0**-1000, 2.0**900):
        assert DrawRates.from_weights(WEIGHTS * scale, 20).digest == rates.digest
    assert DrawRates.from_weights(WEIGHTS[::-1], 20).digest != rates.digest


def test_importance_makes_draws_count_as_the_data_does():
    rates = DrawRates.from_weights(WEIGHTS, 20)
    weighted = rates.importance() * rates.to_float()
    np.testing.assert_allclose(weighted, (WEIGHTS > 0) * 20 / 5, rtol=1e-6)


def test_importance_is_right_for_rates_and_counts_of_any_size():
    rare = np.ones(1_000_000)
    rare[:100] = 9_999  # a class of 100, drawn as often as all others
    rates = DrawRates.from_weights(rare, len(rare))
    assert len(rare) * int(rates.fixed[0]) >= 1 << 63  # more than int64 holds
    weights = rates.importance()
    np.testing.assert_allclose(weights[[0, 99, 100, -1]], [2e-4, 2e-4, 2, 2], rtol=1e-3)
    np.testing.assert_allclose((weights * rates.to_float()).sum(), rates.draws, rtol=1e-6)
