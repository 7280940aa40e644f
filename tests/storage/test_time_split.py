"""A split in time cuts each sequence; no timestep is in two parts, no target in a context."""

import pickle
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata import (
    Bucketed,
    ConfigError,
    DataError,
    Fixed,
    Loader,
    Mix,
    Part,
    Windows,
    concat,
    measure_lengths,
    open_store,
    split,
    write_store,
)
from seqdata.storage import time_split

DAY = 86_400
START = int(np.datetime64("2023-12-30", "s").astype(np.int64))
DATES = {"train": "..2024-01-01", "val": "2024-01-01..2024-01-04", "test": "2024-01-04.."}


def series(*days, unit=1, dtype="int64", start=0):
    """Return a sequence of a row a day, whose `x` counts days."""
    number = np.arange(*days)
    return {"x": number.astype("float64"), "when": ((START + number * DAY) * unit).astype(dtype)}


def rows(**options):
    return [
        {"id": "a", **series(0, 10, **options), "site": 3},
        {"id": "b", **series(4, 6, **options), "site": 4},
        {"id": "c", **series(1, 3, **options), "site": 5},
    ]


def contents(view):
    return {sequence["id"]: sequence["x"].tolist() for sequence in view}


@pytest.mark.parametrize("unit", [1, 10**3, 10**6, 10**9])
def test_sequences_are_cut_at_dates(unit):
    parts = split(rows(unit=unit), DATES, along="when")
    assert contents(parts["train"]) == {"a": [0, 1], "c": [1]}
    assert contents(parts["val"]) == {"a": [2, 3, 4], "b": [4], "c": [2]}
    assert contents(parts["test"]) == {"a": [5, 6, 7, 8, 9], "b": [5]}
    assert parts["val"].lengths.tolist() == [3, 1, 1]
    assert [int(sequence["site"]) for sequence in parts["val"]] == [3, 4, 5]


def test_timestamps_may_be_floats_with_a_unit_that_is_named():
    old = [{"x": [1, 2, 3], "when": np.array([0.0, 1.5, 3.0])}]
    parts = split(old, {"a": "..1970-01-01T00:00:02"}, along="when", unit="s")
    assert parts["a"].lengths.tolist() == [2]
    with pytest.raises(
        ConfigError, match=r"first value, 0.0, is a date between .* in no unit. Pass unit='s'"
    ):
        split(old, {"a": "..1970-01-02"}, along="when")


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"a": "..3", "b": "3.."}, [[3, 2, 2], [7]]),
        ({"a": "..-1", "b": "-1.."}, [[9, 1, 1], [1, 1, 1]]),
        ({"a": "..0.5", "b": "0.5.."}, [[5, 1, 1], [5, 1, 1]]),
        ({"a": 0.8, "b": 0.2}, [[8, 1, 1], [2, 1, 1]]),
        ({"a": "..2", "b": "5..100"}, [[2, 2, 2], [5]]),
    ],
)
def test_sequences_are_cut_at_timesteps_and_fractions(parts, expected):
    found = split(rows(), parts, along="time")
    assert [view.lengths.tolist() for view in found.values()] == expected


@pytest.mark.parametrize("along", ["time", "when"])
def test_any_number_of_parts_follow_each_other(along):
    """Tenths of 1 for each day of ``a``, whose parts hold every row once and in order."""
    for count in (1, 2, 3, 5):
        fractions = {f"part{number}": 0.1 for number in range(count - 1)}
        parts = split(rows()[:1], {**fractions, "rest": 1 - 0.1 * (count - 1)}, along=along)
        assert list(parts) == [*fractions, "rest"]
        found = [contents(part)["a"] for part in parts.values()]
        assert found == [*([number] for number in range(count - 1)), list(range(count - 1, 10))]


def test_shares_of_a_sequence_are_the_same_along_its_timestamps_as_along_time():
    for along in ("time", "when"):
        parts = split(rows(), {"train": 0.8, "val": 0.2}, along=along)
        assert [view.lengths.tolist() for view in parts.values()] == [[8, 1, 1], [2, 1, 1]]
    falling = [{"x": [1, 2, 3], "when": [3, 1, 2]}]
    with pytest.raises(DataError, match="timestamps must not fall"):
        split(falling, {"train": 0.5, "val": 0.5}, along="when")


def test_numbers_are_compared_with_a_field_that_is_not_an_axis():
    parts = split(rows(), {"low": f"..{START + 2 * DAY}"}, along="when")
    assert contents(parts["low"]) == {"a": [0, 1], "c": [1]}


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=1, max_size=8),
    st.lists(st.integers(0, 10), min_size=1, max_size=3, unique=True),
    st.integers(1, 5),
)
def test_every_timestep_is_in_the_part_of_its_timestamp(stamps, cuts, size):
    given_rows = [{"x": np.array(sorted(one), dtype="int64")} for one in stamps]
    edges = ["", *map(str, sorted(cuts)), ""]
    parts = {f"p{i}": f"{edges[i]}..{edges[i + 1]}" for i in range(len(edges) - 1)}
    store = open_store(given_rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time_split, "_CHUNK_ROWS", size)
        try:
            found = split(store, parts, along="x")
        except ConfigError:  # a part is empty
            return
    limits = [-1, *sorted(cuts), 99]
    for place, view in enumerate(found.values()):
        low, high = limits[place], limits[place + 1]
        expected = [[x for x in row["x"].tolist() if low <= x < high] for row in given_rows]
        assert [s["x"].tolist() for s in view] == [one for one in expected if one]


def test_parts_go_wherever_a_store_goes(tmp_path):
    stored = write_store(tmp_path / "store", rows())
    parts = split(stored, DATES, along="when")
    val = pickle.loads(pickle.dumps(parts["val"]))
    assert contents(val) == contents(parts["val"])
    assert val.fingerprint == parts["val"].fingerprint
    assert len({view.fingerprint for view in parts.values()} | {stored.fingerprint}) == 4
    written = write_store(tmp_path / "val", val)
    assert contents(written) == contents(val)
    assert contents(concat([val, parts["test"].take([1])])) == {"a": [2, 3, 4], "b": [5], "c": [2]}
    assert len(split(val, {"x": 0.5, "y": 0.5}, exact=True)["x"]) in (1, 2)
    batches = Loader(parts["test"].where([True, False]), Fixed(2))
    assert [batch["x"].tolist() for batch in batches] == [[[5, 6, 7, 8, 9]]]
    assert "Spans(3 along 'time' of ArrowStore" in repr(parts["val"])


@pytest.mark.slow
def test_workers_read_parts(tmp_path):
    stored = write_store(tmp_path / "store", rows())
    parts = split(stored, DATES, along="when")
    expected = [batch["x"].tolist() for batch in Loader(parts["val"], Bucketed(2), seed=1)]
    loader = Loader(parts["val"], Bucketed(2), seed=1, num_workers=1)
    assert [batch["x"].tolist() for batch in loader] == expected


def test_what_is_outside_a_part_cannot_be_read():
    store = split(rows(), DATES, along="when")["val"].base
    with pytest.raises(ConfigError, match=r"timesteps of sequence 1 must be in \[0, 1\), but 0..2"):
        store.read(np.array([[1, 0, 2]]), ["x"])
    with pytest.raises(ConfigError, match=r"index of a sequence must be in \[0, 3\), but is 3"):
        store.read(np.array([[3, 0, 1]]), ["x"])
    with pytest.raises(ConfigError, match="no axis 'frames'"):
        store.read(np.array([[0, 0, 1]]), ["x"], axis="frames")


# context


def windows_of(view, policy):
    for batch in Loader(view, policy):
        yield from zip(batch.context["x"].tolist(), batch.future["x"].tolist(), strict=True)


@pytest.mark.parametrize("size", [2, 3])
def test_windows_read_context_from_before_but_no_targets(size):
    parts = split(rows(), DATES, along="when", context=2)
    assert contents(parts["val"])["a"] == [0, 1, 2, 3, 4]
    assert parts["val"].base.contexts.tolist() == [2, 0, 1]
    assert parts["train"].base.contexts.tolist() == [0, 0]
    found = list(windows_of(parts["val"], Windows(size, 1, horizon=1, shuffle=False)))
    assert ([0, 1], [2]) in found or size == 3
    futures = {day for _, future in found for day in future}
    assert futures == ({2, 3, 4} if size == 2 else {3, 4})
    joined = concat([parts["val"], parts["test"]])
    assert len(list(windows_of(joined, Windows(size, 1, horizon=1)))) > len(found)


@pytest.mark.parametrize(
    "policy", [Fixed(2), Windows(3), Windows(1, horizon=1), Windows(1, 1, horizon=3)]
)
def test_policies_that_would_have_targets_in_the_context_are_refused(policy):
    val = split(rows(), DATES, along="when", context=2)["val"]
    with pytest.raises(ConfigError, match=r"a context of 2 timesteps .* a size of at least 2"):
        Loader(val, policy)


def test_a_shift_is_refused_with_a_context():
    val = split(rows(), DATES, along="when", context=2)["val"].select("x")
    with pytest.raises(ConfigError, match=r"`shift` must be 0 with a context .*, but is 1"):
        Loader(val, Windows(2, horizon=1), shift=1)


def halve(sequence, rng):
    return {"x": sequence["x"][::2]}


halve.lengths = lambda lengths: (lengths + 1) // 2


def test_a_transform_that_changes_lengths_is_refused_with_a_context():
    parts = split(rows(), DATES, along="when", context=2)
    windows = Windows(2, horizon=1)
    message = r"transform .* must keep lengths with a context of 2 timesteps .*, but changes"
    with pytest.raises(ConfigError, match=message):
        Loader(parts["val"], windows, transform=halve)
    with pytest.raises(ConfigError, match=message):
        Loader(measure_lengths(parts["val"], lambda *given: halve(*given)), windows)
    with pytest.raises(ConfigError, match=message):
        Loader({"val": parts["val"]}, Mix({"val": Part(1, windows)}), transform=halve)
    assert len(Loader(parts["train"], Fixed(2), transform=halve)) == 1
    assert len(Loader(parts["val"], windows, transform=lambda sequence, rng: sequence)) == 1


def test_a_context_is_not_written_as_ordinary_timesteps(tmp_path):
    parts = split(rows(), DATES, along="when", context=2)
    for view in (parts["val"], concat([parts["train"], parts["val"]])):
        with pytest.raises(ConfigError, match=r"must have no context .*, but has up to 2 timestep"):
            write_store(tmp_path / "val", view)
    assert not (tmp_path / "val").exists()
    plain = split(rows(), DATES, along="when")["val"]
    assert contents(write_store(tmp_path / "val", plain)) == contents(plain)
    assert len(write_store(tmp_path / "train", parts["train"])) == 2  # which has none before it


# errors


@pytest.mark.parametrize(
    ("parts", "options", "message"),
    [
        ({}, {}, "split: `parts` must be a mapping of names to ranges or fractions, but is {}. W"),
        ({"a": "2024-01-01"}, {}, "split: part 'a' must be a range 'start..stop', but is '2024"),
        ({"a": ".."}, {}, "split: part 'a' must be a range 'start..stop', but is '..'"),
        ({"a": 0.5, "b": "..1"}, {}, "split: part 'a' must be a range 'start..stop', but is 0.5"),
        ({"a": 0.5, "b": 0.2}, {}, "split: `parts` must be fractions above 0 that add up to 1"),
        ({"a": "..now"}, {}, "split: a bound of part 'a' must be a date such as 2024-01-31, a tim"),
        ({"a": "..2024-13"}, {}, "bound of part 'a' must be a date such as 2024-01-31, a timestep"),
        ({"a": "..3", "b": "2024-01-01.."}, {}, "split: `parts` must be ranges of one kind: dates"),
        ({"a": "..1.5"}, {"along": "time"}, "split: a fraction must be in [0, 1], but is 1.5"),
        ({"a": "..3"}, {"along": "site"}, "split: `along` must be a field with one number per ti"),
        (
            {"a": "..2024-01-05", "b": "2024-01-04.."},
            {},
            "parts must not share timesteps, but 'a'",
        ),
        (
            {"a": "..1990-01-01"},
            {},
            "part 'a' must have at least one timestep, but has none",
        ),
        (DATES, {"context": -1}, "split: `context` must be an integer of at least 0, in timesteps"),
        (DATES, {"unit": "h"}, "split: `unit` must be 's', 'ms', 'us' or 'ns', but is 'h'"),
        (DATES, {"seed": 5}, "split: `seed` cannot be given with `along`, but is 5: every"),
        (DATES, {"by": "site"}, "split: `by` cannot be given with `along`, but is 'site'"),
        (DATES, {"stratify": "site"}, "split: `stratify` cannot be given with `along`, but is"),
        (DATES, {"exact": True}, "split: `exact` cannot be given with `along`, but is True"),
        (DATES, {"along": None, "context": 2}, "split: `context` requires `along`, but is 2 with"),
        (
            DATES,
            {"along": "where"},
            "split: `along`: no field 'where'; did you mean 'when'? Choose one of",
        ),
        ({"a": "..3"}, {"along": "where"}, "split: `along`: no field or axis 'where'"),
    ],
)
def test_arguments_that_are_refused(parts, options, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        split(rows(), parts, **{"along": "when", **options})


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize(
    ("bad", "verb", "remedy"),
    [([3, 2, 4], "fall", "Sort its timesteps"), ([2, np.nan, 3], "hold NaN", "Fill it")],
)
def test_timestamps_that_fall_are_refused(size, bad, verb, remedy, monkeypatch):
    monkeypatch.setattr(time_split, "_CHUNK_ROWS", size)
    given_rows = [{"id": "good", "x": [5.0, 5.0]}, {"id": "bad", "x": np.array(bad, dtype=float)}]
    text = f"must not {verb}, but those of sequence 'bad' in field 'x' do. {remedy}, or leave"
    with pytest.raises(DataError, match=text):
        split(given_rows, {"a": "..3.5"}, along="x")


def test_fields_along_other_axes_are_refused():
    store = open_store([{"x": [1, 2], "y": [1]}], axes={"y": "frames"})
    with pytest.raises(ConfigError, match=r"must all run along 'time' .* run along 'frames'"):
        split(store, {"a": "..1"}, along="time")
    assert split(store.select("x"), {"a": "..1"}, along="time")["a"].lengths.tolist() == [1]


def test_a_part_with_a_context_is_refused():
    val = split(rows(), DATES, along="when", context=2)["val"]
    with pytest.raises(ConfigError, match=r"must not be a part .* Pass all parts to one call"):
        split(val, {"a": "..1"}, along="time")


def test_a_measured_transform_is_refused():
    measured = measure_lengths([[1, 2], [3]], lambda sequence, rng: sequence)
    with pytest.raises(ConfigError, match=r"must not have a measured transform, .* Split first"):
        split(measured, {"a": "..1"}, along="time")


# bounds that lie between two values, or beyond all


LARGE = 2**53


def cut(values, bound, **options):
    """Return the values before a bound, and those from it on; neither part may be empty."""
    parts = split([{"t": values}], {"a": f"..{bound}", "b": f"{bound}.."}, along="t", **options)
    return [parts[name][0]["t"].tolist() for name in "ab"]


@pytest.mark.parametrize(
    ("values", "bound", "first"),
    [
        (np.array([LARGE, LARGE + 1, LARGE + 2]), LARGE + 1, 1),
        (np.array([LARGE, LARGE + 2], dtype=float), LARGE + 1, 1),
        (np.array([LARGE, LARGE + 2], dtype=float), LARGE + 2, 1),
        (np.array([2**24, 2**24 + 2], dtype=np.float32), 2**24 + 1, 1),
        (np.array([1, 2**64 - 2, 2**64 - 1], dtype=np.uint64), 2**64 - 1, 2),
        (np.array([-(2**63), -(2**63) + 1]), -(2**63) + 1, 1),
        (np.array([-3, 1, 2]), -1, 1),
        (np.array([0, 1, 2]), "0.5", 1),
        (np.array([0.1, 0.2, 0.3]), "0.2", 1),
        (np.array([1e-300, 2e-300]), "0." + "0" * 299 + "2", 1),
    ],
)
def test_a_bound_is_compared_exactly(values, bound, first):
    assert cut(values, bound) == [values[:first].tolist(), values[first:].tolist()]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("dtype", ["int64", "float64"])
@pytest.mark.parametrize(
    "bound", ["2024-01-01", "2024-01-01T00:00:00.25", "2024-01-01T00:00:00.000001"]
)
def test_a_date_within_a_unit_of_time_is_not_moved(unit, dtype, bound):
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    start = 1_704_067_200 * per_second
    values = np.array([start - per_second, start, start + per_second], dtype=dtype)
    first = 1 if bound == "2024-01-01" else 2
    found = cut(values, bound, unit=unit)
    assert found == [values[:first].tolist(), values[first:].tolist()]


@pytest.mark.parametrize("unit", ["s", "ns"])
@pytest.mark.parametrize("year", [2300, 3000, 9999])
def test_a_date_beyond_those_of_the_unit_is_beyond_all_timestamps(unit, year):
    """Nanoseconds since 1970 end in 2262, as 64-bit integers."""
    stamps = np.array([1_704_067_200, 1_714_067_200]) * (1 if unit == "s" else 10**9)
    parts = split(
        [{"t": stamps}], {"a": "..2024-02-01", "b": f"2024-02-01..{year}-01-01"}, along="t"
    )
    assert [part.lengths.tolist() for part in parts.values()] == [[1], [1]]


@pytest.mark.parametrize("bound", [2**63, 2**70, 10**30])
def test_timesteps_beyond_all_sequences_are_their_ends(bound):
    parts = {"a": f"..{bound}", "b": f"{bound}..", "c": f"-{bound}.."}
    store = open_store([[1, 2, 3], [4]])
    for name, lengths in (("a", [3, 1]), ("c", [3, 1])):
        assert split(store, {name: parts[name]}, along="time")[name].lengths.tolist() == lengths
    with pytest.raises(ConfigError, match="part 'b' must have at least one timestep"):
        split(store, {"b": parts["b"]}, along="time")
    found = split(store, {"a": "..1", "b": "1.."}, along="time", context=bound)["b"]
    assert found.lengths.tolist() == [3]
