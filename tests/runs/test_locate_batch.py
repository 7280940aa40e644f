"""A batch of a run is found by its number, or by a step of a rank, and made again."""

import numpy as np
import pytest

from seqdata import TBPTT, Bucketed, Loader
from seqdata.errors import ConfigError, PlanError
from seqdata.runs.locate_batch import (
    FitGeometry,
    ReplayRequest,
    locate_batch,
    remake_batch,
    remake_metadata,
)
from seqdata.sharing import World, share

ROWS = [{"x": np.full(1 + number % 5, number)} for number in range(22)]


@pytest.fixture(scope="module")
def engine():
    return Loader(ROWS, Bucketed(2), seed=3)._engine


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("position", [0, 4])
def test_each_batch_is_found_and_is_the_one_of_its_number(engine, world, position):
    geometry = FitGeometry(seed=3, world_size=world, epoch=1, position=position)
    for number in range(11):
        located = locate_batch(engine, ReplayRequest(epoch=1, batch=number), geometry)
        batch = remake_batch(engine, located)
        assert (batch.epoch, batch.number) == (1, number)
        metadata = remake_metadata(engine, located)
        assert metadata.ids.tolist() == batch.ids.tolist()
        assert "x" not in metadata.data


@pytest.mark.parametrize("rank", [0, 1])
def test_a_step_of_a_rank_is_the_batch_that_it_trained(engine, rank):
    geometry = FitGeometry(seed=3, world_size=2)
    mine = share(engine.plan(0), World(rank, 2))
    for step in range(len(mine)):
        request = ReplayRequest(epoch=0, step=step, rank=rank)
        batch = remake_batch(engine, locate_batch(engine, request, geometry))
        if 2 * step + rank < 11:
            assert batch.number == 2 * step + rank
        else:
            assert not batch.weight.any()  # padding rows
    other = locate_batch(engine, ReplayRequest(epoch=0, step=0, rank=2, world=3), geometry)
    assert remake_batch(engine, other).number == 2


def test_evaluations_begin_at_the_start():
    geometry = FitGeometry(seed=3, world_size=2, epoch=4, position=7, accumulate=3)
    assert geometry.for_evaluation == FitGeometry(seed=3, world_size=2)
    assert (geometry.get_first_position(4), geometry.get_first_position(5)) == (7, 0)


@pytest.mark.parametrize(
    ("request_", "error", "text"),
    [
        (
            {"batch": 11},
            PlanError,
            "`batch` must be below 11, the number of batches of the plan, but is 11",
        ),
        (
            {"step": 6},
            PlanError,
            r"`step` must be in \[0, 6\), the steps of 2 ranks from",
        ),
        ({"step": 0, "from_position": 4}, PlanError, r"`step` must be in \[2, "),
    ],
)
def test_a_batch_that_is_not_there_is_named(engine, request_, error, text):
    with pytest.raises(error, match=text):
        locate_batch(engine, ReplayRequest(epoch=0, **request_), FitGeometry(world_size=2))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"epoch": -1, "batch": 0}, "`epoch` must be an integer from 0, but is -1"),
        ({"epoch": 0, "batch": True}, "`batch` must be an integer from 0, but is True"),
        ({"epoch": 0, "step": 1, "world": 0}, "`world` must be an integer from 1, but is 0"),
        ({"epoch": 0}, "`batch` is None and `step` is None, but exactly one"),
        ({"epoch": 0, "batch": 1, "step": 1}, "`batch` is 1 and `step` is 1, but exactly one"),
    ],
)
def test_a_request_names_one_batch(fields, text):
    with pytest.raises(ConfigError, match=text):
        ReplayRequest(**fields)


def test_lanes_are_of_all_ranks_or_of_one():
    engine = Loader(ROWS, TBPTT(lanes=4, chunk=2), seed=3)._engine
    geometry = FitGeometry(seed=3, world_size=2)
    whole = remake_batch(engine, locate_batch(engine, ReplayRequest(epoch=0, batch=1), geometry))
    half = remake_batch(
        engine, locate_batch(engine, ReplayRequest(epoch=0, batch=1, rank=1), geometry)
    )
    assert len(whole) == 2 * len(half) == 4
