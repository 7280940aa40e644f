"""Starting workers: how, with which seeds, and whether they need the user's script."""

import multiprocessing
from types import SimpleNamespace

import pytest

from seqdata.loading.options import EngineOptions
from seqdata.loading.workers.handle import _derive_seed, default_start_method, needs_script
from seqdata.sharing import World


class OfTheScript:
    """Pickled as an object of the script that runs."""

    def __reduce__(self):
        return SimpleNamespace, (), {"module": "__main__"}


class Unpicklable:
    """Cannot be pickled."""

    def __reduce__(self):
        raise TypeError("no")


def test_every_worker_of_every_rank_and_seed_has_its_own_random_numbers():
    seeds = {
        _derive_seed(EngineOptions(seed=seed, world=World(rank, 2)), number)
        for seed in (0, 1, 1 << 32)
        for rank in range(2)
        for number in range(3)
    }
    assert len(seeds) == 18
    options = EngineOptions(seed=1, world=World(1, 2))
    assert _derive_seed(options, 2) == _derive_seed(options, 2)


@pytest.mark.parametrize(
    ("methods", "expected"), [(["fork", "spawn", "forkserver"], "forkserver"), (["spawn"], "spawn")]
)
def test_processes_with_threads_are_not_forked(methods, expected, monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: methods)
    assert default_start_method() == expected


@pytest.mark.parametrize(
    ("fetcher", "expected"),
    [({"x": 1}, False), (OfTheScript(), True), (Unpicklable(), True)],
)
def test_the_script_is_run_again_only_where_something_of_it_is_sent(fetcher, expected):
    assert needs_script(fetcher, EngineOptions(start_method="forkserver")) is expected
    assert needs_script(fetcher, EngineOptions(start_method="fork")) is True
