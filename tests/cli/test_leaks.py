"""``seqdata doctor --leaks``: every planted leak is found, and clean data raises no alarm."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from seqdata import (
    Labels,
    MeanStd,
    SequenceDataModule,
    concat,
    fit,
    open_store,
    split,
    write_store,
)
from seqdata.cli.app import app
from seqdata.policies.fixed import Fixed
from seqdata.runs.locate_batch import FitGeometry
from seqdata.runs.run_file import NAME, RunFile

DAY = 86_400
START = 1_700_000_000


def make_rows(count=30, seed=0, **options):
    """Return recordings of 10 speakers, three of each."""
    rng = np.random.default_rng(seed)
    first = options.get("first", 0)
    rows = []
    for number in range(first, first + count):
        length = int(rng.integers(20, 40))
        rows.append({
            "id": f"u{number}", "x": rng.normal(size=(length, 2)).astype("float32"),
            "speaker": f"s{number // 3}", "label": number % 2,
            "text": f"what speaker {number // 3} said in recording {number} of {seed}",
        })  # fmt: skip
    return rows


def make_series(count=5, days=60, seed=0):
    rng = np.random.default_rng(seed)
    return [
        {
            "id": f"series-{number}",
            "x": rng.normal(size=days),
            "time": START + DAY * np.arange(days),
            "series": number,
        }
        for number in range(count)
    ]


def cut(rows, first, stop, suffix=""):
    """Return the same days of every series, as a store of its own would have them."""
    return [
        {
            **row,
            "id": row["id"] + suffix,
            "x": row["x"][first:stop],
            "time": row["time"][first:stop],
        }
        for row in rows
    ]


def without(rows, *names):
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


def write(folder, **parts):
    """Write each part as a store, and the file that names them; options are not rows."""
    plain = {}
    for name, rows in parts.items():
        plain[name] = rows
        if isinstance(rows, list) and rows and isinstance(rows[0], dict):
            write_store(folder / name, rows)
            plain[name] = name
    (folder / "data.yaml").write_text(yaml.safe_dump(plain, sort_keys=False))
    return folder / "data.yaml"


def write_run(folder, transform=None, **parts):
    """Write the run file that a fit over parts would write."""
    data = SequenceDataModule(**parts, batching=Fixed(2), transform=transform)
    RunFile.from_options(
        data._options, FitGeometry(seed=0), fingerprints={}, plan="", versions={}, trainer={}
    ).write(folder / NAME)
    return folder / NAME


def look(path, code=0):
    done = CliRunner().invoke(app, ["doctor", "--leaks", str(path), "--json"])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)["findings"]


def stats_file(folder, view):
    fit(view, {"x": MeanStd()}).save(folder / "stats.json")
    return "stats.json"


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


def clean_names_that_begin_again(folder):
    return write(folder, train=without(make_rows(), "speaker"),
                 val=without(make_rows(10, 5), "speaker"))  # fmt: skip


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


# planted leaks: what is in two parts, and what the finding is called


def with_group(name, value=None):
    def make(folder):
        rows = [{**row, name: value or row["speaker"]} for row in make_rows()]
        rows = rows if name == "speaker" else without(rows, "speaker")
        return write(folder, train=rows[:20], val=rows[20:])

    return make


def named_group(folder):
    rows = [{**row, "machine": number % 7} for number, row in enumerate(make_rows())]
    return write(folder, train=without(rows[:20], "speaker"), val=without(rows[20:], "speaker"),
                 by="machine")  # fmt: skip


def copies(*, count=1, renamed=True, part="val", shift=0):
    def make(folder):
        train, others = make_rows(21), make_rows(9, 1, first=21)
        others = [*others, *({**row, "id": f"copy-{row['id']}"} for row in train[:count])]
        others = without(others, *(["text"] if shift else []))
        train = without(train, *(["text"] if shift else []))
        strip = ["speaker", "id"] if not renamed else ["speaker"]
        parts = {"train": without(train, *strip), part: without(others, *strip)}
        return write(folder, **parts)

    return make


def copied_text(folder):
    train, val = make_rows(21), make_rows(9, 1, first=21)
    val[3]["text"] = train[5]["text"]
    return write(folder, train=without(train, "speaker"), val=without(val, "speaker"))


def copied_in_one_of_several(folder):
    write_store(folder / "a", make_rows(9, 4, first=90))
    write_store(folder / "b", [*make_rows(9, 5, first=120), {**make_rows()[7], "id": "other",
                                                             "speaker": "s99"}])  # fmt: skip
    return write(folder, train=make_rows(), val={"a": "a", "b": "b"})


def copied_between_val_and_test(folder):
    val, test = make_rows(6, 1, first=60), make_rows(6, 2, first=90)
    test[0] = {**val[0], "id": "again", "speaker": "s99"}
    return write(folder, train=make_rows(), val=val, test=test)


def same_sequences(folder):
    stored = write_store(folder / "all", without(make_rows(), "speaker"))
    return write_run(folder, train=stored.take(range(20)), val=stored.take(range(19, 30)))


def same_store(folder):
    return write(folder, train=make_rows(), val="train")


def two_splits(folder):
    stored = write_store(folder / "all", without(make_rows(), "speaker"))
    first = split(stored, {"train": 0.8, "val": 0.2}, seed=0)
    second = split(stored, {"train": 0.8, "val": 0.2}, seed=1)
    return write_run(folder, train=first["train"], val=second["val"])


def split_by_id(folder):
    write_store(folder / "all", make_rows())
    return write(folder, split={"store": "all", "parts": {"train": 0.6, "val": 0.4}})


def two_time_splits(folder):
    stored = write_store(folder / "all", make_series())
    train = split(stored, {"train": "..40"}, along="time")["train"]
    val = split(stored, {"val": "39.."}, along="time")["val"]
    return write_run(folder, train=train, val=val)


def overlapping_series(folder):
    rows = make_series()
    return write(folder, train=cut(rows, 0, 40), val=cut(rows, 39, 60))


def overlapping_ids(folder):
    rows = without(make_series(), "series")
    return write(folder, train=cut(rows, 0, 40), val=cut(rows, 35, 60))


def overlapping_windows(folder):
    """Windows that were cut before the split: the last one of train reaches into val."""
    windows = [
        {**row, "id": f"{row['id']}-{first}", "x": row["x"][first : first + 16],
         "time": row["time"][first : first + 16]}
        for row in make_series() for first in range(0, 44, 4)
    ]  # fmt: skip
    early = [row for row in windows if row["time"][0] < START + 30 * DAY]
    late = [row for row in windows if row["time"][0] >= START + 30 * DAY]
    return write(folder, train=early, val=late)


def overlapping_whole_time(folder):
    rows = without(make_series(), "series")
    parts = {"train": cut(rows, 0, 40, "-a"), "val": cut(rows, 30, 60, "-b")}
    return write(folder, **parts, time="time")


def fitted(view_of, *, run=False, along=False):
    def make(folder):
        rows = without(make_series() if along else make_rows(), "speaker", "time")
        stored = write_store(folder / "all", rows)
        options = {"along": "time"} if along else {}
        parts = split(stored, {"train": 0.7, "val": 0.3}, **options)
        view = view_of(stored, parts)
        if run:
            stats = fit(view, {"x": MeanStd()})
            return write_run(folder, stats.transform(), train=parts["train"], val=parts["val"])
        plain = {"store": "all", "parts": {"train": 0.7, "val": 0.3}, **options}
        return write(folder, split=plain, statistics=stats_file(folder, view))

    return make


def whole(stored, parts):
    return stored


def both(stored, parts):
    return concat([parts["train"], parts["val"]])


def val_only(stored, parts):
    return parts["val"]


def some_of_both(stored, parts):
    return concat([parts["train"].take(range(5)), parts["val"].take(range(3))])


def one_more(stored, parts):
    return concat([parts["train"], parts["val"].take([0])])


PLANTED = {
    "speaker": (with_group("speaker"), "same speaker"),
    "speaker_id": (with_group("speaker_id"), "same speaker_id"),
    "document": (with_group("document"), "same document"),
    "series": (with_group("series", 7), "same series"),
    "patient": (with_group("patient"), "same patient"),
    "user_id": (with_group("user_id"), "same user_id"),
    "named group": (named_group, "same machine"),
    "split by id": (split_by_id, "same speaker"),
    "one copy": (copies(), "duplicates"),
    "five copies": (copies(count=5), "duplicates"),
    "a copy without ids": (copies(renamed=False), "duplicates"),
    "a copy in test": (copies(part="test"), "duplicates"),
    "a copy without text": (copies(shift=1), "duplicates"),
    "a copied text": (copied_text, "duplicates"),
    "a copy in one of several": (copied_in_one_of_several, "duplicates"),
    "a copy between val and test": (copied_between_val_and_test, "duplicates"),
    "same sequences": (same_sequences, "same sequences"),
    "same store": (same_store, "same sequences"),
    "two splits": (two_splits, "same sequences"),
    "two splits in time": (two_time_splits, "overlap in time"),
    "series at the same time": (overlapping_series, "same series at the same time"),
    "ids at the same time": (overlapping_ids, "overlap in time"),
    "windows cut before": (overlapping_windows, "same series at the same time"),
    "whole parts at the same time": (overlapping_whole_time, "overlap in time"),
    "fitted on all": (fitted(whole), "statistics"),
    "fitted on both": (fitted(both), "statistics"),
    "fitted on val": (fitted(val_only), "statistics"),
    "fitted on some of both": (fitted(some_of_both), "statistics"),
    "fitted on one more": (fitted(one_more), "statistics"),
    "fitted on all of time": (fitted(whole, along=True), "statistics"),
    "fitted on val in time": (fitted(val_only, along=True), "statistics"),
    "a run's statistics": (fitted(whole, run=True), "statistics"),
    "a run's statistics in time": (fitted(whole, run=True, along=True), "statistics"),
}


@pytest.mark.parametrize(("make", "name"), PLANTED.values(), ids=PLANTED)
def test_a_planted_leak_is_found(make, name, tmp_path):
    bad = {one["name"] for one in look(make(tmp_path), code=1) if one["state"] == "bad"}
    assert name in bad


def test_statistics_of_a_part_of_train_are_worth_a_warning(tmp_path):
    path = fitted(lambda stored, parts: parts["train"].take(range(5)))(tmp_path)
    found = [one for one in look(path) if one["name"] == "statistics"]
    assert [one["state"] for one in found] == ["warn"]
    assert "or on a part of it" in found[0]["seen"]


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
        ("{a: b}", "keys must be of train, val, test, predict, split, statistics, stats, by, time"),
        ("{train: store}", "parts must be `train` and one of `val`, `test` and `statistics`, but"),
        ("{split: 7}", "`split` must be a mapping with `store` and `parts`, but is 7"),
        ("{split: {store: store, parts: {a: 1}, size: 3}}", "the options of `split` must be its"),
        ("{train: store, val: store, by: z}", "leaks: `by` must be a field of every part (x), but"),
        ("{train: store, val: more, time: z}", "leaks: `time` must be a field of every part with"),
        ("{train: store, val: more, stats: z}", "must be a JSON file that Statistics.save wrote"),
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
