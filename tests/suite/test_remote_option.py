"""Every DataModule of the suite passes ``remote=`` on: server and folder are found nowhere else."""

import wave

import numpy as np
import pandas as pd
import pytest

import tests.s3
from seqdata import (
    EventDataModule,
    ForecastDataModule,
    LongSequenceDataModule,
    Remote,
    SpeechDataModule,
    TextDataModule,
    open_store,
    write_store,
)
from seqdata.errors import ConfigError
from seqdata_testing.s3 import check_equal_batches
from tests.suite.samples import hours, library_tokens

server = tests.s3.server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning"),  # pandas 3
]
SPLIT = {"train": 0.5, "val": 0.5}
TIMES = {"train": "..2024-01-05", "val": "2024-01-05.."}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Nothing but the option says where the server and the cache are."""
    monkeypatch.setenv("SEQDATA_CACHE", str(tmp_path / "own"))
    return tests.s3.hide_servers(monkeypatch, tmp_path)


def write_table(folder):
    hours(4, 150).sort_values(["site", "time"]).to_parquet(folder / "load.parquet", index=False)


def write_hours(folder):
    write_table(folder)
    store = open_store(folder / "load.parquet", group="site", order="time")
    write_store(folder / "store", store)


def write_events(folder):
    library_tokens().to_parquet(folder / "tokens.parquet")


def write_texts(folder):
    for number in range(8):
        (folder / f"{number}.txt").write_text(f"This is document {number}. " * 20)


def write_recordings(folder):
    rows = [{"x": np.arange(50.0) + number} for number in range(8)]
    write_store(folder / "store", rows)


def write_speech(folder):
    pytest.importorskip("seqdata_audio")
    for number in range(8):
        with wave.open(str(folder / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, 8_000, 0, "NONE", ""))
            file.writeframes(np.arange(4_000 + number, dtype="<i2").tobytes())


def forecast(source, name="load.parquet", **options):
    return ForecastDataModule(
        f"{source}/{name}", id="site", time="time", target="load", context=24, horizon=6,
        batch_size=8, split=TIMES, seed=1, **options,
    )  # fmt: skip


def forecast_store(source, **options):
    return forecast(source, "store", **options)


def events(source, **options):
    return EventDataModule(
        f"{source}/tokens.parquet", id="module", time="order", categorical="kind",
        max_tokens=1000, split=SPLIT, seed=1, **options,
    )  # fmt: skip


def texts(source, **options):
    pytest.importorskip("seqdata_text")
    return TextDataModule(
        str(source), tokenizer="bytes", lanes=2, chunk=20, split=SPLIT, seed=1, **options
    )


def mixed_texts(source, **options):
    pytest.importorskip("seqdata_text")
    return TextDataModule(
        {"a": f"{source}/[0-3].txt", "b": f"{source}/[4-7].txt"}, tokenizer="bytes", lanes=2,
        chunk=20, split={**SPLIT, "exact": True}, seed=1, **options,
    )  # fmt: skip


def recordings(source, **options):
    return LongSequenceDataModule(f"{source}/store", chunk=20, split=SPLIT, seed=1, **options)


def grouped_recordings(source, **options):
    return LongSequenceDataModule(
        f"{source}/load.parquet", chunk=20, group="site", fields=["load", "price"], split=SPLIT,
        seed=1, **options,
    )  # fmt: skip


def speech(source, **options):
    table = pd.DataFrame([{"file": f"{i}.wav", "text": "yes no"[i % 4 :]} for i in range(8)])
    return SpeechDataModule(
        str(source), transcript=table, rate=8_000, split=SPLIT, split_by=None, seed=1, **options
    )


CASES = {
    "forecast": (write_table, forecast),
    "forecast of a store": (write_hours, forecast_store),
    "events": (write_events, events),
    "texts": (write_texts, texts),
    "texts of a mixture": (write_texts, mixed_texts),
    "recordings": (write_recordings, recordings),
    "recordings of a table": (write_table, grouped_recordings),
    "speech": (write_speech, speech),
}


@pytest.mark.parametrize("name", CASES)
def test_urls_are_read_as_the_option_says(name, server, tmp_path, home):
    prepare, make = CASES[name]
    (tmp_path / "data").mkdir()
    prepare(tmp_path / "data")
    url = server.upload(tmp_path / "data")
    there = make(url, remote=server.remote(tmp_path / "far"))
    here = make(tmp_path / "data")
    for data in (there, here):
        data.setup("fit")
    check_equal_batches(there.train_dataloader(), here.train_dataloader())
    found, expected = (
        loaders if isinstance(loaders, list) else [loaders]  # one for each part of a mixture
        for loaders in (there.val_dataloader(), here.val_dataloader())
    )
    for one, other in zip(found, expected, strict=True):
        check_equal_batches(one, other)
    assert any((tmp_path / "far").iterdir())
    assert not (home / ".cache").exists()


@pytest.mark.parametrize("how", ["sometimes", 3])
def test_what_is_no_access_to_urls_is_refused(how):
    with pytest.raises(ConfigError, match="must be 'cache', 'ranges' or a Remote, but is"):
        forecast("s3://bucket", remote=how)


def test_a_table_in_memory_has_no_url():
    with pytest.raises(ConfigError, match="`remote` is for a path or URL, but the data is a Da"):
        ForecastDataModule(
            hours(), id="site", time="time", target="load", context=24, horizon=6, split=TIMES,
            remote=Remote(),
        ).setup("fit")  # fmt: skip
