"""``seqdata doctor --leaks``: every planted leak is found, and clean data raises no alarm."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from seqdata import Labels, MeanStd, concat, fit, open_store, split, write_store
from seqdata.cli._doctor.leaks import PartContents
from seqdata.cli.app import app
from tests.cli.planted_leaks import (
    PLANTED,
    copies,
    cut,
    fitted,
    make_rows,
    make_series,
    some,
    stats_file,
    whole_sequences_and_time,
    without,
    write,
    write_run,
)


def look(path, code=0):
    done = CliRunner().invoke(app, ["doctor", "--leaks", str(path), "--json"])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)["findings"]


# clean data


def clean_speakers(folder):
    return write(folder, train=make_rows(21), val=make_rows(9, 1, first=21))


def clean_split(folder):
    write_store(folder / "all", make_rows())
    options = {"store": "all", "parts": {"train": 0.6, "val": 0.2, "test": 0.2}, "by": "speaker"}
    return write(folder, split=options, by="speaker")


def clean_time_split(folder):
    write_store(folder / "all", make_series())
    parts = {"train": "..2023-12-10", "val": "2023-12-10..2023-12-20", "test": "2023-12-20.."}
    return write(folder, split={"store": "all", "parts": parts, "along": "time", "context": 5})


def clean_series_apart(folder):
    rows = make_series()
    return write(folder, train=cut(rows, 0, 40), val=cut(rows, 40, 50), test=cut(rows, 50, 60))


def clean_whole_time(folder):
    rows = without(make_series(), "series")
    parts = {"train": cut(rows, 0, 40, "-a"), "val": cut(rows, 40, 60, "-b")}
    return write(folder, **parts, time="time")


def clean_statistics(folder):
    path = clean_split(folder)
    parts = split(folder / "all", {"train": 0.6, "val": 0.2, "test": 0.2}, by="speaker")
    plain = yaml.safe_load(path.read_text())
    path.write_text(
        yaml.safe_dump({**plain, "statistics": stats_file(folder, parts["train"])}, sort_keys=False)
    )
    return path


def clean_run(folder):
    stored = write_store(folder / "all", without(make_rows(), "speaker"))
    parts = split(stored, {"train": 0.6, "val": 0.4})
    stats = fit(parts["train"], {"x": MeanStd(), "label": Labels()})
    return write_run(folder, stats.transform(), train=parts["train"], val={"a": parts["val"]})


def clean_time_run(folder):
    stored = write_store(folder / "all", make_series())
    parts = split(stored, {"train": 0.6, "val": 0.4}, along="time", context=8)
    stats = fit(parts["train"], {"x": MeanStd()})
    return write_run(folder, stats.transform(), train=parts["train"], val=parts["val"])


def clean_silence_and_small_numbers(folder):
    """Constants and short sequences of few values are equal by chance."""
    rng = np.random.default_rng(0)
    rows = [{"x": rng.integers(0, 3, 4), "y": np.zeros(5, dtype="float32")} for _ in range(200)]
    rows = [{**row, "y": row["y"][:4]} for row in rows]
    return write(folder, train=rows[:150], val=rows[150:])


def clean_joined_pieces(folder):
    """The parts in time of two stores, joined: each store is apart in time."""
    rows = [without(make_series(seed=seed), "time") for seed in (0, 1)]
    stores = [write_store(folder / str(seed), rows[seed]) for seed in (0, 1)]
    parts = [split(store, {"train": 0.6, "val": 0.4}, along="time", context=8) for store in stores]
    return write_run(folder, **{name: concat([part[name] for part in parts])
                                for name in ("train", "val")})  # fmt: skip


def clean_numbers_that_begin_again(folder):
    """The lines of two files are numbered, or their ids are numbers: no names."""
    rows = [{**row, "id": str(number + 1)} for number, row in enumerate(make_rows(10, 5))]
    return write(folder, train=without(make_rows(), "speaker", "id"), val=without(rows, "speaker"))


def clean_other_series_of_one_store(folder):
    stored = write_store(folder / "all", without(make_series(), "time"))
    val = split(stored, {"train": 0.6, "val": 0.4}, along="time")["val"].take([3, 4])
    return write_run(folder, train=stored.take(range(3)), val=val)


def clean_lists_and_names(folder):
    write_store(folder / "more", make_rows(9, 3, first=60))
    write_store(folder / "a", make_rows(9, 4, first=90))
    write_store(folder / "b", make_rows(9, 5, first=120))
    write_store(folder / "first", make_rows())
    return write(folder, train=["first", "more"], val={"a": "a", "b": "b"})


def clean_lightning_cli(folder):
    path = clean_speakers(folder)
    plain = {"data": {"class_path": "x", "init_args": yaml.safe_load(path.read_text())}}
    path.write_text(yaml.safe_dump(plain, sort_keys=False))
    return path


CLEAN = [value for name, value in list(globals().items()) if name.startswith("clean_")]


@pytest.mark.parametrize("make", CLEAN, ids=lambda make: make.__name__)
def test_clean_data_raises_no_alarm(make, tmp_path):
    states = {finding["state"] for finding in look(make(tmp_path))}
    assert states == {"ok"}


@pytest.mark.parametrize(("make", "name"), PLANTED.values(), ids=PLANTED)
def test_a_planted_leak_is_found(make, name, tmp_path):
    bad = {one["name"] for one in look(make(tmp_path), code=1) if one["state"] == "bad"}
    assert name in bad


def test_statistics_of_a_part_of_train_are_worth_a_warning(tmp_path):
    path = fitted(lambda stored, parts: parts["train"].take(range(5)))(tmp_path)
    found = [one for one in look(path) if one["name"] == "statistics"]
    assert [one["state"] for one in found] == ["warn"]
    assert "or on a part of it" in found[0]["seen"]


def test_the_timesteps_of_whole_sequences_are_counted(tmp_path):
    (found,) = look(whole_sequences_and_time(some)(tmp_path), code=1)
    assert found["seen"].startswith("24 timesteps are in both")  # a fifth of two series of 60


def test_ids_of_two_stores_are_worth_a_warning(tmp_path):
    train, val = without(make_rows(), "speaker"), without(make_rows(10, 5), "speaker")
    val[7]["id"], val[8]["id"], val[9]["id"] = "7000", "new", "newer"
    named, other = look(write(tmp_path, train=train, val=val))
    assert (named["name"], named["state"], named["place"]) == ("same ids", "warn", "train and val")
    assert named["seen"] == "7 ids are in both: 'u0', 'u1', 'u2', ..."
    assert "give different sequences different ids" in named["fix"]
    assert other["seen"] == "none found (contents)"


@pytest.mark.parametrize(
    ("make", "seen"),
    [
        (clean_numbers_that_begin_again, "contents"),
        (clean_speakers, "ids, speaker, contents"),
        (clean_split, "sequences, speaker, contents"),
        (clean_run, "sequences, contents"),
        (clean_joined_pieces, "timesteps, contents"),
        (clean_series_apart, "ids, series, contents, time"),
        (clean_whole_time, "ids, contents, time"),
    ],
)
def test_what_is_clean_names_what_was_looked_at(make, seen, tmp_path):
    found = [one["seen"] for one in look(make(tmp_path)) if one["name"] == "leaks"]
    assert set(found) == {f"none found ({seen})"}


def test_parts_that_have_nothing_in_common_are_said(tmp_path):
    path = write(tmp_path, train=[{"x": np.arange(9)}] * 2, val=[{"y": np.arange(9)}] * 2)
    (found,) = look(path)
    assert (found["state"], found["seen"][:19]) == ("note", "nothing to compare:")


def test_a_finding_names_what_is_shared(tmp_path):
    (found,) = [one for one in look(copies()(tmp_path), code=1) if one["state"] == "bad"][:1]
    assert found["place"] == "train and val"
    assert "1 sequences of train are in val, too" in found["seen"]
    assert "'u0'" in found["seen"]
    done = CliRunner().invoke(app, ["doctor", "--leaks", str(tmp_path / "data.yaml")])
    assert "duplicates" in done.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "must be a mapping with `train` and `val`, but is [1]"),
        (
            "{a: b}",
            "must have at least one of the keys train, val, test and split, but has",
        ),
        ("{train: store}", "must name `train` and one of `val`, `test` and `statistics`, but"),
        ("{split: 7}", "`split` must be a mapping with `store` and `parts`, but is 7"),
        (
            "{split: {store: store, parts: {a: 1}, size: 3}}",
            "must have options that the function `split` takes",
        ),
        ("{train: store, val: store, by: z}", "leaks: `by` must be a field of every part (x), but"),
        ("{train: store, val: more, time: z}", "leaks: `time` must be a field of every part with"),
        (
            "{train: store, val: more, stats: z}",
            "must be a readable file of Statistics.save, but cannot be",
        ),
        ("a: b: c", "must be a YAML file that can be read, but is not"),
    ],
)
def test_files_that_are_refused(text, message, tmp_path):
    write_store(tmp_path / "store", [[1, 2, 3]])
    write_store(tmp_path / "more", [[1, 2, 4]])
    (tmp_path / "data.yaml").write_text(text)
    done = CliRunner().invoke(app, ["doctor", "--leaks", str(tmp_path / "data.yaml")])
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())


def test_a_file_is_needed():
    done = CliRunner().invoke(app, ["doctor", "--leaks"])
    assert done.exit_code == 2
    assert "with --leaks CONFIG must be the seqdata-run.yaml of a run" in done.stderr


def test_locations_may_be_absolute(tmp_path):
    path = clean_speakers(tmp_path)
    plain = {name: str(tmp_path / name) for name in ("train", "val")}
    moved = tmp_path / "elsewhere" / "data.yaml"
    moved.parent.mkdir()
    moved.write_text(yaml.safe_dump(plain, sort_keys=False))
    assert look(moved) == look(path)
    assert Path(path).exists()
    assert len(open_store(tmp_path / "train")) == 21


def test_contents_are_not_read_where_a_leak_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(PartContents, "contents", property(lambda part: 1 / 0))
    make, name = PLANTED["same store"]
    assert name in {one["name"] for one in look(make(tmp_path), code=1)}
