import pytest

from seqdata.errors import ConfigError
from seqdata.sharing import World


def test_a_world_is_one_rank_by_default():
    assert World() == World(0, 1)


@pytest.mark.parametrize(("rank", "size"), [(-1, 2), (2, 2), (5, 1)])
def test_a_rank_outside_the_world_is_refused(rank, size):
    with pytest.raises(
        ConfigError, match=rf"world: `rank` must be in \[0, {size}\), but is {rank}"
    ):
        World(rank, size)


def test_a_world_without_ranks_is_refused():
    with pytest.raises(ConfigError, match="world: `size` must be at least 1, but is 0"):
        World(0, 0)


def test_the_current_world_without_a_process_group_is_one_rank(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert World.current() == World(0, 1)


def test_the_parts_of_lengths_are_contiguous_and_as_equal_as_can_be():
    bounds = [World(0, 1, part, 3).time_bounds(7) for part in range(3)]
    assert bounds == [(0, 2), (2, 4), (4, 7)]
    assert [World(0, 1, part, 3).time_bounds(2) for part in range(3)] == [(0, 0), (0, 1), (1, 2)]
    assert World(3, 4).time_bounds(7) == (0, 7)


@pytest.mark.parametrize(("part", "parts"), [(-1, 2), (2, 2), (1, 1)])
def test_a_part_outside_the_parts_is_refused(part, parts):
    with pytest.raises(
        ConfigError, match=rf"world: `time_part` must be in \[0, {parts}\), but is {part}"
    ):
        World(0, 1, part, parts)


def test_a_world_without_parts_is_refused():
    with pytest.raises(ConfigError, match="world: `time_parts` must be at least 1, but is 0"):
        World(0, 1, 0, 0)


def test_parts_are_shown_where_there_are_several():
    assert repr(World(1, 2)) == "World(rank=1, size=2)"
    assert repr(World(1, 2, 0, 3)) == "World(rank=1, size=2, time_part=0, time_parts=3)"
