"""Files that name parts and statistics: of a run, of LightningCLI, by path or by a split."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from seqdata import MeanStd, fit, open_store, write_store
from seqdata.cli._doctor.leak_sources import read_sources
from seqdata.errors import ConfigError
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.policies.fixed import Fixed
from tests.lightning.harness import fit as run_fit


@pytest.fixture
def folder(tmp_path):
    rows = [{"x": np.arange(3.0) + number, "who": "ab"[number % 2]} for number in range(6)]
    for name in ("a", "b"):
        write_store(tmp_path / name, rows)
    fit(open_store(tmp_path / "a"), {"x": MeanStd()}).save(tmp_path / "stats.json")
    return tmp_path


def read(folder, content):
    path = folder / "leaks.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return read_sources(path, None)


def test_parts_are_named_by_path_from_the_file_or_from_here(folder):
    sources = read(folder, {"train": "a", "val": str(folder / "b"), "by": "who", "time": 5})
    assert list(sources.parts) == ["train", "val"]
    assert (sources.by, sources.time, sources.statistics) == (("who",), "5", {})


def test_several_stores_of_a_part_have_names_or_are_one(folder):
    sources = read(folder, {"train": ["a", "b"], "val": {"x": "a", "y": "b"}, "by": ["who", "x"]})
    assert list(sources.parts) == ["train", "val.x", "val.y"]
    assert len(sources.parts["train"]) == 12
    assert sources.by == ("who", "x")


@pytest.mark.parametrize("wrap", [
    lambda plain: {"data": plain}, lambda plain: {"data": {"class_path": "x", "init_args": plain}},
])  # fmt: skip
def test_the_data_of_lightning_cli_is_found(folder, wrap):
    assert list(read(folder, wrap({"train": "a", "test": "b"})).parts) == ["train", "test"]


def test_a_split_makes_the_parts(folder):
    split = {"store": "a", "parts": {"train": 0.5, "val": 0.5}, "seed": 3}
    parts = read(folder, {"split": split}).parts
    assert sum(map(len, parts.values())) == 6
    with pytest.raises(ConfigError, match="must have options that the function `split` takes"):
        read(folder, {"split": {**split, "sed": 3}})
    with pytest.raises(ConfigError, match="`split` must be a mapping with `store` and `parts`"):
        read(folder, {"split": "a"})


@pytest.mark.parametrize("key", ["statistics", "stats"])
def test_statistics_are_compared_with_one_part(folder, key):
    sources = read(folder, {"train": "a", key: "stats.json"})
    assert list(sources.statistics) == ["stats.json"]
    assert sources.statistics["stats.json"].fitted_on


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"train": "a"}, "must name `train` and one of .*, but names train"),
        ({"val": "a", "test": "b"}, "must name `train` and one of .*, but names val, test"),
        ({"x": 1, 2: 3}, "one of the keys train, val, test and split, but has x, 2"),
        ("{}", "one of the keys train, val, test and split, but has none"),
        ("[1, 2]", r"must be a mapping with `train` and `val`, but is \[1, 2\]"),
        ("a: [", "must be a YAML file that can be read, but is not"),
        ("[" * 500, "must be a YAML file that can be read, but is not"),
    ],
)
def test_other_files_are_refused(folder, content, text):
    with pytest.raises(ConfigError, match=text):
        read(folder, content)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"gone\.yaml: must be a YAML file that can be read"):
        read_sources(tmp_path / "gone.yaml", None)


def train_run(folder, monkeypatch, **options):
    write_store(folder / "all", [{"x": np.full((3, 1), float(i))} for i in range(20)])
    data = SequenceDataModule(batching=Fixed(4), **options)
    monkeypatch.chdir(folder)
    run_fit(data, max_epochs=1)
    return Path("seqdata-run.yaml")


def test_the_statistics_of_a_run_are_found(tmp_path, monkeypatch):
    rows = [{"x": np.full((3, 1), float(i))} for i in (0, 1)]
    source = write_store(tmp_path / "source", rows)
    stats = fit(source, {"x": MeanStd()})
    parts = {"train": source.where([True, False]), "val": source.where([False, True])}
    path = train_run(tmp_path, monkeypatch, **parts, statistics=stats)
    assert read_sources(path, None).statistics == {"statistics of seqdata-run.yaml": stats}


def test_a_run_with_a_split_is_refused(tmp_path, monkeypatch):
    path = train_run(
        tmp_path, monkeypatch, train=str(tmp_path / "all"), split={"train": 0.5, "val": 0.5}
    )
    with pytest.raises(ConfigError, match=r"but makes them by `split`. Pass a YAML file with"):
        read_sources(path, None)
