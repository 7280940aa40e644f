"""Random streams of a model: alike where they are shared, apart where they are not."""

import doctest

import pytest
import torch

from seqdata import ConfigError, RandomStreams, random_streams


def drawn(generator):
    return torch.rand(4, generator=generator).tolist()


def test_a_place_draws_the_same_numbers_always():
    for name, whose in (("shared", {}), ("per_rank", {"rank": 1})):
        one, two = (
            drawn(getattr(RandomStreams(3), name)(epoch=2, step=7, **whose)) for _ in range(2)
        )
        assert one == two


def test_ranks_draw_alike_or_apart_as_it_is_named():
    streams = RandomStreams(3)
    ranks = [drawn(streams.per_rank(epoch=0, step=0, rank=rank)) for rank in range(4)]
    assert len({tuple(one) for one in [*ranks, drawn(streams.shared(epoch=0, step=0))]}) == 5


def test_lanes_draw_the_same_on_whatever_rank_they_are():
    streams = RandomStreams(3)
    whole = [drawn(one) for one in streams.per_lane(epoch=1, step=2, lanes=range(6))]
    parts = [
        drawn(one)
        for lanes in (torch.tensor([0, 1]), torch.tensor([2, 3, 4, 5]))
        for one in streams.per_lane(epoch=1, step=2, lanes=lanes)
    ]
    assert parts == whole
    assert len({tuple(one) for one in whole}) == 6


def test_every_seed_epoch_and_step_draws_otherwise():
    places = [(seed, epoch, step) for seed in (0, 1) for epoch in (0, 1) for step in (0, 1, 2)]
    found = {
        tuple(drawn(RandomStreams(seed).shared(epoch=epoch, step=step)))
        for seed, epoch, step in places
    }
    assert len(found) == len(places)


def test_the_numbers_never_change():
    generator = RandomStreams(1).shared(epoch=0, step=5)
    assert torch.randint(1 << 30, (3,), generator=generator).tolist() == GOLDEN


GOLDEN = [586909418, 923584139, 861042107]


@pytest.mark.parametrize("seed", [-1, 1 << 64])
def test_a_seed_out_of_range_is_refused(seed):
    with pytest.raises(ConfigError, match=rf"`seed` must be in \[0, 2\*\*64\), but is {seed}"):
        RandomStreams(seed)


def test_the_example_of_the_docstring_holds():
    result = doctest.testmod(random_streams)
    assert (result.failed, result.attempted) == (0, 3)
