"""Classic NetCDF: what NetCDF-4 gives of the same content, bit by bit; what is damaged is refused.

Files are written by the library of NetCDF, and by the specification where that writes none.
"""

import tomllib
from pathlib import Path

import netCDF4
import numpy as np
import pytest
import torch
from arrays_samples import write_hdf5
from classic_samples import (
    CLASSIC,
    CODES,
    FORMS,
    STREAMED,
    ClassicBytes,
    bits,
    chars,
    recording,
    stored,
    write_nc,
)
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from seqdata_arrays import HDF5

from seqdata import TBPTT, Loader, Windows, open_store
from seqdata.cli.app import app
from seqdata.errors import ConfigError, DataError, DecodeError, LimitError, SeqDataError
from seqdata_testing.contract import FormatContract, StoreContract, sample_sequences

NUMBERS = tuple(code for code in CODES if code != "S1")
PLACES = {"fixed": None, "records": "time"}


def base(store):
    """Return the store below the view that ``open_store`` makes."""
    return getattr(store, "base", store)


def check_same(found, due):
    """Compare stores: ids, fields in their order, lengths, and every value bit by bit."""
    assert found.keys(range(len(found))) == due.keys(range(len(due)))
    assert list(found.fields.items()) == list(due.fields.items())
    assert {axis: lengths.tolist() for axis, lengths in found.lengths_of.items()} == {
        axis: lengths.tolist() for axis, lengths in due.lengths_of.items()
    }
    for number in range(len(due)):
        mine, other = found[number], due[number]
        assert list(mine) == list(other)
        for name, value in other.items():
            if isinstance(value, str):
                assert mine[name] == value
                continue
            one, two = np.asarray(mine[name]), np.asarray(value)
            assert (one.dtype, one.shape) == (two.dtype, two.shape)
            assert one.tobytes() == two.tobytes(), name


def write_both(folder, variables, form, **options):
    """Write the same file as NetCDF-4 and in a classic form; return both."""
    paths = []
    for name, each in (("four", "NETCDF4"), ("classic", form)):
        (folder / name).mkdir(parents=True)
        paths.append(write_nc(folder / name / "x.nc", variables, form=each, **options))
    return paths


@pytest.fixture
def small_pieces(monkeypatch):
    """Pieces of some rows, so that small arrays have several."""
    monkeypatch.setattr("seqdata_arrays.array_index._PIECE_BYTES", 500)


# What is read


@pytest.mark.parametrize("unlimited", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.usefixtures("small_pieces")
def test_a_classic_file_is_read_as_netcdf_4_of_the_same_content(tmp_path, form, unlimited):
    types = NUMBERS if FORMS[form] == 5 else CLASSIC
    attributes = [("subject", "s1"), ("site", "é"), ("gain", np.float32(0.1)), ("_hidden", "x"),
                  ("vector", np.arange(3, dtype="i4")), ("long", "x" * 300)]  # fmt: skip
    of = [("x_f4", "_FillValue", np.float32(-9)), ("x_f4", "units", "m"),
          ("time", "units", "hours since 1970-01-01")]  # fmt: skip
    four, classic = write_both(
        tmp_path, recording(101, types=types), form,
        unlimited=unlimited, attributes=attributes, of=of,
    )  # fmt: skip
    for options in (
        {},
        {"fields": {"y": "x_f8", "when": "time"}, "attributes": ["vector", "gain"]},
        {"axes": {"grid": None}, "fields": ["grid", "x_i2"]},
        {"fields": ["x_i1"]},
        {"per": "array", "fields": ["one"]} if unlimited is None else {"fields": ["flat"]},
    ):
        if options.get("per") == "array":
            rows = {f"r{n}": ((f"t{n}",), bits("f4", n, n)) for n in (3, 20, 100)}
            four, classic = write_both(tmp_path / "many", rows, form, unlimited=None)
        due = open_store(four, backend=HDF5(**options))
        check_same(open_store(classic, backend=HDF5(**options)), due)
    assert set(open_store(tmp_path / "classic").fields) == {
        *(f"x_{each}" for each in types), "flat", "grid", "time", "age", "subject", "site", "gain",
    }  # fmt: skip


@pytest.mark.parametrize("unlimited", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.usefixtures("small_pieces")
def test_long_variables_are_cut_by_lengths_with_ids_of_characters(tmp_path, form, unlimited):
    lengths = np.array([3, 0, 50, 7], "i4")
    variables = {
        "x": (("time", "k"), bits("f4", (60, 3))),
        "label": (("station",), np.arange(4, dtype="i2")),
        "n": (("station",), lengths), "at": (("edge",), np.r_[0, np.cumsum(lengths)].astype("i4")),
        "who": (("station", "who_size"), chars(["a", "Zürich", "dd", "e"])),
        "place": (("station", "place_size"), chars(["north", "", "ée", "w"])),
    }  # fmt: skip
    four, classic = write_both(tmp_path, variables, form, unlimited=unlimited)
    for index in ({"lengths": "n"}, {"offsets": "at"}):
        backend = HDF5(ids="who", fields=["x", "label", "place"], **index)
        store = open_store(classic, backend=backend)
        check_same(store, open_store(four, backend=backend))
        assert store.keys(range(4)) == ["a", "Zürich", "dd", "e"]
        assert [row["place"] for row in store] == ["north", "", "ée", "w"]


def test_packed_numbers_are_refused_until_they_are_wanted_raw(tmp_path):
    variables = {"x": (("time",), np.arange(9, dtype="i2")), "y": (("time",), np.zeros(9))}
    path = write_nc(tmp_path / "x.nc", variables, form="NETCDF3_CLASSIC",
                    of=[("x", "scale_factor", 0.1), ("x", "add_offset", 5.0)])  # fmt: skip
    message = r"'x' holds packed numbers \(add_offset, scale_factor\).*raw=True"
    with pytest.raises(DataError, match=message):
        open_store(path, backend=HDF5())
    assert open_store(path, backend=HDF5(raw=True))[0]["x"].tolist() == list(range(9))
    assert list(open_store(path, backend=HDF5(fields=["y"])).fields) == ["y"]


@pytest.mark.parametrize("version", [1, 5])
@pytest.mark.parametrize("names", [["a"], ["a", "b"], ["a", "b", "whole"]])
@pytest.mark.parametrize("dtype", ["i1", "i2"])
@pytest.mark.parametrize("rows", [0, 5])
@pytest.mark.usefixtures("small_pieces")
def test_records_are_padded_unless_there_is_one_variable_of_them(
    tmp_path, version, names, dtype, rows
):
    every = {"a": (("time", "k"), bits(dtype, (rows, 3))), "b": (("time",), bits(dtype, rows, 1)),
             "whole": (("t2", "k"), bits("i2", (7, 3), 2))}  # fmt: skip
    variables = {name: every[name] for name in names}
    path = tmp_path / "x.nc"
    path.write_bytes(ClassicBytes(version).file(variables))
    with netCDF4.Dataset(path) as file:  # the specification as these tests read it
        file.set_auto_maskandscale(False)
        for name, (_, values) in variables.items():
            assert file[name][...].tobytes() == values.tobytes()
    (row,) = open_store(path, backend=HDF5(per="file"))
    for name, (_, values) in variables.items():
        assert (row[name].dtype, row[name].shape) == (values.dtype, values.shape)
        assert row[name].tobytes() == values.tobytes()


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
@pytest.mark.parametrize("version", FORMS.values())
def test_a_streamed_file_has_as_many_records_as_it_has_bytes_for(tmp_path, version, names):
    every = {"a": (("time",), bits("i2", 7)), "b": (("time", "k"), bits("i1", (7, 3), 1))}
    content = ClassicBytes(version).file({name: every[name] for name in names}, records=STREAMED)
    cuts = {0: 7, 1: 7, 8: 6} if len(names) > 1 else {0: 7, 1: 6, 8: 3}
    for cut, due in cuts.items():  # the last record may lack its padding
        path = tmp_path / f"{cut}.nc"
        path.write_bytes(content[: len(content) - cut])
        (row,) = open_store(path, backend=HDF5())
        for name in names:
            assert row[name].tobytes() == every[name][1][:due].tobytes()
    short = {"a": (("time",), bits("i2", 0)), "w": (("k",), bits("f4", 3))}
    path = tmp_path / "x.nc"
    path.write_bytes(ClassicBytes(version).file(short, records=STREAMED))
    assert open_store(path, backend=HDF5(fields=["a"])).lengths.tolist() == [0]


def test_attributes_of_another_encoding_or_without_a_value_are_no_fields(tmp_path):
    made = ClassicBytes(1)
    attributes = [made.attribute("place", 2, "Zürich".encode("latin-1")),
                  made.attribute("empty", 2, b""), made.attribute("none", 4, b""),
                  made.attribute("terminated", 2, b"s1\0")]  # fmt: skip
    path = tmp_path / "x.nc"
    path.write_bytes(made.file({"x": (("time",), bits("f4", 5))}, attributes=attributes))
    store = open_store(path, backend=HDF5())
    assert list(store.fields) == ["x", "terminated"]
    assert store[0]["terminated"] == "s1"
    with pytest.raises(DecodeError, match="attribute 'place' must be UTF-8, but has other bytes"):
        open_store(path, backend=HDF5(attributes=["place"]))


@settings(max_examples=8, deadline=None)
@given(
    rows=st.integers(1, 90), piece=st.sampled_from([1, 40, 300]), seed=st.integers(0, 99),
    unlimited=st.sampled_from([None, "time"]),
)  # fmt: skip
def test_any_spans_are_those_of_the_variables(tmp_path_factory, rows, piece, seed, unlimited):
    variables = {name: each for name, each in recording(rows, seed=seed).items() if name != "age"}
    path = tmp_path_factory.mktemp("any") / "x.nc"
    write_nc(path, variables, form="NETCDF3_64BIT_OFFSET", unlimited=unlimited)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("seqdata_arrays.array_index._PIECE_BYTES", piece)
        store = open_store(path, backend=HDF5(cache_bytes=500))
    random = np.random.default_rng(seed)
    for _ in range(5):
        spans = np.sort(random.integers(0, rows + 1, (4, 2)), axis=1)
        columns = store.read(np.c_[np.zeros(4, int), spans], ["x_f4", "flat"])
        for name, column in columns.items():
            for piece_found, (first, stop) in zip(column, spans.tolist(), strict=True):
                assert piece_found.tobytes() == variables[name][1][first:stop].tobytes()


# How it is read


def test_bytes_are_views_of_the_file(tmp_path):
    variables = {"x": (("time", "k"), bits("i1", (50, 3)))}
    for unlimited in (None, "time"):  # the only variable of records lies in one piece
        path = write_nc(tmp_path / f"{unlimited}.nc", variables, form="NETCDF3_CLASSIC",
                        unlimited=unlimited)  # fmt: skip
        store = open_store(path, backend=HDF5())
        (values,) = store.read(np.array([[0, 10, 20]]), ["x"])["x"]
        assert not values.flags.owndata
        assert values.tobytes() == variables["x"][1][10:20].tobytes()
        assert not hasattr(base(store), "decoded_chunks")


@pytest.mark.parametrize(("unlimited", "pieces"), [(None, 1), ("time", 2)], ids=PLACES)
@pytest.mark.usefixtures("small_pieces")
def test_only_the_pieces_asked_for_are_converted(tmp_path, unlimited, pieces):
    variables = {name: (("time",), bits("f4", 1_000)) for name in "xy"}
    path = write_nc(tmp_path / "x.nc", variables, form="NETCDF3_CLASSIC", unlimited=unlimited)
    store = base(open_store(path, backend=HDF5()))
    assert store.decoded_chunks == 0
    store.read(np.array([[0, 60, 120]]), ["x"])  # of 125 rows a piece; of 62 where y is between
    assert store.decoded_chunks == pieces


def test_a_piece_spans_a_mebibyte_or_a_record(tmp_path):
    variables = {"big": (("time", "k"), bits("f8", (3, 1 << 19))),
                 "small": (("time",), bits("i2", 3))}  # fmt: skip
    path = write_nc(tmp_path / "x.nc", variables, form="NETCDF3_64BIT_OFFSET")
    store = base(open_store(path, backend=HDF5()))
    found = store._source.store
    sizes = dict(zip(found.keys(range(6)), found.lengths.tolist(), strict=False))
    assert sizes == {f"x.nc/{name}#{n}": size for name, size in (("big", 1 << 22), ("small", 2))
                     for n in range(3)}  # fmt: skip
    for name, (_, values) in variables.items():
        assert store.read(np.array([[0, 0, 3]]), [name])[name][0].tobytes() == values.tobytes()


def test_classic_and_other_files_are_one_store(tmp_path):
    variables = {"frames": (("time", "k"), bits("f4", (50, 3)))}
    names = ("a.nc", "b.nc3", "c.cdf", "d.nc4", "e.h5")
    for name, form in zip(names, ("NETCDF3_CLASSIC", *list(FORMS)[1:], "NETCDF4"), strict=False):
        write_nc(tmp_path / name, variables, form=form)
    write_hdf5(tmp_path / "e.h5", [{"id": "r", "frames": variables["frames"][1]}])
    backend = HDF5(fields={"frames": "frames"}, attributes=[], per="file")
    with pytest.raises(DataError, match="must have the array 'frames'"):
        open_store(tmp_path, backend=backend)
    (tmp_path / "e.h5").unlink()
    for _ in range(2):
        store = open_store(tmp_path, backend=backend)
        assert store.keys(range(4)) == list(names[:4])
        assert {row["frames"].tobytes() for row in store} == {variables["frames"][1].tobytes()}


def test_the_suffixes_are_those_that_the_package_claims():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    claimed = project["project"]["entry-points"]["seqdata.suffixes"]
    expected = {".zarr": "zarr", ".npy": "numpy", ".npz": "numpy"}
    assert claimed == dict.fromkeys(HDF5().suffixes, "hdf5") | expected


def long_file(folder, sequences, **options):
    """Write sequences as long variables with characters as ids; return the store."""
    n = [len(row["tokens"]) for row in sequences]
    names = [row["name"] for row in sequences]
    variables = {
        "tokens": (("time",), np.concatenate([row["tokens"] for row in sequences])),
        "frames": (("time", "k"), np.concatenate([row["frames"] for row in sequences])),
        "label": (("number",), np.array([row["label"] for row in sequences])),
        "name": (("number", "size"), chars(names)), "n": (("number",), np.array(n, "i4")),
    }  # fmt: skip
    path = write_nc(folder / "x.nc", variables, form="NETCDF3_64BIT_DATA", **options)
    return path, HDF5(lengths="n", fields=["tokens", "frames", "label", "name"])


class TestFixed(StoreContract):
    methods = ("fork",)

    def make(self, folder, sequences):
        path, backend = long_file(folder, sequences, unlimited=None)
        return open_store(path, backend=backend)


class TestRecords(StoreContract):
    methods = ("fork", "spawn")

    def make(self, folder, sequences):
        path, backend = long_file(folder, sequences)
        return open_store(path, backend=backend)


class TestFiles(FormatContract):
    backend = HDF5()

    def make(self, folder):
        for number in range(3):
            variables = recording(40 + number, seed=number)
            write_nc(folder / f"{number}.nc", variables, form="NETCDF3_64BIT_OFFSET")
        open_store(folder, backend=self.backend)  # its index has the checksums
        return folder


@pytest.mark.usefixtures("small_pieces")
def test_lanes_and_windows_read_every_timestep_once(tmp_path):
    path, backend = long_file(tmp_path, sample_sequences())
    store = open_store(path, backend=backend)
    due = sorted(np.concatenate([row["tokens"] for row in store]).tolist())
    found = []
    for batch in Loader(store, TBPTT(lanes=3, chunk=8)):
        found += batch["tokens"][batch.mask].tolist()
    assert sorted(found) == due
    policy = Windows(8, stride=8, batch_size=16)
    workers = Loader(store, policy, seed=3, num_workers=2)
    for batch, must in zip(workers, Loader(store, policy, seed=3), strict=True):
        assert torch.equal(batch["frames"], must["frames"])


# Damage


def change(path, values):
    """Change a byte of values."""
    content = bytearray(path.read_bytes())
    content[content.index(stored(values)) + 1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("unlimited", PLACES.values(), ids=PLACES)
@pytest.mark.usefixtures("small_pieces")
def test_a_changed_byte_names_file_sequence_and_field(tmp_path, unlimited):
    path, backend = long_file(tmp_path, sample_sequences(), unlimited=unlimited)
    store = open_store(path, backend=backend)
    change(path, sample_sequences()[22]["frames"][400])
    field = "frames" if unlimited is None else "tokens"  # whose pieces have the frames between
    with pytest.raises(DataError, match=rf'x\.nc.*sequence 22 \("22"\), field "{field}"'):
        [store[number] for number in range(len(store))]
    assert store[3]["frames"].tobytes() == sample_sequences()[3]["frames"].tobytes()


def test_commands_verify_index_and_describe(tmp_path):
    variables = recording(99)
    path = str(write_nc(tmp_path / "x.nc", variables, form="NETCDF3_CLASSIC"))
    done = CliRunner().invoke(app, ["stats", path, "--json"])
    assert '"sequences": 1' in done.output
    done = CliRunner().invoke(app, ["verify", path])
    assert "every byte is as written" in done.output, done.output
    change(Path(path), variables["x_f8"][1][50])
    done = CliRunner().invoke(app, ["verify", path])
    assert done.exit_code == 1
    assert "x.nc/x_f8#0" in done.output


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("unlimited", PLACES.values(), ids=PLACES)
def test_a_file_that_is_cut_off_is_refused_wherever_it_is(tmp_path, form, unlimited):
    path = write_nc(tmp_path / "x.nc", recording(9), form=form, unlimited=unlimited)
    content = path.read_bytes()
    for size in range(4, len(content) - 8, 97):
        path.write_bytes(content[:size])
        message = (
            r"x\.nc.*complete file.*(ends at byte \d+, but the file has \d+ bytes).*restore it"
        )
        with pytest.raises(DataError, match=message):
            open_store(path, backend=HDF5())


def broken(version=1, **parts):
    """Return a header with one variable and attribute, some of whose parts are others."""
    made = ClassicBytes(version)
    dims = parts.get("dims", [("time", 0), ("k", 3)])
    attributes = parts.get("attributes", [made.attribute("a", 4, bytes(4))])
    variables = parts.get("variables") or [made.variable("x", [0, 1], 5, 200)]
    content = made.header(parts.get("records", 1), dims, attributes, variables)
    return content.ljust(212, b"\0")


ONE, FIVE = ClassicBytes(1), ClassicBytes(5)
REFUSED = {
    "name of a dimension": (broken(dims=[("", 0)]), "the name of dimension 0 has 0 bytes"),
    "long name": (broken(dims=[("x" * 257, 2)]), "the name of dimension 0 has 257 bytes, not 1 to"),
    "encoding": (broken(dims=[(b"\xff", 2)]), r"dimension 0 is b'\\xff', which is not UTF-8"),
    "slash": (broken(dims=[("a/b", 2)]), "dimension 0 is 'a/b', which has a '/' or NUL"),
    "two unlimited": (broken(dims=[("s", 0), ("t", 0)]), "'s' and 't' are both unlimited"),
    "list": (broken()[:8] + b"\0\0\0\x0b" + broken()[12:], "list of dimensions is of kind 11, not"),
    "no list": (broken()[:8] + bytes(4) + broken()[12:], "list of dimensions is of kind 0, not 10"),
    "type": (broken(attributes=[ONE.attribute("a", 7, b"1")]),
             "type of attribute 'a' of the file is 7, not 1 to 6"),
    "type of a variable": (broken(5, variables=[FIVE.variable("x", [1], 12, 200)]),
                           "type of variable 'x' is 12, not 1 to 11"),
    "long attribute": (broken(5, attributes=[FIVE.attribute("a", 6, b"", size=1 << 61)]),
                       r"value of attribute 'a' of the file ends at byte \d+, but the file has"),
    "two attributes": (broken(attributes=[ONE.attribute("a", 2, b"1")] * 2),
                       "two attributes of the file have the name 'a'"),
    "two variables": (broken(variables=[ONE.variable("x", [1], 5, 200)] * 2),
                      "two variables have the name 'x'"),
    "dimension": (broken(variables=[ONE.variable("x", [0, 2], 5, 200)]),
                  "dimension 1 of variable 'x' is 2 of 2"),
    "record": (broken(variables=[ONE.variable("x", [1, 0], 5, 200)]),
               "the unlimited dimension of variable 'x' is 1, not the first"),
    "dimensions": (broken(dims=[("k", 1)], variables=[ONE.variable("x", [0] * 33, 5, 200)]),
                   "variable 'x' has 33 dimensions, more than 32"),
    "offset": (broken(variables=[ONE.variable("x", [0, 1], 5, 201)]),
               "variable 'x' ends at byte 213, but the file has 212 bytes"),
    "far offset": (broken(2, variables=[ClassicBytes(2).variable("x", [1], 5, (1 << 64) - 1)]),
                   "variable 'x' ends at byte 18446744073709551627, but the file has 212"),
    "records": (broken(records=2), "variable 'x' ends at byte 224, but the file has 212 bytes"),
    "many records": (broken(5, records=(1 << 64) - 2, variables=[FIVE.variable("x", [0], 6, 200)]),
                     r"variable 'x' ends at byte \d{21}, but the file has"),
    "product": (broken(5, dims=[("k", (1 << 64) - 1)],
                       variables=[FIVE.variable("x", [0] * 32, 6, 200)]),
                r"variable 'x' ends at byte \d{600,}, but the file has"),
    "counts": (broken()[:12] + b"\xff" * 4, "ends at byte"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_header_that_cannot_be_true_is_refused_by_what_is_wrong(tmp_path, name):
    content, message = REFUSED[name]
    (tmp_path / "x.nc").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        open_store(tmp_path / "x.nc", backend=HDF5())
    assert caught.value.details["file"] == "x.nc"


def test_the_header_that_the_refused_ones_are_made_of_is_read(tmp_path):
    for version in FORMS.values():
        made = ClassicBytes(version)
        path = tmp_path / f"{version}.nc"
        path.write_bytes(broken(version, variables=[made.variable("x", [0, 1], 5, 200)]))
        assert open_store(path, backend=HDF5())[0]["x"].tolist() == [[0, 0, 0]]


def test_a_very_large_header_is_refused(tmp_path):
    (tmp_path / "x.nc").write_bytes(broken(attributes=[ONE.attribute("a", 2, bytes(17 << 20))]))
    message = (
        r"x\.nc: must have a header of at most 16777216 bytes, but the value of attribute 'a' of "
        r"the file ends at byte 17825\d+\. If you trust the file, write it again with fewer"
    )
    with pytest.raises(LimitError, match=message):
        open_store(tmp_path / "x.nc", backend=HDF5())


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "must hold at least one array, but holds none"),
        (
            {"c": (("time", "k"), chars(["ab", "c"]))},
            r"must hold real numb.* holds strings \[2, 2\]",
        ),
        ({"x": ((), np.float64(3))}, "must hold an array of numbers with a dimension for time"),
    ],
)
def test_what_is_no_sequence_is_refused_as_in_netcdf_4(tmp_path, variables, message):
    for path in write_both(tmp_path, variables, "NETCDF3_CLASSIC", unlimited=None):
        with pytest.raises(DecodeError, match=message):
            open_store(path, backend=HDF5())


def test_characters_of_another_number_are_no_ids(tmp_path):
    variables = {"x": (("time",), np.zeros(5)), "n": (("s",), np.array([2, 3], "i4")),
                 "who": (("three", "k"), chars(["a", "b", "c"])), "c": (("s", "j", "k"),
                 chars(["a", "b", "c", "d"]).reshape(2, 2, 1))}  # fmt: skip
    for path in write_both(tmp_path, variables, "NETCDF3_CLASSIC", unlimited=None):
        for name, shape in (("who", r"\[3, 1\]"), ("c", r"\[2, 2, 1\]")):
            with pytest.raises(DecodeError, match=rf"`ids` must hold 2 strings.*strings {shape}"):
                open_store(path, backend=HDF5(lengths="n", ids=name, fields=["x"]))


def test_another_file_of_these_suffixes_is_refused(tmp_path):
    (tmp_path / "x.cdf").write_bytes(b"\xcd\xf3\x00\x01" + bytes(200))  # NASA's format
    with pytest.raises(DataError, match=r"x\.cdf.*must be a complete file of its format"):
        open_store(tmp_path / "x.cdf", backend=HDF5())
    (tmp_path / "x.nc").write_bytes(b"CDF\x03" + bytes(200))
    with pytest.raises((DataError, ConfigError), match="must be a complete file of its format"):
        open_store(tmp_path / "x.nc", backend=HDF5())


def read_all(path):
    store = open_store(path, backend=HDF5())
    return store.keys(range(len(store))), [
        {name: np.asarray(value).tobytes() for name, value in row.items()} for row in store
    ]


@pytest.mark.parametrize("form", FORMS)
def test_a_changed_byte_of_an_indexed_file_is_refused_or_changes_nothing(tmp_path, form):
    path = write_nc(tmp_path / "x.nc", recording(7), form=form)
    due, content = read_all(path), path.read_bytes()
    for at in range(0, len(content), 67):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
        try:
            assert read_all(path) == due
        except SeqDataError:
            continue
