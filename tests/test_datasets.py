"""Generated datasets: the same for a seed, as many as asked for, with an example and a licence."""

import re
import subprocess
import sys

import numpy as np
import pytest

from seqdata import ConfigError, datasets, open_store
from seqdata.datasets import (
    make_documents,
    make_events,
    make_flip_flops,
    make_recordings,
    make_series,
    make_speech,
)
from seqdata_testing.waiting import patient

SMALL = {
    make_documents: {"count": 20},
    make_flip_flops: {"count": 4},
    make_speech: {"count": 3, "max_words": 2},
    make_recordings: {"count": 2, "minutes": 1},
    make_series: {"count": 2, "days": 3},
    make_events: {"count": 10, "rare": 0.2},
}
MAKERS = pytest.mark.parametrize("make", SMALL, ids=lambda make: make.__name__)


def values_of(data):
    if hasattr(data, "columns"):
        return [{name: np.asarray(data[name]) for name in data.columns}]
    return list(data)


def is_equal(one, other):
    return len(one) == len(other) and all(
        a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
        for a, b in zip(one, other, strict=True)
    )


@MAKERS
def test_a_seed_makes_the_same_data_and_another_one_other_data(make):
    first, again = values_of(make(**SMALL[make])), values_of(make(**SMALL[make], seed=0))
    assert is_equal(first, again)
    assert not is_equal(first, values_of(make(**SMALL[make], seed=1)))


@MAKERS
def test_there_are_as_many_as_are_asked_for(make):
    data = make(**SMALL[make])
    if hasattr(data, "columns"):
        data = open_store(data, group=data.columns[0], order="time")
    assert len(data) == SMALL[make]["count"]


@MAKERS
@pytest.mark.parametrize("seed", [-1, 0.5, None])
def test_a_seed_is_an_integer(make, seed):
    expected = f"{make.__name__}: `seed` must be an integer of at least 0, but is {seed}"
    with pytest.raises(ConfigError, match=re.escape(expected)):
        make(seed=seed)


@MAKERS
@pytest.mark.parametrize("count", [0, 2.5, "3"])
def test_a_count_is_an_integer_from_1(make, count):
    expected = f"{make.__name__}: `count` must be an integer of at least 1, but is {count!r}"
    with pytest.raises(ConfigError, match=re.escape(expected)):
        make(count)


def test_every_dataset_has_an_example_and_a_licence():
    assert sorted(datasets.__all__) == datasets.__all__
    for name in datasets.__all__:
        assert ">>>" in getattr(datasets, name).__doc__
        assert "icence:" in getattr(datasets, name).__doc__


def test_loading_the_module_loads_neither_torch_nor_pandas():
    code = "import seqdata.datasets, sys; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(), check=True)
    assert not set(done.stdout.split()) & {"torch", "lightning", "pandas", "matplotlib"}
