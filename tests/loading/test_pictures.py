"""Pictures and representations of loaders."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from seqdata import TBPTT, Bucketed, ConfigError, Loader, Mix, World, Zip
from seqdata.loading.pictures import chart_epoch, chart_planned
from seqdata.plotting.batches import PADDING, REAL
from seqdata.resume_state import RunPosition

LENGTHS = (np.random.Philox(3).random_raw(60) % 40 + 1).astype(np.int64)
ROWS = [np.arange(length, dtype=np.float32) for length in LENGTHS]


def loader_of(policy=None, data=ROWS, **options):
    return Loader(data, policy or Bucketed(8), **options)


def test_a_representation_names_data_policy_and_position():
    loader = loader_of(world=World(1, 2), seed=3)
    text = repr(loader)
    start = "Loader(60 sequences, Bucketed(batch_size=8), rank 1 of 2, seed 3; "
    assert text == f"{start}epoch 0, batch 0 of 8)"
    batches = iter(loader)
    next(batches)
    assert repr(loader).endswith("epoch 0, batch 2 of 8)")


def test_the_position_is_a_line():
    loader = loader_of()
    (chart,) = chart_epoch(loader._engine, None, RunPosition(0, 3))
    assert chart.mark == (3, "position: batch 3")
    axes = loader.plot(Figure().subplots())
    assert len(axes.lines) == 0
    batches = iter(loader)
    next(batches)
    axes = loader.plot(Figure().subplots())
    assert axes.lines[0].get_xdata()[0] == 1
    axes = loader.plot(Figure().subplots(), epoch=4)
    assert len(axes.lines) == 0


@pytest.mark.parametrize("tail", ["fill", "drop", "repeat"])
@pytest.mark.parametrize("size", [1, 3, 4])
def test_ranks_have_the_timesteps_of_their_batches(size, tail):
    loaders = [loader_of(world=World(rank, size), tail=tail) for rank in range(size)]
    (chart,) = chart_epoch(loaders[0]._engine, "ranks", RunPosition(0, 0))
    for rank, loader in enumerate(loaders):
        batches = list(loader)
        real = sum(int(batch.lengths[batch.weight > 0].sum()) for batch in batches)
        padded = sum(batch.mask.numel() for batch in batches)
        assert chart.series[REAL][rank] == real
        assert chart.series[REAL][rank] + chart.series[PADDING][rank] == padded


@pytest.mark.filterwarnings("ignore::seqdata.SeqDataWarning")
@pytest.mark.parametrize("size", [1, 3, 6])
def test_ranks_have_the_timesteps_of_their_lanes(size):
    policy = TBPTT(4, 8)
    loaders = [loader_of(policy, world=World(rank, size)) for rank in range(size)]
    (chart,) = chart_epoch(loaders[0]._engine, "ranks", RunPosition(0, 0))
    for rank, loader in enumerate(loaders):
        batches = list(loader)
        real = sum(int(batch.lengths[batch.weight > 0].sum()) for batch in batches)
        assert chart.series[REAL][rank] == real
        padded = sum(len(batch) * int(batch.lengths.max()) for batch in batches)
        assert chart.series[REAL][rank] + chart.series[PADDING][rank] == padded


def test_zipped_parts_have_a_chart_each_and_ranks_read_all_of_them():
    policy = Zip({"a": Bucketed(8), "b": Bucketed(2)})
    loaders = [
        loader_of(policy, {"a": ROWS, "b": ROWS[:9]}, world=World(rank, 2)) for rank in range(2)
    ]
    charts = chart_epoch(loaders[0]._engine, None, RunPosition(0, 0))
    assert [chart.title.split(":")[0] for chart in charts] == ["a", "b"]
    assert [len(chart.series) for chart in chart_planned(loaders[0]._engine)] == [1, 1]
    (ranks,) = chart_epoch(loaders[0]._engine, "ranks", RunPosition(0, 0))
    for rank, loader in enumerate(loaders):
        real = sum(
            int(batch.lengths[batch.weight > 0].sum()) for step in loader for batch in step.values()
        )
        assert ranks.series[REAL][rank] == real


def test_parts_of_a_mixture_are_drawn():
    loader = loader_of(Mix({"a": 1, "b": 1}, Bucketed(4)), {"a": ROWS, "b": ROWS[:9]})
    axes = loader.plot(Figure().subplots(), kind="parts")
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert texts == ["a: 50.0 %", "b: 50.0 %"]


def test_an_unknown_kind_is_an_error():
    with pytest.raises(ConfigError, match=r"loader: `kind` must be one of 'batches', .*'ranks'"):
        loader_of().plot(kind="pie")


def test_a_notebook_shows_the_epoch():
    page = loader_of()._repr_html_()
    assert page.count("<svg") == 1
    assert "Loader(60 sequences" in page
