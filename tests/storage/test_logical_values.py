"""Dates, durations and strings per timestep: encoded, stored, shown, and given back."""

import datetime
import warnings
import zoneinfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata import concat, open_store, split, write_store
from seqdata.errors import ConfigError, DataError, DecodeError
from seqdata.logical_types import Categories, Duration, Timestamp
from seqdata.protocols import Field
from seqdata.storage.arrow.store import open_arrow
from seqdata.storage.logical_values import (
    EncodedValues,
    convert_values,
    encode_values,
    view_numbers,
)
from seqdata.storage.packing import FieldMismatch

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
DAYS = [datetime.date(2024, 1, 31), datetime.date(1969, 12, 31)]
NOON = datetime.datetime(2024, 1, 31, 12)
NANO = pd.Timestamp("2024-01-31 00:00:00.123456789")


@pytest.mark.parametrize(
    ("value", "integers", "logical"),
    [
        (DAYS, [19_753, -1], Timestamp("D")),
        ([NOON], [1_706_702_400_000_000], Timestamp("us")),
        ([NOON.replace(tzinfo=BERLIN)], [1_706_698_800_000_000], Timestamp("us", "Europe/Berlin")),
        ([NANO], [1_706_659_200_123_456_789], Timestamp("ns")),
        ([NANO.tz_localize("UTC")], [1_706_659_200_123_456_789], Timestamp("ns", "UTC")),
        ([datetime.timedelta(seconds=1)], [1_000_000], Duration("us")),
        (np.array(["2024-01", "2024-02"], "M8[M]"), [19_723, 19_754], Timestamp("D")),
        (np.array([1, 2], "m8[h]"), [3_600, 7_200], Duration("s")),
        (np.array([[1, 2]], "M8[25s]"), [[25, 50]], Timestamp("s")),
        ([np.datetime64(5, "ms")], [5], Timestamp("ms")),
        (pd.Series([NANO]), [1_706_659_200_123_456_789], Timestamp("ns")),
        (pa.array([0], pa.date64()), [0], Timestamp("ms")),
        (pl.Series([datetime.date(1970, 1, 2)]), [1], Timestamp("D")),
        (["b", "a", "b"], [0, 1, 0], Categories(("b", "a"))),
        (np.array([["b", "a"]]), [[0, 1]], Categories(("b", "a"))),
        (np.array(["b", "a"], dtype=object), [0, 1], Categories(("b", "a"))),
        (pd.Categorical(["x"], ["w", "x"]), [1], Categories(("w", "x"))),
        (pl.Series(["x", "w"]), [0, 1], Categories(("x", "w"))),
        (pa.chunked_array([["x"], ["w"]]), [0, 1], Categories(("x", "w"))),
    ],
)
def test_values_are_integers_of_a_logical_type(value, integers, logical):
    encoded = encode_values(value)
    assert (encoded.values.tolist(), encoded.logical) == (integers, logical)
    assert encoded.values.dtype == logical.dtype
    assert len(encoded) == len(integers)


@pytest.mark.parametrize(
    "value", [[1, 2], np.zeros(2), [], 3, "text", b"bytes", [[1]], pd.Series([1])]
)
def test_numbers_and_texts_stay_as_they_are(value):
    assert encode_values(value) is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array(["NaT"], "M8[s]"), r"has missing dates \(NaT\), which cannot be stored; fill"),
        (pa.array([NOON, None]), "has 1 missing values, which cannot be stored; fill them"),
        (pl.Series(["a", None]), "has 1 missing values"),
        (["a", None], "must hold a string per timestep, but holds None, a NoneType. Give strings"),
        (["a", 1], "must hold a string per timestep, but holds 1, a int"),
        (["a", ["b"]], r"must hold a string per timestep, but holds \['b'\], a list"),
        ([DAYS[0], NOON], "must hold dates or durations of one type, but holds datetime.date"),
        ([NOON, NANO], "of one type"),
        ([NOON, None], "of one type, but holds .* and None"),
        (
            [NOON, NOON.replace(tzinfo=BERLIN)],
            "must hold dates in one time zone, but holds Europe/Berlin, None. Convert",
        ),
        (np.array([1], "m8[M]"), r"must be dates or durations in D, s, ms, us, ns, but has dtype"),
        (np.array([1], "M8[ps]"), r"in D, s, ms, us, ns, but has dtype datetime64\[ps\]"),
        (np.array([1 << 62], "M8[h]"), "has dates that 's' cannot represent"),
    ],
)
def test_what_would_be_lost_is_refused(value, message):
    with pytest.raises(FieldMismatch, match=message):
        encode_values(value)


@pytest.mark.parametrize(
    ("given", "logical", "integers"),
    [
        (["2024-01-01"], Timestamp("s"), [1_704_067_200]),
        (["2024-01-01T00:00:00.000"], Timestamp("D"), [19_723]),
        (["2024-01-01T00:00:01"], Timestamp("D"), None),
        (["2024-01-01T00:00:00.001"], Timestamp("s"), None),
        (["3000-01-01"], Timestamp("ns"), None),
    ],
)
def test_units_are_converted_only_exactly(given, logical, integers):
    encoded = encode_values(np.array(given, "M8"))
    if integers is not None:
        assert convert_values(encoded, logical).tolist() == integers
        return
    with pytest.raises(
        FieldMismatch, match=r"that timestamp\[.*\], of sequence 0, cannot represent"
    ):
        convert_values(encoded, logical)


@pytest.mark.parametrize(
    ("value", "logical", "message"),
    [
        (
            [NOON],
            Timestamp("us", "UTC"),
            r"must hold timestamp\[us, UTC\] as .*, but holds timestamp",
        ),
        ([NOON], Duration("us"), r"must hold duration\[us\] as in sequence 0, but holds timestamp"),
        (["a"], Timestamp("us"), r"must hold timestamp\[us\] as in sequence 0, but holds categor"),
        (["a", "c"], Categories(("a", "b")), r"vocabulary \('a', 'b'\), but holds 'c', which is n"),
    ],
)
def test_values_of_another_logical_type_are_refused(value, logical, message):
    with pytest.raises(FieldMismatch, match=message):
        convert_values(encode_values(value), logical)


def test_strings_of_another_vocabulary_get_the_codes_of_ours():
    encoded = encode_values(["c", "a"])
    assert convert_values(encoded, Categories(("a", "b", "c"))).tolist() == [2, 0]


words = st.text("abcdé\0 ", max_size=4)
seconds = st.integers(-(10**10), 10**10)


@given(
    st.lists(st.lists(st.tuples(seconds, words), max_size=6), min_size=1, max_size=5).filter(
        lambda rows: rows[0]
    )
)
def test_whatever_is_stored_comes_back(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("logical")
    given_rows = [
        {
            "at": np.array([second for second, _ in row], "M8[s]"),
            "word": [word for _, word in row],
            "last": datetime.datetime(2000, 1, 1),
        }
        for row in rows
    ]
    store = open_store(given_rows)
    written = write_store(folder / "store", given_rows)
    again = write_store(folder / "again", written)
    assert written.fields == store.fields == again.fields
    assert written.fingerprint == again.fingerprint
    vocabulary = list(dict.fromkeys(word for row in rows for _, word in row))
    assert list(written.fields["word"].logical.values) == vocabulary
    for found in (store, written, again):
        for number, row in enumerate(rows):
            sequence = found[number]
            assert sequence["at"].dtype == np.dtype("M8[s]")
            assert sequence["at"].astype(int).tolist() == [second for second, _ in row]
            assert sequence["word"].tolist() == [word for _, word in row]
            assert sequence["last"] == np.datetime64("2000-01-01")


FRAME = {
    "site": ["n", "n", "s", "s"],
    "at": [NOON, NOON + datetime.timedelta(hours=1), NOON, NOON + datetime.timedelta(hours=2)],
    "state": ["on", "off", "on", "broken"],
    "load": [1.0, 2.0, 3.0, 4.0],
}


def save_parquet(table, folder):
    pa.parquet.write_table(table, folder / "t.parquet")
    return folder / "t.parquet"


FORMS = {
    "pandas": lambda table, _: table.to_pandas(),
    "polars": lambda table, _: pl.from_arrow(table),
    "arrow": lambda table, _: table,
    "parquet": save_parquet,
}


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_of_a_table_give_the_same_fields(form, tmp_path):
    table = pa.table(FRAME)
    store = open_store(FORMS[form](table, tmp_path), group="site", order="at")
    assert store.fields == {
        "id": Field("str", (), None),
        "site": Field("str", (), None),
        "at": Field("int64", logical=Timestamp("us")),
        "state": Field("int32", logical=Categories(("on", "off", "broken"))),
        "load": Field("float64"),
    }
    assert store[1]["state"].tolist() == ["on", "broken"]
    assert store[1]["at"].tolist() == [FRAME["at"][2], FRAME["at"][3]]
    assert "at     timestamp[us]  (time,)" in repr(store)
    assert "state  categories[3]  (time,)" in repr(store)
    assert "<td>categories[3]</td>" in store._repr_html_()


@pytest.mark.parametrize("units", [1, 2, 4])
@pytest.mark.parametrize("as_codes", [False, True])
def test_files_are_read_in_place_with_one_vocabulary(tmp_path, units, as_codes):
    words = pa.array([["b", "a"], [], ["c"], ["a", "b", "a"]])
    if as_codes:
        words = words.cast(pa.list_(pa.dictionary(pa.int32(), pa.string())))
    dates = pa.array([[DAYS[0]] * 2, [], [DAYS[1]], [DAYS[0]] * 3])
    table = pa.table({"word": words, "day": dates, "born": [NOON] * 4})
    pa.parquet.write_table(table, tmp_path / "t.parquet", row_group_size=4 // units)
    with (
        pa.OSFile(str(tmp_path / "t.arrow"), "wb") as file,
        pa.ipc.new_file(file, table.schema) as writer,
    ):
        for batch in table.to_batches(max_chunksize=4 // units):
            writer.write_batch(batch)
    for _ in range(2):  # the second time lengths and vocabulary are cached
        for name in ("t.parquet", "t.arrow"):
            store = open_store(tmp_path / name)
            assert store.fields["word"].logical == Categories(("b", "a", "c"))
            assert [each["word"].tolist() for each in store] == words.to_pylist()
            assert [each["day"].tolist() for each in store] == dates.to_pylist()
            assert store[0]["born"] == np.datetime64(NOON)
            assert store.fields == open_store(table).fields
    assert write_store(tmp_path / "store", store)[3]["word"].tolist() == ["a", "b", "a"]


def test_a_cached_vocabulary_that_is_damaged_is_counted_again(tmp_path):
    pa.parquet.write_table(pa.table({"word": [["b", "a"]]}), tmp_path / "t.parquet")
    fields = open_store(tmp_path / "t.parquet").fields
    (cache,) = tmp_path.glob(".seqdata-lengths-*")
    cache.write_bytes(cache.read_bytes().replace(b'["b", "a"]', b'["b", "b"]'))
    assert open_store(tmp_path / "t.parquet").fields == fields


def test_chunks_of_a_table_and_several_tables_share_a_vocabulary():
    first, second = pa.table({"word": [["b"]]}), pa.table({"word": [["a", "b"]]})
    for tables in ([first, second], pa.concat_tables([first, second])):
        store = open_store(tables)
        assert store.fields["word"].logical.values == ("b", "a")
        assert store[1]["word"].tolist() == ["a", "b"]


def test_strings_of_an_iterator_are_refused():
    rows = ({"word": [word]} for word in "ab")
    with pytest.raises(ConfigError, match="field 'word' holds a string per timestep, whose voc"):
        open_store(rows)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"at": [1], "word": ["a"]}, r"'at': must hold timestamp\[D\] as .*, but is a list. Conv"),
        ({"at": np.zeros(1), "word": ["a"]}, "but is a ndarray of float64. Convert it"),
        ({"at": DAYS[:1], "word": [1]}, r"'word': must hold categories\[1\] as in sequence 0"),
    ],
)
def test_a_sequence_of_other_values_is_refused(tmp_path, second, message):
    rows = [{"at": DAYS[:1], "word": ["a"]}, second]
    with pytest.raises(DecodeError, match=message):
        open_store(rows)
    with pytest.raises(DecodeError, match=message):
        write_store(tmp_path / "store", rows)


def test_a_sequence_without_timesteps_is_of_any_type():
    store = open_store([{"at": DAYS, "word": ["a", "b"]}, {"at": [], "word": []}])
    assert store.lengths.tolist() == [2, 0]
    assert store[1]["word"].tolist() == []


def test_files_that_keep_no_logical_type_are_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"field 'at' must hold numbers or bytes to be written to"
    ):
        write_store(tmp_path / "tar", [{"at": DAYS}], format="webdataset")


def test_an_unknown_logical_type_of_a_manifest_is_refused(tmp_path):
    write_store(tmp_path / "store", [{"at": DAYS}])
    manifest = tmp_path / "store" / "seqdata.json"
    manifest.write_text(manifest.read_text().replace('"unit": "D"', '"unit": "W"'))
    with pytest.raises(DataError):
        open_arrow(tmp_path / "store")


def test_stores_of_different_vocabularies_are_not_joined():
    with pytest.raises(ConfigError):
        concat([open_store([{"w": ["a"]}]), open_store([{"w": ["b"]}])])


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
@pytest.mark.parametrize("unit", ["s", "ns"])
def test_a_split_at_dates_knows_unit_and_zone(zone, unit):
    hours = pd.date_range("2024-03-30", "2024-04-02", freq="h", tz=zone).as_unit(unit)
    frame = pd.DataFrame({"g": "a", "t": hours, "x": np.arange(len(hours))})
    parts = split(
        open_store(frame, group="g"),
        {"a": "..2024-03-31", "b": "2024-03-31..2024-04-01"},
        along="t",
    )
    day = pd.Timestamp("2024-03-31", tz=zone)
    assert len(parts["a"][0]["x"]) == (frame.t < day).sum()
    assert len(parts["b"][0]["x"]) == (frame.t.dt.date == day.date()).sum()  # 23 h in Berlin


def test_a_split_refuses_another_unit_and_durations():
    store = open_store([{"t": np.array([0, 1], "M8[s]"), "d": np.array([0, 1], "m8[s]")}])
    parts = {"a": "..2024-01-01", "b": "2024-01-01.."}
    with pytest.raises(ConfigError, match="`unit` must be left out, but is 'ms', but dates of 't'"):
        split(store, parts, along="t", unit="ms")
    with pytest.raises(ConfigError, match=r"must be a field of dates, .*'d', duration\[s\]"):
        split(store, parts, along="d")


def test_predicates_see_dates_and_strings():
    store = open_store([{"at": DAYS[:1], "word": ["a"]}, {"at": DAYS[1:], "word": ["b"]}])
    assert len(store.where(lambda sequence: sequence["word"][0] == "b")) == 1
    assert len(store.where(lambda sequence: sequence["at"][0] > np.datetime64("2000-01-01"))) == 1


def test_floats_of_pandas_keep_their_nan_without_a_word():
    frame = pd.DataFrame({"x": [[1.0], [2.0]], "y": [1.0, None]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(open_store(frame)[1]["y"])
    with pytest.warns(
        UserWarning, match="column 'y' lacks 1 of 2 values, the first in row 1: they"
    ):
        assert np.isnan(open_store(pa.table({"x": [[1.0], [2.0]], "y": [1.0, None]}))[1]["y"])


def test_encoded_values_are_sliced():
    encoded = encode_values(["a", "b", "a"])
    assert isinstance(encoded[1:], EncodedValues)
    assert (encoded[1:].values.tolist(), encoded[0].shape, encoded.ndim) == ([1, 0], (), 1)


@given(
    data=st.data(), name=st.sampled_from(["int8", "uint16", "int64", "float16", "float32", "bool"])
)
def test_numbers_of_arrow_are_those_of_its_own_conversion(data, name):
    size = data.draw(st.integers(0, 9))
    raw = np.frombuffer(data.draw(st.binary(min_size=8 * size, max_size=8 * size)), np.uint8)
    values = (raw[:size] & 1).astype(bool) if name == "bool" else raw.view(name)[:size]
    absent = data.draw(st.none() | st.lists(st.booleans(), min_size=size, max_size=size))
    first = data.draw(st.integers(0, size))
    array = pa.array(values, mask=None if absent is None else np.array(absent, bool))[first:]
    found, due = view_numbers(array), array.to_numpy(zero_copy_only=False)
    assert found.dtype == due.dtype
    assert found.tobytes() == due.tobytes() or due.dtype == object
    assert found.tolist() == due.tolist() or due.dtype.kind == "f"
    assert not len(array) or array.null_count or name == "bool" or not found.flags.writeable
