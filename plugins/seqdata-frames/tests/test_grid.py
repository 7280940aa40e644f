"""Regular grids: what pandas makes of them, and steps that fit none."""

import numpy as np
import pandas as pd
import pytest
from frames_samples import sales, shuffle, write
from hypothesis import given, settings
from hypothesis import strategies as st
from seqdata_frames import Frames
from seqdata_frames.steps import parse_frequency

from seqdata import Loader, Windows, open_store
from seqdata.errors import ConfigError, DecodeError, SeqDataWarning
from seqdata_testing.stores import check_reads

BY = {"group": "series", "order": "time"}


def regular(frame, freq):
    """The sequences of a frame on a grid, as pandas makes them."""
    rows = []
    for name, part in frame.groupby("series", sort=False):
        part = part.sort_values("time").set_index("time")
        grid = pd.date_range(part.index[0], part.index[-1], freq=freq, unit="us")
        on_grid = part.reindex(grid)
        rows.append(
            {
                "id": name, "series": name,
                "time": grid.to_numpy().astype("M8[us]").astype(np.int64),
                "load": on_grid["load"].to_numpy().astype(np.float32),
                "count": on_grid["count"].to_numpy(dtype=np.float64),
                "mask": grid.isin(part.index), "area": part["area"].iloc[0],
            }
        )  # fmt: skip
    return rows


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    kept=st.floats(0.1, 1),
    seed=st.integers(0, 99),
    mixed=st.booleans(),
    freq=st.sampled_from(["h", "30min", "15min"]),
)
def test_a_grid_is_the_one_of_pandas(tmp_path_factory, lengths, kept, seed, mixed, freq):
    frame = sales(lengths, seed)[["series", "time", "load", "count", "area"]]
    is_first = ~frame["series"].duplicated()
    frame = frame[is_first | (np.random.default_rng(seed).random(len(frame)) < kept)]
    frame = shuffle(frame, seed) if mixed else frame.reset_index(drop=True)
    path = write(frame, tmp_path_factory.mktemp("grid") / "t.parquet", 5)
    store = open_store(path, backend=Frames(freq=freq, static=["area"]), **BY)
    check_reads(store, regular(frame, freq), rounds=2)


def test_windows_of_a_grid_have_their_gaps(tmp_path):
    frame = sales((12,)).drop(index=[4, 5])
    with pytest.warns(SeqDataWarning, match="'event' is dropped: strings .* no value in a gap"):
        store = open_store(write(frame, tmp_path / "t.parquet"), backend=Frames(freq="h"), **BY)
    (batch,) = Loader(store, Windows(size=4, stride=4, batch_size=3, shuffle=False))
    assert batch["mask"].tolist() == [[True] * 4, [False] * 2 + [True] * 2, [True] * 4]
    assert np.isnan(batch["load"].numpy()).tolist() == (~batch["mask"]).tolist()
    assert "event" not in store.fields


@pytest.mark.filterwarnings("ignore:table. column 'event' is dropped")
def test_rows_that_are_on_no_grid_are_refused(tmp_path):
    frame = sales((6, 6))
    for data in (frame, shuffle(frame)):
        with pytest.raises(DecodeError, match=r"steps of freq='2h'.*'s.' have 2024-01-01 0"):
            open_store(data, backend=Frames(freq="2h"), **BY)
    frame.loc[8, "time"] = frame.loc[7, "time"]
    message = "rows of 's1' have 2024-01-01 01:00:00(.000000)? twice"
    with pytest.raises(DecodeError, match=message):
        open_store(frame, backend=Frames(freq="h"), **BY)


def test_integers_have_a_grid_of_integers():
    frame = pd.DataFrame({"series": ["a"] * 3, "n": [2, 4, 10], "x": [1.0, 2.0, 3.0]})
    store = open_store(frame, backend=Frames(freq=2), group="series", order="n")
    assert store[0]["n"].tolist() == [2, 4, 6, 8, 10]
    assert store[0]["mask"].tolist() == [True, True, False, False, True]
    with pytest.raises(ConfigError, match="`freq` must be a positive integer for the column 'n'"):
        open_store(frame, backend=Frames(freq="h"), group="series", order="n")


def test_a_column_called_mask_is_refused():
    frame = sales((3,))[["series", "time", "load"]].rename(columns={"load": "mask"})
    with pytest.raises(ConfigError, match="a column must not be called 'mask'"):
        open_store(frame, backend=Frames(freq="h"), **BY)


@pytest.mark.parametrize(
    ("freq", "unit", "step"),
    [("h", "s", 3600), ("15min", "us", 900 * 10**6), ("D", "D", 1), ("W", "D", 7), (3, None, 3)],
)
def test_frequencies(freq, unit, step):
    assert parse_frequency(freq, unit, "time") == step


@pytest.mark.parametrize(
    ("freq", "unit", "message"),
    [
        ("MS", "us", "a step of fixed length.*Months and years vary in length"),
        ("0h", "us", "a step of fixed length"),
        (1, "us", "a step of fixed length"),
        ("h", "D", r"a multiple of the unit of column 'time' \(D\)"),
        (0, None, "a positive integer"),
        (True, None, "a positive integer"),
    ],
)
def test_frequencies_that_are_none(freq, unit, message):
    with pytest.raises(ConfigError, match=message):
        parse_frequency(freq, unit, "time")


@pytest.mark.parametrize(
    ("times", "row", "value"), [([0.2, 1.7, 2.4], 0, 0.2), ([0, 1, 2.5], 2, 2.5)]
)
def test_times_that_are_fractions_are_not_cut_to_a_grid(times, row, value, tmp_path):
    frame = pd.DataFrame({"g": "a", "t": times, "x": [1.0, 2.0, 3.0]})
    frame.to_parquet(tmp_path / "t.parquet", index=False)
    message = f"column 't' must hold dates or integers with `freq`, but row {row} holds {value}"
    with pytest.raises(DecodeError, match=message):
        open_store(tmp_path / "t.parquet", backend=Frames(freq=1), group="g", order="t")
    whole = frame.assign(t=[0.0, 1.0, 3.0])  # integers, as pandas has them beside missing ones
    whole.to_parquet(tmp_path / "t.parquet", index=False)
    store = open_store(tmp_path / "t.parquet", backend=Frames(freq=1), group="g", order="t")
    assert store.lengths.tolist() == [4]
