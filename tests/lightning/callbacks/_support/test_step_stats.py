"""Steps of a rank are added up, and their rates and shares told."""

from seqdata.lightning.callbacks._support.step_stats import StepStats


def test_nothing_was_done_in_no_time():
    assert (
        StepStats().tokens_per_second == StepStats().padding_share == StepStats().wait_share == 0.0
    )


def test_figures_are_added_up_and_the_largest_kept():
    one = StepStats(steps=1, seconds=2.0, waited=1.0, tokens=3, real=4, padded=8, largest=8)
    two = StepStats(
        steps=1, seconds=2.0, waited=0.0, tokens=1, real=2, padded=4, largest=4, peak_bytes=9
    )
    assert one + two == StepStats(
        steps=2, seconds=4.0, waited=1.0, tokens=4, real=6, padded=12, largest=8, peak_bytes=9
    )
    assert (one + two).tokens_per_second == 1.0
    assert (one + two).padding_share == 0.5
    assert (one + two).wait_share == 0.25
