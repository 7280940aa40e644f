import pytest

from seqdata.errors import ConfigError
from seqdata.world import World


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
