"""Writing a store: what is kept, what is refused, and that it is all or nothing."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
import torch

from seqdata.errors import ConfigError, DecodeError
from seqdata.protocols import Field
from seqdata.storage.arrow.write import write_arrow
from seqdata_testing.waiting import patient


def numbers(*lengths):
    return [{"x": np.arange(length, dtype=np.int32)} for length in lengths]


def whole(store, number, name):
    """Return one whole field of one sequence."""
    along = store.fields[name].axis or "time"
    axis = along if along in store.lengths_of else next(iter(store.lengths_of))
    span = np.array([[number, 0, int(store.lengths_of[axis][number])]])
    return store.read(span, [name], axis=axis)[name][0]


def test_a_written_store_holds_what_was_given(tmp_path):
    rows = [
        {"id": "a", "mel": np.ones((2, 3), dtype=np.float32), "label": 7, "text": b"xyz"},
        {"id": "b", "mel": np.zeros((0, 3), dtype=np.float32), "label": -1, "text": b""},
    ]
    store = write_arrow(tmp_path / "store", rows, axes={"text": "text"})
    assert store.fields == {
        "id": Field("str", (), None),
        "mel": Field("float32", (3,), "time"),
        "label": Field("int64", (), None),
        "text": Field("uint8", (), "text"),
    }
    assert store.lengths.tolist() == [2, 0]
    assert store.lengths_of["text"].tolist() == [3, 0]
    assert whole(store, 0, "mel").tolist() == [[1, 1, 1], [1, 1, 1]]
    assert whole(store, 0, "text").tobytes() == b"xyz"
    assert [whole(store, i, "label").tolist() for i in range(2)] == [[7], [-1]]
    assert store.keys([1, 0]) == ["b", "a"]


def test_a_shard_is_an_ordinary_arrow_file_of_one_batch_without_nulls(tmp_path):
    rows = [
        {"id": "a", "x": np.ones((2, 3), dtype=np.float16), "ok": True, "v": np.arange(4), "raw":
        b"q"}, {"id": "b", "x": np.ones((1, 3), dtype=np.float16), "ok": False, "v": np.arange(4),
    "raw": b""}, ]  # fmt: skip
    write_arrow(tmp_path, rows, axes={"v": None})
    reader = pa.ipc.open_file(tmp_path / "part-00000.arrow")
    assert reader.num_record_batches == 1
    batch = reader.get_batch(0)
    batch.validate(full=True)
    assert not any(field.nullable for field in batch.schema)
    assert [str(field.type) for field in batch.schema] == [
        "large_string",
        "large_list<item: fixed_size_list<item: halffloat not null>[3] not null>",
        "uint8",
        "fixed_size_list<item: int64 not null>[4]",
        "large_binary",
    ]
    assert batch.column("v").to_pylist() == [[0, 1, 2, 3]] * 2
    assert batch.column("ok").to_pylist() == [1, 0]


def test_a_generator_may_reuse_its_arrays(tmp_path):
    def reused():
        buffer = np.zeros(3, dtype=np.int32)
        for value in range(4):
            buffer[:] = value
            yield {"x": buffer[: value + 1]}

    store = write_arrow(tmp_path, reused())
    assert [whole(store, i, "x").tolist() for i in range(4)] == [[0], [1] * 2, [2] * 3, [3] * 3]


def test_shards_are_closed_by_their_size(tmp_path):
    store = write_arrow(tmp_path, numbers(*[10] * 10), shard_bytes=100)
    assert store.shards == [f"part-{i:05d}.arrow" for i in range(4)]
    assert [shard.sequences for shard in store.manifest.shards] == [3, 3, 3, 1]


def test_lists_tensors_bools_and_foreign_byte_orders_are_taken(tmp_path):
    rows = [
        {"i": [1, 2], "t": torch.tensor([1.5, 2.5]), "b": np.array([True, False]), "e": np.arange(2,
        dtype=">i2")}, {"i": (3,), "t": torch.tensor([3.5]), "b": [True], "e": np.arange(1,
        dtype="<i2")}, {"i": [], "t": np.empty(0, dtype=np.float32), "b": (), "e": []},
    ]  # fmt: skip
    store = write_arrow(tmp_path, rows)
    assert [store.fields[name].dtype for name in "itbe"] == ["int64", "float32", "bool", "int16"]
    assert [whole(store, 0, name).tolist() for name in "itbe"] == [
        [1, 2], [1.5, 2.5], [True, False], [0, 1],
    ]  # fmt: skip
    assert whole(store, 0, "b").dtype == np.bool_


def test_plain_arrays_become_the_field_x(tmp_path):
    assert write_arrow(tmp_path, [np.arange(3), np.arange(2)]).fields == {"x": Field("int64")}


def test_sequences_without_ids_are_named_by_number(tmp_path):
    assert write_arrow(tmp_path, numbers(1, 2)).keys([1]) == ["1"]


def test_another_field_may_hold_the_ids(tmp_path):
    rows = [{"name": "u", "x": [1]}, {"name": "v", "x": [2]}]
    assert write_arrow(tmp_path, rows, key="name").keys([1]) == ["v"]


def test_a_key_that_is_no_text_is_an_ordinary_field(tmp_path):
    rows = [{"id": b"u", "x": [1]}, {"id": b"u", "x": [2]}]
    store = write_arrow(tmp_path, rows)
    assert store.keys([1]) == ["1"]
    assert store.read(np.array([[1, 0, 1]]), ["id"])["id"] == [b"u"]


def test_arrow_tables_are_written_row_by_row(tmp_path):
    table = pa.table(
        {
            "id": ["a", "b", "c"],
            "x": pa.array([[1, 2], [], [3]], pa.list_(pa.int16())),
            "f": pa.array(
                [[[1.0, 2.0]] * 2, [], [[3.0, 4.0]]],
                pa.large_list(pa.list_(pa.float32(), 2)),
            ),
            "y": pa.array([1.5, 2.5, 3.5]),
            "ok": pa.array([True, False, True]),
        }
    )
    store = write_arrow(tmp_path, table.slice(1))
    assert store.keys([0, 1]) == ["b", "c"]
    assert whole(store, 1, "x").tolist() == [3]
    assert whole(store, 1, "f").tolist() == [[3, 4]]
    assert store.fields["ok"] == Field("bool", (), None)
    many = write_arrow(tmp_path / "many", iter([table, table.to_batches()[0].slice(0, 0)]))
    assert len(many) == 3


def test_the_same_input_gives_the_same_bytes_and_fingerprint(tmp_path):
    for name in ("one", "two"):
        write_arrow(tmp_path / name, numbers(3, 1, 4), shard_bytes=20)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


@pytest.mark.parametrize("change", [{"value": 9}, {"id": "z"}, {"length": 4}, {"dtype": np.int64}])
def test_other_values_ids_lengths_or_fields_give_another_fingerprint(tmp_path, change):
    def rows(value=1, id="a", length=3, dtype=np.int32):
        return [{"id": id, "x": np.full(length, value, dtype=dtype)}]

    first = write_arrow(tmp_path / "one", rows())
    assert write_arrow(tmp_path / "two", rows(**change)).fingerprint != first.fingerprint


def test_the_digest_of_a_shard_is_that_of_its_file(tmp_path):
    rows = [{"id": str(n), "x": np.arange(n), "y": n} for n in range(1, 40)]
    store = write_arrow(tmp_path / "store", rows, shard_bytes=2_000)
    shards = store.manifest.shards
    files = [(tmp_path / "store" / shard.file).read_bytes() for shard in shards]
    assert len(files) > 2
    assert [hashlib.sha256(one).hexdigest() for one in files] == [one.sha256 for one in shards]


def test_shards_of_like_form_have_footers_of_their_own(tmp_path):
    store = write_arrow(tmp_path / "a", [{"x": [1]}, {"x": [1]}], shard_bytes=1)
    other = write_arrow(tmp_path / "b", [{"x": [2]}, {"x": [2]}], shard_bytes=1)
    shards = store.manifest.shards + other.manifest.shards
    assert len({shard.footer_sha256 for shard in shards}) == 4


DEVIATIONS = [
    ({"x": np.ones(2)}, "x", "must have dtype int32 as in sequence 0, but has float64. Convert it"),
    ({"x": np.ones((2, 2), dtype=np.int32)}, "x", r"must have shape \(T\) as .* but has \(2, 2\)"),
    ({"x": np.int32(3)}, "x", r"must have shape \(T\) as in sequence 0, but has \(\)"),
    ({"x": np.array([None, 1])}, "x", "must have a dtype of bool.*, but has object"),
    ({"x": ["a", 1]}, "x", "must have a dtype of bool.*, but has str"),
    ({"x": [[1], [2, 3]]}, "x", "is a list that NumPy cannot .*; give one array of numbers$"),
    ({"x": [np.ones(1), np.ones(2)]}, "x", ".*; give one array of numbers, and zip a list of"),
    ({"x": None}, "x", "is None, which cannot be stored; fill it"),
    ({"x": np.ma.masked_array([1, 2], [0, 1])}, "x", "is a masked array, whose mask would be lost"),
    ({"x": torch.ones(1, requires_grad=True)}, "x", "is a Tensor that NumPy cannot convert .*grad"),
    ({"x": torch.ones(1, dtype=torch.bfloat16)}, "x", "is a Tensor that NumPy cannot .*BFloat16"),
    ({"y": 1.5}, "y", "must have dtype int64 as in sequence 0, but has float64. Convert it"),
    ({"y": True}, "y", "must have dtype int64 as in sequence 0, but has bool"),
    ({"y": [1, 2]}, "y", r"must have shape \(\) as in sequence 0, but has \(2,\)"),
    ({"y": 1 << 70}, "y", "must fit int64, but is 1180591620717411303424. Convert it"),
    ({"s": b"a"}, "s", "must be str as in sequence 0, but is a bytes. Convert it"),
    ({"s": "\ud800"}, "s", "must be valid Unicode, but is '.ud800'. Clean it"),
    ({"raw": "a"}, "raw", "must be bytes as in sequence 0, but is a str. Convert it"),
    ({"v": np.ones(3)}, "v", r"must have shape \(2,\) as in sequence 0, but has \(3,\)"),
    ({"id": "a" * 1025}, "id", "must be an id of at most 1024 bytes .*, but has 1025 bytes"),
    ({"id": "a\0b"}, "id", "must be an id of at most 1024 bytes without NUL, but has 3 bytes"),
]


@pytest.mark.parametrize(("change", "field", "text"), DEVIATIONS)
def test_a_sequence_unlike_the_first_is_an_error_that_names_it(tmp_path, change, field, text):
    good = {
        "id": "a", "x": np.arange(3, dtype=np.int32), "y": 1, "s": "t", "raw": b"r",
        "v": np.ones(2),
    }  # fmt: skip
    bad = {**good, "id": "b", **change}
    name = bad["id"]
    where = rf"^sequence 1 \({name!r}\), field '{field}': " if "\0" not in name else ""
    with pytest.raises(DecodeError, match=where + text) as caught:
        write_arrow(tmp_path / "store", [good, bad], axes={"v": None})
    assert caught.value.details == {"sequence": 1, "field": field}
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("second", "text"),
    [
        (
            {"x": [1]},
            r"sequence 1: must have the fields of sequence 0 .*, but lacks \['y'\] and has \[\] "
            r"in addition",
        ),
        ({"x": [1], "y": 1, "z": 1}, r"but lacks \[\] and has \['z'\] in addition"),
        ({"x": [1], "z": 1}, r"but lacks \['y'\] and has \['z'\] in addition"),
        ([1, 2], "sequence 1: must be a dict of fields like sequence 0, but is a list. Pass dicts"),
        (None, "sequence 1: must be a dict of fields like sequence 0, but is a NoneType"),
    ],
)
def test_missing_and_extra_fields_are_an_error(tmp_path, second, text):
    with pytest.raises(DecodeError, match=text):
        write_arrow(tmp_path / "store", [{"x": [1], "y": 1}, second])


def test_fields_of_one_axis_with_other_lengths_are_an_error(tmp_path):
    rows = [{"id": "a", "x": [1, 2], "y": [1, 2]}, {"id": "b", "x": [1, 2], "y": [1]}]
    text = (
        r"sequence 1 \('b'\), field 'y': fields on axis .* must have equal lengths, but it has 1 "
        r"timesteps and field 'x' has 2\. Cut them alike, or give them different `axes`"
    )
    with pytest.raises(DecodeError, match=text):
        write_arrow(tmp_path / "store", rows)
    assert len(write_arrow(tmp_path / "store", rows, axes={"y": "other"})) == 2


@pytest.mark.parametrize("shard_bytes", [1, 1 << 20])
def test_an_id_that_two_sequences_have_is_an_error_that_names_both(tmp_path, shard_bytes):
    rows = [{"id": name, "x": [1]} for name in ("a", "b", "c", "b")]
    text = (
        "sequence 3: the id must be unique, but 'b' is also the id of sequence 1. Make ids unique"
    )
    with pytest.raises(DecodeError, match=text):
        write_arrow(tmp_path / "store", rows, shard_bytes=shard_bytes)


@pytest.mark.parametrize(
    ("first", "axes", "kind", "text"),
    [
        (
            {"y": 1},
            None,
            ConfigError,
            "no field runs along an axis: at least one must be an array .*there are 'y' ",
        ),
        ({}, None, ConfigError, "no field runs along an axis: .* there are no fields"),
        ({"x": []}, None, DecodeError, "field 'x': is an empty list, whose dtype is unknown"),
        ({"x": 1j}, None, DecodeError, "'x': must have a dtype of .* has complex128"),
        (
            {"x": np.ones((3, 0))},
            None,
            DecodeError,
            r"must have at least one number per timestep, but has shape \(3, 0\)",
        ),
        (
            {"x": [1], "v": np.ones((0, 2))},
            {"v": None},
            DecodeError,
            r"'v': must have at least one number per sequence, but has shape \(0, 2\)",
        ),
        (
            {"x": np.broadcast_to(np.uint8(0), (1, 1 << 31))},
            None,
            DecodeError,
            "must have less than 2147483648 bytes per timestep, but has 2147483648. Split it",
        ),
        ({1: [1]}, None, DecodeError, "names of fields must be non-empty strings, .* 1"),
        ({"": [1]}, None, DecodeError, "names of fields must be non-empty strings, .* ''"),
        ({"x": [1]}, {"mel": "t"}, ConfigError, r"`axes`: no field 'mel'\. Choose one of x"),
        ({"mal": [1]}, {"mel": "t"}, ConfigError, r"no field 'mel'; did you mean 'mal'\?"),
        ({"x": [1]}, {"x": "a b"}, ConfigError, "axis of field 'x' must be a name .* is 'a b'"),
        ({"x": [1]}, {"x": 3}, ConfigError, "axis of field 'x' must be a name of .* is 3"),
        ({"x": "s"}, {"x": "t"}, ConfigError, "field 'x' must not have an axis, since it is text"),
        ({"x": 3}, {"x": "t"}, ConfigError, "field 'x' must not have an axis, since it is one n"),
    ],
)
def test_a_first_sequence_that_fixes_no_schema_is_an_error(tmp_path, first, axes, kind, text):
    with pytest.raises(kind, match=text):
        write_arrow(tmp_path / "store", [first], axes=axes)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("sequences", "text"),
    [
        ([], "`sequences` must hold at least one sequence, which determines the fields"),
        (iter(()), "`sequences` must hold at least one sequence, .*, but is empty"),
        ({"x": [1]}, "`sequences` must be an iterable of dicts.* is a dict"),
        ("text", "`sequences` must be an iterable of dicts.*, but is a str"),
        (7, "`sequences` must be an iterable of dicts.*, but is a int"),
        (
            pa.table({"x": pa.array([], pa.list_(pa.int8()))}),
            "`sequences` must have .* without rows",
        ),
        ([pa.table({"x": [[1]]}), {"x": [1]}], "must be tables throughout, but holds a dict"),
    ],
)
def test_what_holds_no_sequences_is_an_error(tmp_path, sequences, text):
    with pytest.raises(ConfigError, match=text):
        write_arrow(tmp_path / "store", sequences)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (
            pa.array([[1], None]),
            "column 'x': must not hold missing values, but holds one in row 1. Fill it",
        ),
        (
            pa.array([[1], [None]]),
            "column 'x': must not hold missing values, but holds one in row 1 inside its list",
        ),
        (
            pa.array([{"a": 1}, {"a": 2}]),
            "column 'x' must be numbers, text, bytes, or lists of numbers, but has type struct",
        ),
    ],
)
def test_a_table_column_that_cannot_be_stored_is_an_error(tmp_path, column, text):
    with pytest.raises(DecodeError, match=text) as caught:
        write_arrow(tmp_path / "store", pa.table({"x": column}))
    assert caught.value.details["field"] == "x"


@pytest.mark.parametrize("shard_bytes", [0, "1GB", 1e6, True])
def test_a_shard_size_of_nothing_is_an_error(tmp_path, shard_bytes):
    with pytest.raises(ConfigError, match="`shard_bytes` must be an integer of at least 1, but is"):
        write_arrow(tmp_path, numbers(1), shard_bytes=shard_bytes)


def test_progress_is_told_to_a_function(tmp_path):
    told = []
    write_arrow(tmp_path, numbers(*[1] * 2100), progress=lambda *both: told.append(both))
    assert told == [(1024, 1024 * 12), (2048, 2048 * 12), (2100, 2100 * 12)]


def test_progress_is_told_after_every_shard_and_many_bytes(tmp_path):
    told = []
    rows = numbers(*[1 << 20] * 6, *[1] * 3)
    write_arrow(tmp_path, rows, shard_bytes=24 << 20, progress=lambda *both: told.append(both))
    large = (4 << 20) + 8
    assert told == [(4, 4 * large), (6, 6 * large), (9, 6 * large + 36)]


def test_progress_is_a_bar_on_standard_error(tmp_path, capsys):
    write_arrow(tmp_path / "store", numbers(1, 2), progress=True)
    captured = capsys.readouterr()
    assert "writing store" in captured.err
    assert not captured.out


def test_no_bar_is_shown_where_nobody_looks(tmp_path, capsys):
    write_arrow(tmp_path, numbers(1))
    assert capsys.readouterr().err == ""


def test_writing_imports_neither_torch_nor_pandas(tmp_path):
    code = (
        "import sys\nfrom seqdata.storage.arrow.write import write_arrow\n"
        "if 'pyarrow' in sys.modules: raise SystemExit('pyarrow at import')\n"
        f"write_arrow({os.fspath(tmp_path)!r}, [[1, 2]], overwrite=True)\n"
        "print(sorted({'torch', 'pandas', 'lightning'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=patient(), check=False
    )
    assert done.stdout.strip() == "[]", done.stderr
