"""DataModules and commands take tables and texts in buckets as they take local ones."""

import json

import pytest
from click.testing import CliRunner

import tests.s3
from seqdata import EventDataModule, ForecastDataModule, TextDataModule, open_store, write_store
from seqdata.cli.app import app
from seqdata.suite import write_once
from seqdata_testing.s3 import check_equal_batches
from tests.suite.samples import hours, library_tokens

server = tests.s3.server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning"),  # pandas 3
]
SPLIT = {"train": "..2024-01-05", "val": "2024-01-05.."}


@pytest.fixture(autouse=True)
def home(server, tmp_path, monkeypatch):
    """The server is found, and the cache is, without options."""
    for name, value in server.enter_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SEQDATA_CACHE", str(tmp_path / "own"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def check_same_parts(there, here):
    for data in (there, here):
        data.setup("fit")
    check_equal_batches(there.train_dataloader(), here.train_dataloader())
    check_equal_batches(there.val_dataloader(), here.val_dataloader())


def forecast(source, **options):
    options = {"split": SPLIT, "static": "region", **options}
    return ForecastDataModule(
        source, id="site", time="time", target="load", context=24, horizon=6, batch_size=8, seed=1,
        **options,
    )  # fmt: skip


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("name", ["load.parquet", "load.csv", "hive"])
def test_a_forecast_of_a_bucket(name, in_parts, folder, server, home, monkeypatch):
    if in_parts:
        monkeypatch.setattr(write_once, "MEMORY_BYTES", 1)
        monkeypatch.setattr(write_once, "PART_BYTES", 3_000)
    table = hours(4, 150).sort_values(["site", "time"])
    if name == "hive":
        for number in range(2):
            (folder / f"hive/half={number}").mkdir(parents=True)
            chosen = table[table["site"].isin([f"site-{2 * number}", f"site-{2 * number + 1}"])]
            chosen.to_parquet(folder / f"hive/half={number}/0.parquet", index=False)
    elif name == "load.csv":
        table.to_csv(folder / name, index=False)
    else:
        table.to_parquet(folder / name, index=False)
    url = server.upload(folder)
    there = forecast(f"{url}/{name}")
    check_same_parts(there, forecast(folder / name))
    copies = home / ".cache/seqdata/seqdata-copies"
    assert f"files of {url}/{name} are copied to {copies}" in there.describe()
    server.list_read()
    again = forecast(f"{url}/{name}")
    again.setup("fit")
    assert not server.list_read()
    if in_parts and name != "load.csv":
        assert "where it was prepared before" in again.describe()


def test_a_store_in_a_bucket_is_not_grouped_again(folder, server):
    hours(4, 150).to_parquet(folder / "load.parquet", index=False)
    here = open_store(folder / "load.parquet", group="site", order="time")
    url = server.upload(folder)
    write_store(f"{url}/store", here)
    check_same_parts(forecast(f"{url}/store"), forecast(here))


def test_events_of_a_bucket(folder, server):
    table = library_tokens()
    table["private"] = table["module"].str.startswith("_").map({True: "yes", False: "no"})
    table.to_parquet(folder / "tokens.parquet")
    url = server.upload(folder)
    there, here = (
        EventDataModule(
            f"{source}/tokens.parquet", id="module", time="order", categorical=("kind",),
            label="private", last=60, max_tokens=1000, seed=1, split={"train": 0.7, "val": 0.3},
        )
        for source in (url, folder)
    )  # fmt: skip
    check_same_parts(there, here)


def test_a_text_of_a_bucket(folder, server):
    pytest.importorskip("seqdata_text")
    for number in range(8):
        (folder / f"{number}.txt").write_text(f"This is document {number}. " * 20)
    url = server.upload(folder)
    there, here = (
        TextDataModule(
            source, tokenizer="bytes", lanes=2, chunk=20, split={"train": 0.5, "val": 0.5}, seed=1
        )
        for source in (url, str(folder))
    )
    check_same_parts(there, here)
    assert there.sizes == here.sizes


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("load.parquet", ["--group", "site", "--order", "time"]),
        ("load.csv", ["--group", "site", "--order", "time"]),
        ("rows.jsonl", ["--id", "name"]),
        ("rows.jsonl", []),
        ("notes", []),
    ],
)
def test_write_of_a_bucket(name, options, folder, server):
    table = hours(2, 30)
    table.to_parquet(folder / "load.parquet", index=False)
    table.to_csv(folder / "load.csv", index=False)
    rows = [{"name": f"r{number}", "x": [number, 1]} for number in range(3)]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "notes/deep").mkdir(parents=True)
    (folder / "notes/deep/a.txt").write_text("some text")
    url = server.upload(folder)
    for source, out in ((url, "there"), (folder, "here")):
        done = CliRunner().invoke(app, ["write", f"{source}/{name}", out, *options])
        assert done.exit_code == 0, done.output
        assert (f"{url}/{name}: copied to " in done.stderr) == (source == url)
    there, here = open_store("there"), open_store("here")
    assert list(there.ids) == list(here.ids)
    assert there.fingerprint == here.fingerprint


def test_stats_of_a_bucket(folder, server):
    hours(2, 30).to_parquet(folder / "load.parquet", index=False)
    (folder / "a.txt").write_text("some text")
    url = server.upload(folder)
    for name, backend in (
        ("load.parquet", "frames:group=site,order=time"),
        ("a.txt", "text:tokenizer=bytes"),
    ):
        done = [
            CliRunner().invoke(
                app, ["stats", f"{source}/{name}", "--backend", backend, "--json", "--no-values"]
            )
            for source in (url, folder)
        ]
        assert [each.exit_code for each in done] == [0, 0], done[0].output
        there, here = (json.loads(each.stdout) for each in done)
        for key in ("sequences", "fingerprint", "fields", "lengths"):
            assert there[key] == here[key], key
