"""Which rank does more than the others, and the cause that is named."""

from dataclasses import replace

from seqdata.lightning.callbacks._support.step_stats import StepStats, describe_skew

MIB = 1 << 20

EVEN = StepStats(steps=20, seconds=10.0, waited=0.5, tokens=800, real=900, padded=1000, largest=60)


def test_ranks_alike_are_not_warned_of():
    assert describe_skew([EVEN], 1.25) is None
    assert describe_skew([EVEN, replace(EVEN, padded=1240, waited=2.0)], 1.25) is None
    assert describe_skew([StepStats(steps=20, seconds=1.0)] * 3, 1.25) is None


def test_a_rank_with_more_timesteps_is_named_with_its_cause():
    ranks = [EVEN, replace(EVEN, padded=1300), EVEN]
    assert describe_skew(ranks, 1.25) == (
        "rank 1 had 1.30 times the timesteps of the other ranks (1300 against 1000 after "
        "padding, in 20 steps), more than 1.25 times. The cause is its batches: use batches of "
        "equal cost (TokenBudget), or a multiple of the ranks as lanes"
    )
    assert describe_skew(ranks, 1.4) is None


def test_a_rank_with_more_memory_is_named_with_its_cause():
    ranks = [replace(EVEN, peak_bytes=size << 30) for size in (2, 2, 3)]
    told = (
        "rank 2 has taken 1.50 times the memory of the other ranks (3.00 GiB against 2.00 "
        "GiB), more than 1.25 times: "
    )
    assert describe_skew(ranks, 1.25) == told + (
        "the cause is not its batches (the largest has 60 timesteps after padding, against 60): "
        "look for outputs that are kept there, and for other processes on its device"
    )
    ranks[2] = replace(ranks[2], largest=90)
    assert describe_skew(ranks, 1.25) == told + (
        "the cause is its largest batch of 90 timesteps after padding, against 60: use batches "
        "of equal cost (TokenBudget)"
    )


def test_a_little_memory_more_is_no_cause():
    assert describe_skew([replace(EVEN, peak_bytes=size * MIB) for size in (1, 50)], 1.25) is None


def test_a_rank_that_waits_for_data_is_named_with_its_cause():
    ranks = [replace(EVEN, waited=4.0), EVEN]
    assert describe_skew(ranks, 1.25) == (
        "rank 0 waited 4.00 s of 10.00 s for data, the other ranks 0.50 s (in 20 steps): steps "
        "take more than 1.25 times as long. The cause is its data: use more `num_workers` or "
        "`prefetch`, or check its disk"
    )
    quick = [replace(one, seconds=0.02, waited=one.waited / 1000) for one in ranks]
    assert describe_skew(quick, 1.25) is None  # noise of a few milliseconds


def test_timesteps_come_before_memory_and_memory_before_waiting():
    ranks = [EVEN, replace(EVEN, padded=2000, peak_bytes=8 << 30, waited=8.0)]
    ranks[0] = replace(EVEN, peak_bytes=4 << 30)
    assert describe_skew(ranks, 1.25).startswith("rank 1 had 2.00 times the timesteps")
    ranks[1] = replace(ranks[1], padded=1000)
    assert describe_skew(ranks, 1.25).startswith("rank 1 has taken 2.00 times the memory")
