"""What matplotlib is given: bars that sum to the numbers of the chart, in the given axes."""

import importlib.util
import sys

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from seqdata import TBPTT, Bucketed, ConfigError, Loader, Packed, Zip, open_store
from seqdata.index import SequenceIndex
from seqdata.plotting import axes as axes_module

LENGTHS = (np.random.Philox(3).random_raw(200) % 40 + 1).astype(np.int64)
ROWS = [np.arange(length, dtype=np.float32) for length in LENGTHS]


@pytest.fixture(autouse=True)
def _no_figures_are_left():
    yield
    plt.close("all")


@pytest.fixture
def axes():
    return Figure().subplots()


@pytest.fixture(scope="module")
def plan():
    return Bucketed(8).plan(SequenceIndex.from_lengths(LENGTHS), seed=0, epoch=0)


@pytest.fixture(scope="module")
def lanes():
    return TBPTT(4, 8, advance=6).plan(SequenceIndex.from_lengths(LENGTHS), seed=0, epoch=0)


def legend_of(axes):
    legend = axes.get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]


def labels_of(axes):
    return axes.get_title(), axes.get_xlabel(), axes.get_ylabel(), legend_of(axes)


def heights(axes):
    return [sum(bar.get_height() for bar in bars) for bars in axes.containers]


def test_bars_sum_to_the_numbers_of_the_plan(plan, axes):
    assert plan.plot(axes) is axes
    report = plan.report
    assert heights(axes) == [report.timesteps, report.padded - report.timesteps]
    bottoms = [bar.get_y() for bar in axes.containers[1]]
    assert bottoms == [bar.get_height() for bar in axes.containers[0]]
    assert len(axes.patches) <= 120


def test_bars_of_lengths_sum_to_the_sequences(axes):
    store = open_store(ROWS)
    assert heights(store.plot(axes)) == [200]
    bars = axes.containers[0]
    left, right = (bar.get_x() for bar in (bars[0], bars[-1]))
    assert left == pytest.approx(min(LENGTHS))
    assert right + bars[-1].get_width() == pytest.approx(max(LENGTHS) + 1)


def test_runs_of_lanes_are_one_collection_of_each_kind(lanes, axes):
    lanes.plot(axes)
    assert len(axes.patches) == 0
    polygons = [each for each in axes.collections if hasattr(each, "get_verts_and_codes") or 1]
    assert len(polygons) <= 8
    area = 0.0
    for collection in polygons[:-1]:  # the last one is of the resets
        for path in collection.get_paths():
            box = path.get_extents()
            area += box.width * box.height / 0.9
    assert area == pytest.approx(4 * min(40, len(lanes)), rel=1e-6)


# Golden labels: what a reader of each picture is told.
TIMESTEPS = "length along 'time', timesteps"
GOLDEN = {
    "store": ("200 sequences, 1 to 40 timesteps, mean 21.1", TIMESTEPS, "sequences", []),
    "batches": (
        "25 batches: 3.0 % padding", "batch of the epoch", "timesteps per batch",
        ["real timesteps", "padding"],
    ),
    "padding": (
        "Padding per batch", "batches, % (most padded first)", "padding, % of the batch",
        ["mine: 3.0 % padding"],
    ),
    "lengths": (
        "200 rows, 1 to 40 timesteps, mean 21.1", "length of a row, timesteps", "rows", [],
    ),
    "lanes": (
        "4 lanes, 181 steps (steps 0 to 39 drawn)", "step (as wide as its longest chunk)", "lane",
        [
            "a sequence (colours alternate)", "context, not scored (pale)", "padding",
            "reset: a sequence begins",
        ],
    ),
    "ranks": ("1 rank, 25 steps each", "rank", "timesteps per epoch",
              ["real timesteps", "padding"]),
    "batch": (
        "8 rows, padded: 317 real timesteps, 317 scored, 0.9 % padding", "timestep", "row",
        ["scored", "padding"],
    ),
    "values": ("x (batch 0 of epoch 0)", "timestep along 'time'", "row", []),
}  # fmt: skip


def test_labels_are_the_golden_ones(plan, lanes):
    loader = Loader(ROWS, Bucketed(8))
    batch = next(iter(loader))
    found = {
        "store": open_store(ROWS).plot(),
        "batches": plan.plot(),
        "padding": plan.plot(kind="padding", label="mine"),
        "lengths": plan.plot(kind="lengths"),
        "lanes": lanes.plot(),
        "ranks": loader.plot(kind="ranks"),
        "batch": batch.plot(),
        "values": batch.plot(field="x"),
    }
    assert {name: labels_of(axes) for name, axes in found.items()} == GOLDEN


def test_nothing_global_changes(plan, lanes, axes, monkeypatch):
    monkeypatch.setattr(plt, "show", lambda *_: pytest.fail("shown"))
    before, current = dict(mpl.rcParams), plt.get_fignums()
    own = Figure().subplots(4)
    plan.plot(own[0])
    lanes.plot(own[1])
    open_store(ROWS).plot(own[2])
    next(iter(Loader(ROWS, Bucketed(8)))).plot(own[3])
    own[0].figure.canvas.draw()
    assert plt.get_fignums() == current
    plan.plot()
    assert len(plt.get_fignums()) == len(current) + 1
    assert dict(mpl.rcParams) == before


def test_matplotlib_is_imported_when_something_is_drawn(monkeypatch):
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    spec = importlib.util.spec_from_file_location("a_copy", axes_module.__file__)
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    with pytest.raises(ConfigError, match="plan: drawing needs matplotlib, which is not installed"):
        copy.make_figure((1, 1), "plan")


def test_several_plans_are_compared_in_the_same_axes(plan, axes):
    plan.plot(axes, kind="padding", label="a")
    plan.plot(axes, kind="padding", label="b")
    assert len(axes.lines) == 2
    assert axes.lines[0].get_color() != axes.lines[1].get_color()
    assert legend_of(axes) == ["a: 3.0 % padding", "b: 3.0 % padding"]


def test_several_panels_are_a_figure_or_the_axes_that_are_given():
    zipped = Loader({"a": ROWS, "b": ROWS[:9]}, Zip({"a": Bucketed(8), "b": Bucketed(2)}))
    figure = zipped.plot()
    assert [axes.get_title().split(":")[0] for axes in figure.axes] == ["a", "b"]
    given = Figure().subplots(2)
    assert zipped.plot(given) == list(given)
    with pytest.raises(ConfigError, match="`ax` must be 2 axes of matplotlib, but is Axes"):
        zipped.plot(Figure().subplots())


def test_a_figure_is_no_axes(plan):
    with pytest.raises(ConfigError, match=r"`ax` must be axes of matplotlib, but is Figure\. Pass"):
        plan.plot(Figure())


def test_without_matplotlib_the_error_names_the_extra(plan, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    expected = r"plot: drawing needs matplotlib, .*pip install 'lightning-seqdata\[plot\]'"
    with pytest.raises(ConfigError, match=expected):
        plan.plot()


def test_axes_of_lengths_from_0_show_them(axes):
    open_store([np.zeros(size) for size in (0, 1, 900)]).plot(axes)
    assert axes.get_xscale() == "symlog"
    assert heights(axes) == [3]


def test_weights_have_one_colour_bar():
    rows = next(iter(Loader(ROWS, Packed(rows=4, row_length=64))))
    rows.weight = rows.weight * torch.tensor([1, 2, 0.5, 1])
    axes = rows.plot()
    assert [each.get_ylabel() for each in axes.figure.axes[1:]] == ["weight in the loss"]


@pytest.mark.parametrize("kind", [None, "batches", "padding", "lengths"])
def test_empty_data_is_drawn(axes, kind):
    for policy in (TBPTT(2, 4), Bucketed(2)):
        policy.plan(SequenceIndex.from_lengths([0]), seed=0, epoch=0).plot(axes, kind=kind)
    open_store(ROWS).take([]).plot(axes)
    axes.figure.canvas.draw()
