"""Leaks from one part of the data into another, planted into stores, splits and run files."""

import numpy as np
import yaml

from seqdata import MeanStd, SequenceDataModule, concat, fit, split, write_store
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
        data._options, FitGeometry(seed=0), folder, fingerprints={}, plan="", versions={},
        trainer={},
    ).write(folder / NAME)  # fmt: skip
    return folder / NAME


def stats_file(folder, view):
    fit(view, {"x": MeanStd()}).save(folder / "stats.json")
    return "stats.json"


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


def whole_sequences_and_time(part):
    """The training part was to be one of the split, but is what was split."""

    def make(folder):
        stored = write_store(folder / "all", without(make_series(), "series", "time"))
        val = split(stored, {"train": 0.8, "val": 0.2}, along="time")["val"]
        return write_run(folder, train=part(folder, stored), val=val)

    return make


def some(folder, stored):
    return stored.take([4, 1])


def joined(folder, stored):
    return concat([write_store(folder / "more", without(make_series(seed=1), "series", "time")),
                   stored])  # fmt: skip


def whole_sequences_and_named_time(folder):
    write_store(folder / "all", without(make_series(), "series", "time"))
    plain = {"store": "all", "parts": {"train": 0.8, "val": 0.2}, "along": "time"}
    return write(folder, split=plain, train="all")


def joined_pieces(folder):
    """Two stores, each split in time; of one of them a part is taken from another split."""
    stores = [
        write_store(folder / str(seed), without(make_series(seed=seed), "series", "time"))
        for seed in (0, 1)
    ]
    first, second, other = (
        split(store, {"train": stop, "val": 1 - stop}, along="time")
        for store, stop in zip([*stores, stores[1]], (0.8, 0.8, 0.5), strict=True)
    )
    return write_run(folder, train=concat([first["train"], second["train"]]),
                     val=concat([first["val"], other["val"]]))  # fmt: skip


def joined_store(folder):
    stored = write_store(folder / "all", without(make_rows(), "speaker"))
    more = write_store(folder / "more", without(make_rows(9, 1, first=60), "speaker"))
    return write_run(folder, train=concat([more, stored.take(range(20))]),
                     val=stored.take(range(19, 30)))  # fmt: skip


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
    "a whole store and its split in time": (
        whole_sequences_and_time(lambda folder, stored: stored),
        "overlap in time",
    ),
    "some sequences and a split in time": (whole_sequences_and_time(some), "overlap in time"),
    "joined stores and a split in time": (whole_sequences_and_time(joined), "overlap in time"),
    "a named store and its split in time": (whole_sequences_and_named_time, "overlap in time"),
    "joined pieces of two splits": (joined_pieces, "overlap in time"),
    "joined stores and one of them": (joined_store, "same sequences"),
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
