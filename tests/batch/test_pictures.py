"""Pictures of batches, in every layout."""

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from seqdata import TBPTT, Bucketed, ConfigError, Loader, Packed, UnknownNameError, Windows
from seqdata.batch.pictures import chart_batch

LENGTHS = (np.random.Philox(3).random_raw(60) % 40 + 1).astype(np.int64)
ROWS = [
    {"id": f"<{at}>", "x": np.full((length, 3), at, dtype=np.float32), "y": at % 3, "t": "<b>"}
    for at, length in enumerate(LENGTHS)
]
LAYOUTS = ["padded", "packed", "jagged", "varlen"]


def batch_of(policy, **options):
    return next(iter(Loader(ROWS, policy, **options)))


@pytest.fixture
def axes():
    return Figure().subplots()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "policy",
    [Bucketed(8), TBPTT(4, 8, advance=6), Packed(rows=4, row_length=64), Windows(4, 6, horizon=2)],
    ids=lambda policy: type(policy).__name__,
)
def test_the_picture_has_the_scored_and_the_real_timesteps(policy, layout):
    loader = iter(Loader(ROWS, policy))
    next(loader)
    batch = next(loader)  # with context, if there is any
    if layout == "packed" and int(batch.lengths.min()) == 0:
        pytest.skip("an empty row cannot be packed")
    widths = chart_batch(batch.as_layout(layout)).measure()
    scored, horizon = ("context", "future") if batch.horizon else ("scored", "horizon")
    assert widths.get(scored, 0) == int(batch.score.sum())
    unscored = int(batch.lengths.sum() - batch.score.sum())
    assert widths.get("real, not scored", 0) == unscored
    assert widths.get(horizon, 0) == len(batch) * batch.horizon
    padding = len(batch) * batch.mask.shape[1] - int(batch.lengths.sum())
    assert widths.get("padding", 0) == (padding if layout == "padded" else 0)


@pytest.mark.parametrize("collator", [None, "packed", "jagged", "varlen"])
def test_batches_of_every_collator_are_drawn(collator, axes):
    batch = batch_of(Bucketed(8), collator=collator)
    batch.plot(axes)
    assert f"8 rows, {batch.layout}: " in axes.get_title()
    assert "<svg" in batch._repr_html_()
    batch.plot(Figure().subplots(), field="x")


def test_values_are_the_means_of_the_features_and_padding_is_blank(axes):
    batch = batch_of(Bucketed(8))
    batch.plot(axes, field="x")
    shown = axes.images[0].get_array()
    assert shown.shape == tuple(batch["x"].shape[:2])
    assert np.array_equal(~np.ma.getmaskarray(shown), batch.mask.numpy())
    assert np.array_equal(shown[:, 0], batch.ids.numpy())
    assert axes.figure.axes[1].get_ylabel() == "x, mean of 3 features"


def test_a_row_is_drawn_with_its_features(axes):
    batch = batch_of(Bucketed(8))
    batch.plot(axes, field="x", row=-1)
    assert axes.images[0].get_array().shape == (3, int(batch.lengths[-1]))
    assert axes.get_ylabel() == "feature"
    assert axes.get_title() == "x (batch 0 of epoch 0), row 7"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"field": "y"},
            ConfigError,
            "`field` must be a field with values per timestep, but is 'y'",
        ),
        (
            {"field": "t"},
            ConfigError,
            "`field` must be a field with values per timestep, but is 't'",
        ),
        ({"field": "z"}, UnknownNameError, "z"),
        ({"field": "x", "row": 8}, ConfigError, r"`row` must be in \[-8, 8\), but is 8"),
        ({"row": 1}, ConfigError, "`row` must be given with `field`, but is 1"),
    ],
)
def test_what_cannot_be_drawn_is_an_error(options, error, message, axes):
    with pytest.raises(error, match=message):
        batch_of(Bucketed(8)).plot(axes, **options)


def test_a_notebook_shows_fields_and_rows():
    page = batch_of(Bucketed(8))._repr_html_()
    assert "SequenceBatch: batch 0 of epoch 0" in page
    assert "<td>float32</td>" in page
    assert "<td>t</td><td>strings</td><td>(8,)</td><td>per sequence</td>" in page


def test_a_batch_without_rows_and_dummy_rows_are_drawn(axes):
    batch = batch_of(Bucketed(8))
    batch.weight = torch.zeros(8)
    assert chart_batch(batch).measure()["real, not scored"] == int(batch.lengths.sum())
    batch.real().plot(axes)
    assert axes.get_title().startswith("0 rows, padded: 0 real timesteps")
