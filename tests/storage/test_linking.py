"""Linked axes of a store: the same time along each, nothing lost, and clocks that agree."""

import re
import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata import Axis, ConfigError, concat, open_store, split
from seqdata.errors import SeqDataWarning
from seqdata.linked_axes import round_half_up
from seqdata.protocols import Field
from seqdata.storage.linking import (
    AxisLinker,
    keep_clocks,
    name_axes,
    resolve_clocks,
    split_clocks,
)

RATES = st.fractions(min_value=Fraction(1, 3), max_value=60, max_denominator=37)


def refuses(message):
    return pytest.raises(ConfigError, match=f"^{re.escape(message)}")


def make_linker(rates, lengths, *, is_tiled=True, shift=0, offsets=(0, 0)):
    rows = [{"a": np.zeros(own), "b": np.zeros(other)} for own, other in lengths]
    axes = {name: Axis(rate, offset) for name, rate, offset in zip("ab", rates, offsets,
                                                                  strict=True)}  # fmt: skip
    return AxisLinker.from_store(open_store(rows, axes=axes), "time", is_tiled=is_tiled,
                                 shift=shift)  # fmt: skip


# Spans


def test_adjoining_spans_adjoin_along_every_axis():
    linker = make_linker((300, "701.1"), [(1_000, 2_339)])
    bounds = np.arange(0, 1_001, 7)
    bounds[-1] = 1_000
    spans = np.stack([0 * bounds[1:], bounds[:-1], bounds[1:]], axis=1)
    own = linker.follow(spans)["b"]
    assert own[0, 1] == 0
    assert own[-1, 2] == 2_339
    assert (own[1:, 1] == own[:-1, 2]).all()


@given(RATES, RATES, st.fractions(-2, 2, max_denominator=9), st.integers(0, 40), st.integers(0, 40),
       st.data())  # fmt: skip
def test_a_window_ends_at_the_nearest_timesteps_within_the_sequence(
    rate, other, offset, length, count, data
):
    linker = make_linker((rate, other), [(length, count)], is_tiled=False, offsets=(offset, 0))
    start = data.draw(st.integers(0, length))
    stop = data.draw(st.integers(start, length))
    horizon = data.draw(st.integers(0, 3))
    (found,) = linker.follow(np.array([[0, start, stop]]), horizon=horizon)["b"].tolist()
    due = [
        min(max(round_half_up((offset + bound / rate) * other), 0), count)
        for bound in (start, stop + horizon)
    ]
    if start == stop + horizon:
        due[1] = due[0]
    assert found == [0, *due]


@given(RATES, RATES, st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1),
       st.integers(1, 9), st.integers(0, 2), st.integers(-1, 1))  # fmt: skip
def test_chunks_have_every_timestep_of_the_other_axis_once(
    rate, other, lengths, chunk, shift, offset
):
    linker = make_linker((rate, other), lengths, shift=shift, offsets=(offset, 0))
    for number, (length, count) in enumerate(lengths):
        planned = max(0, length - shift)  # the last ones are targets only
        starts = np.arange(0, planned, chunk)
        if not len(starts):
            continue
        stops = np.minimum(starts + chunk, planned)
        spans = np.stack([0 * starts + number, starts, stops], axis=1)
        own = linker.follow(spans)["b"]
        assert own[:, 0].tolist() == [number] * len(starts)
        assert own[0, 1] == 0
        assert own[-1, 2] == count
        assert (own[1:, 1] == own[:-1, 2]).all()


def test_an_empty_chunk_is_empty_along_every_axis():
    linker = make_linker((1, 10), [(4, 40)])
    assert linker.follow(np.array([[0, 0, 0], [0, 4, 4], [0, 2, 2]]))["b"].tolist() == [
        [0, 0, 0], [0, 40, 40], [0, 20, 20],
    ]  # fmt: skip


def test_a_sequence_without_planned_timesteps_has_none_along_another_axis():
    for shift in (0, 1):
        linker = make_linker((1, 10), [(shift, 40)], shift=shift)
        assert linker.follow(np.array([[0, 0, 0]]))["b"].tolist() == [[0, 0, 0]]


def test_only_axes_that_are_needed_are_followed():
    rows = [{"a": np.zeros(4), "b": np.zeros(8), "c": np.zeros(16)}]
    store = open_store(rows, rates={"a": 1, "b": 2, "c": 4})
    linker = AxisLinker.from_store(store, "time", is_tiled=False)
    spans = np.array([[0, 1, 2]])
    assert {name: each.tolist() for name, each in linker.follow(spans).items()} == {
        "b": [[0, 2, 4]], "c": [[0, 4, 8]],
    }  # fmt: skip
    assert list(linker.follow(spans, ["c"])) == ["c"]
    assert AxisLinker.from_store(store, "b", is_tiled=False).follow(spans)["time"].tolist() == [
        [0, 1, 1]
    ]


def test_a_store_without_linked_axes_has_no_linker():
    rows = [{"a": np.zeros(4), "b": np.zeros(8)}]
    plain = open_store(rows, axes={"b": "b"})
    one = open_store(rows, axes={"b": "b"}, rates={"a": 3})
    for store, axis in ((plain, "time"), (one, "time"), (one, "b")):
        assert AxisLinker.from_store(store, axis, is_tiled=True) is None


def test_a_part_of_recordings_is_linked_by_its_own_place():
    rows = [{"a": np.arange(20), "b": np.arange(50)}]
    store = open_store(rows, rates={"a": 2, "b": 5})
    part = split(store, {"one": "..7", "two": "7.."}, along="time")["two"]
    linker = AxisLinker.from_store(part, "time", is_tiled=False)
    (span,) = linker.follow(np.array([[0, 1, 3]]))["b"].tolist()
    assert part[0]["b"][span[1] : span[2]].tolist() == [20, 21, 22, 23, 24]  # from 4 to 5 s


@pytest.mark.parametrize(
    ("lengths", "offset", "gap"),
    [((10, 50), 0, 0), ((10, 40), 0, 2), ((10, 62), 0, 2), ((10, 49), 0, 0), ((10, 50), 3, 6),
     ((10, 80), 3, 6),
     ((0, 50), 0, 0)],
)  # fmt: skip
def test_gaps_are_measured_at_the_worse_end_in_planned_timesteps(lengths, offset, gap):
    linker = make_linker((2, 10), [lengths], offsets=(offset, 0))
    assert linker.measure_gaps("b").tolist() == [gap]


# Clocks that users name


def test_rates_and_axes_are_told_apart():
    axes = {"a": "body", "b": None, "c": Axis(4, 1), "d": {"rate": 2}}
    clocks, names = split_clocks({"e": "1/3"}, axes)
    assert clocks == {"e": Axis("1/3"), "c": Axis(4, 1), "d": Axis(2)}
    assert names == {"a": "body", "b": None}
    assert split_clocks(None, None) == ({}, None)
    assert split_clocks({"a": 1}, {"a": 1}) == ({"a": Axis(1)}, None)
    assert split_clocks(None, {}) == ({}, {})


@pytest.mark.parametrize(
    ("rates", "axes", "message"),
    [
        (
            [500],
            None,
            "`rates` must be a dict by field or axis, but is [500]. Pass e.g. {'ecg': 50",
        ),
        (None, "time", "`axes` must be a dict by field or axis, but is 'time'. Pass e.g. {'ecg': "),
        ({"a": -1}, None, "`rates['a']`: axis: `rate` must be a number above 0"),
        (None, {"a": {"hz": 3}}, "`axes['a']` must be a rate, Axis(rate, offset), or a mapping of"),
        ({"a": 3}, {"a": 4}, "`rates` and `axes` must agree"),
    ],
)
def test_clocks_that_are_none_are_refused(rates, axes, message):
    with refuses(message):
        split_clocks(rates, axes)


@pytest.mark.parametrize(
    ("clocks", "axes", "named"),
    [
        ({}, None, None),
        ({}, {}, {}),
        ({}, {"a": "x"}, {"a": "x"}),
        ({"a": 1, "b": 1}, None, {"a": "time", "b": "b"}),
        ({"a": 1, "b": 1}, {"c": "time"}, {"a": "a", "b": "b", "c": "time"}),
        ({"time": 1, "b": 1}, None, {"b": "b"}),  # an axis, not a field
        ({"a": 1, "time": 1}, None, {"a": "a"}),
        ({"body": 1, "b": 1}, {"a": "body"}, {"a": "body", "b": "b"}),
        ({"a": 1, "b": 1}, {"b": None}, {"a": "time", "b": None}),
    ],
)
def test_every_field_with_a_clock_has_an_axis_of_its_own(clocks, axes, named):
    given_axes = None if axes is None else dict(axes)
    assert name_axes(clocks, axes) == named
    assert axes == given_axes


FIELDS = {
    "a": Field("float32", (), "time"), "ecg": Field("float32", (), "heart"),
    "c": Field("float32", (), "time"), "y": Field("int64", (), None),
}  # fmt: skip


def test_clocks_of_fields_are_those_of_their_axes():
    clocks = {"a": Axis(2), "heart": Axis(3), "c": Axis("2")}
    found = resolve_clocks(FIELDS, ["time", "heart"], clocks)
    assert found == {"time": Axis(2), "heart": Axis(3)}


@pytest.mark.parametrize(
    ("clocks", "message"),
    [
        (
            {"y": Axis(1)},
            "rates: field 'y' must run along an axis, but has one value per sequence. Leave it out",
        ),
        ({"ecgs": Axis(1)}, "rates: no field or axis 'ecgs'; did you mean 'ecg'"),
        ({"hart": Axis(1)}, "rates: no field or axis 'hart'; did you mean 'heart'"),
        (
            {"a": Axis(1), "c": Axis(2)},
            "rates: fields of one axis must have the same clock, but 'a' has Axis(rate=1) and 'c' "
            "Axis(rate=2) along 'time'. Give one of them an axis of its own, e.g. axes={'c': 'c'}",
        ),
        (
            {"a": Axis(Fraction(2**30 + 1, 3)), "ecg": Axis(Fraction(2**30 + 3, 1_000_003))},
            "axis: the ratio of two rates must be one of integers below",
        ),
    ],
)
def test_clocks_that_do_not_fit_the_fields_are_refused(clocks, message):
    with refuses(message):
        resolve_clocks(FIELDS, ["time", "heart"], clocks)


# Clocks that are written


def test_clocks_are_kept_where_all_pieces_begin_at_a_timestep_of_each_axis():
    rows = [{"a": np.zeros(20), "b": np.zeros(50)}] * 2
    store = open_store(rows, rates={"a": 2, "b": 5})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert keep_clocks(store) == {"time": Axis(2), "b": Axis(5)}
        even = split(store, {"one": "..6", "two": "6.."}, along="time")["two"]
        assert keep_clocks(even) == {"time": Axis(2), "b": Axis(5)}
        assert keep_clocks(open_store([{"a": np.zeros(3)}])) == {}
    odd = split(store, {"one": "..7", "two": "7.."}, along="time")["two"]
    message = (
        "store: sampling rates are dropped: the pieces of recordings do not all begin at a "
        "timestep of both 'time' and 'b'. Write whole recordings and split them when they are "
        "read, or pass `rates`"
    )
    with pytest.warns(SeqDataWarning, match=f"^{re.escape(message)}"):
        assert keep_clocks(odd) == {}
    with pytest.warns(SeqDataWarning, match="sampling rates are dropped"):
        assert keep_clocks(concat([even, odd])) == {}


def test_pieces_of_axes_with_other_first_times_lose_their_clocks():
    rows = [{"a": np.zeros(20), "b": np.zeros(50)}]
    store = open_store(rows, axes={"a": Axis(2), "b": Axis(5, "0.05")})  # 14.75 is nearest to 15
    part = split(store, {"one": "..6", "two": "6.."}, along="time")["two"]
    with pytest.warns(SeqDataWarning, match="sampling rates are dropped"):
        assert keep_clocks(part) == {}
