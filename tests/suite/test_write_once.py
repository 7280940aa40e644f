"""Tables larger than memory are prepared in parts, written once, and give the same batches."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from seqdata import DataError, EventDataModule, ForecastDataModule
from seqdata.errors import CacheError, SeqDataWarning
from seqdata.suite import write_once
from seqdata_testing.waiting import patient
from tests.suite.samples import hours, library_tokens

pytestmark = pytest.mark.filterwarnings("ignore:.*series_id.*|.*missing values.*|.*is dropped.*")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQDATA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "stores"


@pytest.fixture
def in_parts(monkeypatch):
    """Tables of any size are prepared in parts."""

    def begin():
        monkeypatch.setattr(write_once, "MEMORY_BYTES", 1)
        monkeypatch.setattr(write_once, "PART_BYTES", 10_000)

    return begin


def gappy(path):
    """Hourly load of sites with gaps, missing values, and strings per timestep, unsorted."""
    table = hours(7, 150).sort_values(["site", "time"]).reset_index(drop=True)
    random = np.random.default_rng(1)
    table.loc[random.random(len(table)) < 0.05, "load"] = np.nan
    table["weather"] = np.array(["sun", "rain", "fog"])[random.integers(0, 3, len(table))]
    inner = table["site"].isin([f"site-{number}" for number in (1, 2, 5)])
    lost = inner & (random.random(len(table)) < 0.05) & ~table["time"].isin(table["time"].iloc[:1])
    short = (table["site"] == "site-6") & (table["time"] > "2024-01-01 20:00")
    table = table[~(lost | short)].sample(frac=1, random_state=2)
    table.to_parquet(path)
    return path


def forecast(path, **options):
    chosen = {
        "id": "site", "time": "time", "target": "load", "known": ("price", "weather"),
        "static": "region", "context": 24, "horizon": 6, "calendar": ("hour", "dayofweek"),
        "split": {"train": "..2024-01-05", "val": "2024-01-05.."}, "seed": 1, "batch_size": 16,
    }  # fmt: skip
    return ForecastDataModule(path, **{**chosen, **options})


def events(path, **options):
    chosen = {
        "id": "module", "time": "order", "categorical": ("kind", "letter"), "numeric": "size",
        "label": "private", "last": 60, "max_tokens": 1000, "next_event": "kind", "seed": 1,
        "split": {"train": 0.7, "val": 0.3},
    }  # fmt: skip
    return EventDataModule(path, **{**chosen, **options})


def batches_of(data):
    data.setup("fit")
    return [
        {**dict(batch.items()), ":lengths": batch.lengths, ":weight": batch.weight}
        for loader in (data.train_dataloader(), data.val_dataloader())
        for batch in loader
    ]


def check_equal(one, other):
    assert len(one) == len(other) > 2
    for left, right in zip(one, other, strict=True):
        assert list(left) == list(right)
        for name, value in left.items():
            if isinstance(value, torch.Tensor):
                assert value.dtype == right[name].dtype, name
                assert torch.equal(value, right[name]), name
            else:
                assert value == right[name], name


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"freq": "h", "scale": "robust", "scale_by": None, "train_windows": "all", "stride": 3},
        {"missing": "impute", "min_history": 6, "scale": None},
    ],
)
def test_series_that_are_prepared_in_parts_give_the_batches_of_memory(options, tmp_path, in_parts):
    path = gappy(tmp_path / "load.parquet")
    whole = forecast(path, **options)
    expected, notes = batches_of(whole), whole.describe()
    in_parts()
    data = forecast(path, **options)
    check_equal(batches_of(data), expected)
    described = data.describe()
    assert "prepared in " in described
    for line in notes.splitlines():
        if any(word in line for word in ("missing", "gaps:", "frequency", "shorter")):
            assert line in described


def test_complete_series_have_no_mask_in_parts_either(tmp_path, in_parts):
    path = tmp_path / "load.parquet"
    hours(5, 120).to_parquet(path)
    options = {"known": "price", "calendar": (), "static": ()}
    whole = forecast(path, **options)
    expected = batches_of(whole)
    in_parts()
    data = forecast(path, **options)
    check_equal(batches_of(data), expected)
    assert data.masks == whole.masks == ()


@pytest.mark.parametrize("options", [{}, {"cutoff": 150, "balance": "private"}])
def test_events_that_are_prepared_in_parts_give_the_batches_of_memory(options, tmp_path, in_parts):
    path = tmp_path / "tokens.parquet"
    table = library_tokens()
    table["size"] = np.where(table["order"] % 17 == 0, np.nan, table["order"] % 5.0)
    table["letter"] = table["module"].str[0]
    table["private"] = table["module"].str.startswith("_").map({True: "yes", False: "no"})
    table.to_parquet(path)
    whole = events(path, **options)
    expected, sizes = batches_of(whole), whole.sizes
    in_parts()
    data = events(path, **options)
    check_equal(batches_of(data), expected)
    assert data.sizes == sizes
    for line in whole.describe().splitlines():
        if any(word in line for word in ("missing", "cutoff", "last", "no event")):
            assert line in data.describe()


@pytest.mark.parametrize("by", ["region", "site"])
def test_a_split_by_a_column_is_that_of_memory_in_parts_too(by, tmp_path, in_parts):
    path = tmp_path / "load.parquet"
    hours(9, 120).to_parquet(path)
    options = {"known": "price", "split": {"train": 0.5, "val": 0.5, "by": by, "exact": True}}
    whole = forecast(path, **options)
    expected = batches_of(whole)
    in_parts()
    data = forecast(path, **options)
    check_equal(batches_of(data), expected)
    assert "prepared in " in data.describe()
    parts = [set(data._sources.get_store(kind).ids) for kind in ("train", "val")]
    assert not parts[0] & parts[1]
    assert parts[0] | parts[1] == {f"site-{number}" for number in range(9)}
    regions = [{int(site[-1]) % 2 for site in part} for part in parts]
    assert (len(regions[0] & regions[1]) == 0) == (by == "region")  # whole regions, or any sites


def test_events_are_split_by_a_column_in_parts_too(tmp_path, in_parts):
    path = tmp_path / "tokens.parquet"
    table = library_tokens()
    table["size"] = table["order"] % 5.0
    table["letter"] = table["module"].str[0]
    table["private"] = table["module"].str.startswith("_").map({True: "yes", False: "no"})
    table.to_parquet(path)
    options = {"categorical": "kind", "split_by": "letter", "label": "private"}
    whole = events(path, **options)
    expected = batches_of(whole)
    in_parts()
    data = events(path, **options)
    check_equal(batches_of(data), expected)
    letters = [{name[0] for name in data._sources.get_store(kind).ids} for kind in ("train", "val")]
    assert all(letters)
    assert not letters[0] & letters[1]


def test_what_was_prepared_is_read_again_until_the_table_changes(tmp_path, in_parts, cache):
    path = gappy(tmp_path / "load.parquet")
    in_parts()
    expected = batches_of(forecast(path))
    (made,) = cache.glob("*/store/seqdata.json")
    written = made.stat().st_mtime_ns
    again = forecast(path)
    check_equal(batches_of(again), expected)
    assert "where it was prepared before" in again.describe()
    assert made.stat().st_mtime_ns == written
    assert len(list(cache.iterdir())) == 1
    batches_of(forecast(path, calendar=()))
    assert len(list(cache.iterdir())) == 2  # other options, another store
    content = path.read_bytes()
    path.write_bytes(content)  # the time of the file alone shows that it may be another
    os.utime(path, ns=(1, 1))
    batches_of(forecast(path))
    assert len(list(cache.iterdir())) == 3


def test_a_warning_of_a_preparation_is_shown_at_every_opening(tmp_path, in_parts):
    table = library_tokens()
    table["order"] += 1_700_000_000_000
    table.to_parquet(tmp_path / "tokens.parquet")
    in_parts()
    for done in ("prepared in", "where it was prepared before"):
        data = events(
            tmp_path / "tokens.parquet", categorical="kind", numeric="length", label="is_private"
        )
        with pytest.warns(
            SeqDataWarning, match="integers of 'order' look like milliseconds"
        ) as seen:
            described = data.describe()
        assert len([each for each in seen if "look like" in str(each.message)]) == 1
        assert described.count("look like milliseconds") == 1
        assert done in described


def test_a_writing_that_was_stopped_begins_anew(tmp_path, in_parts, cache):
    path = gappy(tmp_path / "load.parquet")
    in_parts()
    expected = batches_of(forecast(path))
    (report,) = cache.glob("*/prepared.json")
    report.write_bytes(report.read_bytes()[:-1])  # as if only the store had been completed
    check_equal(batches_of(forecast(path)), expected)
    last = forecast(path)
    last.setup("fit")
    assert "where it was prepared before" in last.describe()


def test_streams_are_prepared_in_memory_and_that_is_said(tmp_path, in_parts, cache):
    polars = pytest.importorskip("polars")
    path = gappy(tmp_path / "load.parquet")
    expected = batches_of(forecast(path))
    in_parts()
    data = forecast(polars.scan_parquet(path))
    check_equal(batches_of(data), expected)
    assert "a stream cannot be recognized again" in data.describe()
    assert not cache.exists()


def test_a_table_in_memory_stays_there(tmp_path, in_parts, cache):
    in_parts()
    batches_of(forecast(pd.read_parquet(gappy(tmp_path / "load.parquet"))))
    assert not cache.exists()


def test_errors_of_a_part_name_the_series(tmp_path, in_parts):
    in_parts()
    table = hours(7, 150)
    table.loc[table["site"] == "site-5", "time"] = pd.Timestamp("2024-01-01")
    table.to_parquet(tmp_path / "twice.parquet")
    with (
        pytest.warns(UserWarning, match="equal values"),
        pytest.raises(
            DataError, match=r"must increase, but in 'site-5'.*149 rows of all series so far"
        ),
    ):
        forecast(tmp_path / "twice.parquet", known=(), freq="h").setup("fit")
    gappy(tmp_path / "load.parquet")
    with pytest.raises(DataError, match=r"'load' must have all values, but .*missing so far"):
        forecast(tmp_path / "load.parquet", missing="error").setup("fit")
    with pytest.raises(DataError, match=r"missing so far\)\. Pass gaps='grid'"):
        forecast(tmp_path / "load.parquet", gaps="error").setup("fit")
    with pytest.raises(DataError, match="the longest of 7 has 150"):
        forecast(tmp_path / "load.parquet", context=1000).setup("fit")


def test_a_cache_that_cannot_be_written_is_named(tmp_path, in_parts, monkeypatch):
    in_parts()
    path = gappy(tmp_path / "load.parquet")
    blocked = tmp_path / "blocked"
    blocked.write_text("no folder")
    monkeypatch.setenv("SEQDATA_CACHE", str(blocked))
    with pytest.raises(
        CacheError, match=r"must be writable, because .* cached .* Set SEQDATA_CACHE"
    ):
        forecast(path).setup("fit")


@pytest.mark.slow
def test_a_table_larger_than_the_memory_is_prepared_and_read(tmp_path):
    script = Path(__file__).parent / "within_memory.py"
    done = subprocess.run(
        [sys.executable, script, tmp_path / "load.parquet"], capture_output=True, text=True,
        timeout=patient(120), check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [
        "1 [(256, 12), (256, 12)] True",
        "in memory it does not fit",
    ]
