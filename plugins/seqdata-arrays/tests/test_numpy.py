"""Files of NumPy: read in place where they are contiguous, decoded where they are compressed."""

import io
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqdata_arrays import NumPy

from seqdata import Bucketed, Loader, open_store, write_store
from seqdata.errors import ConfigError, DataError
from seqdata_testing.contract import StoreContract
from seqdata_testing.stores import check_store

DTYPES = ("float32", "float64", "float16", "int64", "int16", "uint8", "bool", ">f4", ">i8")


def recordings(count=5):
    random = np.random.default_rng(count)
    return [
        {
            "id": f"r{number}",
            "x": random.normal(size=(length, 3)).astype(np.float32),
            "labels": random.integers(0, 9, length).astype(np.int16),
            "age": np.int64(20 + number),
            "subject": f"s{number} é",
        }
        for number, length in enumerate((1, 30, 7, 0, 12)[:count])
    ]


def write(folder, rows, save=np.savez):
    folder.mkdir(exist_ok=True)
    for row in rows:
        save(folder / f"{row['id']}.npz", **{name: row[name] for name in row if name != "id"})
    return folder


class TestInPlace(StoreContract):
    sequences = tuple(recordings())

    def make(self, folder, sequences):
        return open_store(write(folder / "data", sequences), backend=NumPy())


class TestCompressed(StoreContract):
    sequences = tuple(recordings())

    def make(self, folder, sequences):
        return open_store(write(folder / "data", sequences, np.savez_compressed), backend=NumPy())


def cut(shape):
    """Shapes of one to three dimensions, the first of which may be empty."""
    return st.integers(1, 3).map(lambda count: shape[:count])


@pytest.fixture(scope="module")
def array(tmp_path_factory):
    folder = tmp_path_factory.mktemp("array")
    np.save(folder / "a.npy", np.arange(3_000, dtype=np.float32).reshape(-1, 3))
    return folder


@settings(max_examples=60)
@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.tuples(st.integers(0, 5), *[st.integers(1, 4)] * 2).flatmap(cut),
    order=st.sampled_from("CF"),
    how=st.sampled_from(["npy", "npz", "compressed"]),
    name=st.text("ab_é", min_size=1, max_size=9),
)
def test_every_array_is_the_one_that_numpy_loads(dtype, shape, order, how, name, tmp_path_factory):
    folder = tmp_path_factory.mktemp("any")
    values = np.random.default_rng(len(shape)).integers(0, 100, shape).astype(dtype)
    values = np.asarray(values, order=order)
    if how == "npy":
        name, path = "x", folder / "a.npy"
        np.save(path, values)
    else:
        path = folder / "a.npz"
        (np.savez if how == "npz" else np.savez_compressed)(path, **{name: values})
    for _ in range(2):  # when it is indexed, and by its index
        (sequence,) = open_store(path, backend=NumPy())
        found = sequence[name]
        assert found.dtype == values.dtype.newbyteorder("=")
        np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("shape", [(40,), (8, 5)])
def test_a_header_of_another_writer_is_read(shape, tmp_path):
    """With keys in another order; NumPy itself sorts them."""
    values = np.arange(40.0).reshape(shape)
    text = repr({"shape": shape, "fortran_order": False, "descr": "<f8"}).encode() + b"\n"
    head = b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text
    (tmp_path / "a.npy").write_bytes(head + values.tobytes())
    assert open_store(tmp_path / "a.npy", backend=NumPy())[0]["x"].tolist() == values.tolist()


def test_arrays_of_numpy_save_and_savez_are_mapped(tmp_path, array):
    """No decoded copy: what a batch reads is in the pages of the file."""
    write(tmp_path / "z", recordings())
    for folder in (array, tmp_path / "z"):
        store = open_store(folder, backend=NumPy())
        assert not type(store).__name__.startswith("Chunk")


def test_long_arrays_are_cut_by_lengths(tmp_path):
    path = tmp_path / "long.npz"
    np.savez(path, x=np.arange(20.0), n=[3, 0, 17], label=[0, 1, 0], name=["a", "b", "é"])
    store = open_store(path, backend=NumPy(lengths="n", ids="name"))
    check_store(
        store,
        [
            {"id": id, "x": np.arange(first, stop, dtype=float), "label": np.int64(label)}
            for id, first, stop, label in (("a", 0, 3, 0), ("b", 3, 3, 1), ("é", 3, 20, 0))
        ],
    )


def test_arrays_of_one_archive_may_be_the_sequences(tmp_path):
    np.savez(tmp_path / "all.npz", *[np.zeros((length, 2)) for length in (3, 5, 4)])
    with pytest.raises(DataError, match=r"may be sequences or fields\. Pass per='array'"):
        open_store(tmp_path / "all.npz", backend=NumPy())
    store = open_store(tmp_path / "all.npz", backend=NumPy(per="array"))
    assert (store.keys([0, 2]), store.lengths.tolist()) == (["arr_0", "arr_2"], [3, 5, 4])


def test_compressed_and_plain_archives_are_read_together(tmp_path):
    rows = recordings()
    write(tmp_path / "data", rows[:2])
    write(tmp_path / "data", rows[2:], np.savez_compressed)
    check_store(open_store(tmp_path / "data", backend=NumPy()), rows)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_what_one_process_reads(tmp_path, method):
    store = open_store(write(tmp_path / "data", recordings(), np.savez_compressed), backend=NumPy())
    alone = list(Loader(store, Bucketed(2), seed=1))
    batches = list(Loader(store, Bucketed(2), seed=1, num_workers=1, start_method=method))
    assert [batch["x"].tolist() for batch in batches] == [batch["x"].tolist() for batch in alone]


def spoil(content, at, byte=None):
    return content[:at] + bytes([content[at] ^ 255 if byte is None else byte]) + content[at + 1 :]


def save(values, **options):
    stream = io.BytesIO()
    np.save(stream, values, **options)
    return stream.getvalue()


NPY = save(np.arange(40.0))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read by NumPyFormat"),
        (b"not of numpy at all", "the magic string is not correct"),
        (spoil(NPY, 6, 9), "it has a header of version 9.0, but only 1.0 and 2.0 are read"),
        (NPY[:100], "its header must have 118 bytes, at most 131072, but is cut off"),
        (NPY.replace(b"{'descr': '<f8', ", b"{").replace(b"\n", b""), "Cannot parse header"),
        (NPY[:-8], r"its header declares \(40,\) float64, which are 320 bytes, but 312 bytes fol"),
        (NPY + b"x", "are 320 bytes, but 321 bytes follow it"),
        (NPY.replace(b"(40,)", b"(-1,)"), r"its header declares the shape \(-1,\)"),
        (NPY.replace(b"'<f8'", b"'<q8'"), "its header declares the dtype '<q8', which NumPy lacks"),
        (NPY.replace(b"{'descr'", b"[[descr'"), "its header cannot be parsed: "),
        (save(np.zeros((3, 0))), r"must hold real numb.* holds float64 \[3, 0\]"),
        (save(np.float64(3)), "must hold an array of numbers with a dimension for time"),
        (save(np.array(["a"])), r"array 'x' must hold real numb.* holds strings \[1\]"),
        (save(np.array([{}]), allow_pickle=True), r"must hold real numb.* holds object \[1\]"),
        (save(np.zeros(2, [("a", "f4")])), r"must hold real numb.* holds void32 \[2\]"),
        (save(np.zeros(2, complex)), r"must hold real numb.* holds complex128 \[2\]"),
    ],
)  # fmt: skip
def test_what_is_no_array_of_numbers_is_refused(content, message, tmp_path):
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        open_store(path, backend=NumPy())
    assert "a.npy" in str(caught.value)


def archive(**members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        for name, (content, kind) in members.items():
            file.writestr(name.replace("__", "."), content, kind)
    return stream.getvalue()


STORED = archive(x__npy=(NPY, zipfile.ZIP_STORED))
DEFLATED = archive(x__npy=(save(np.zeros(1_000)), zipfile.ZIP_DEFLATED))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK and no archive", "it is a damaged archive: File is not a zip file"),
        (spoil(STORED, 300), "it is a damaged archive: Bad CRC-32 for file 'x.npy'"),
        (spoil(DEFLATED, 45), "it is a damaged archive: "),
        (STORED[:200], "it is a damaged archive"),
        (archive(x__npy=(NPY[:-8], 0)), r"the header of 'x.npy' declares \(40,\) float64, but 312"),
        (archive(x__npy=(NPY, 0), readme__txt=(b"hello", 0)), "member 'readme.txt' must be an arr"),
        (archive(x__npy=(NPY, zipfile.ZIP_LZMA)), "member 'x.npy' must be stored or deflated, as"),
        (STORED.replace(b"\x50\x4b\x01\x02\x14\x03\x14\x00\x00", b"\x50\x4b\x01\x02\x14\x03\x14\x00\x01"), "member 'x.npy' must not be encrypted, but is. Save"),  # noqa: E501
        (archive(), "must hold at least one array, but holds none"),
    ],
)  # fmt: skip
def test_a_damaged_or_foreign_archive_is_refused(content, message, tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        open_store(path, backend=NumPy())
    assert "a.npz" in str(caught.value)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_byte_that_changes_after_indexing_is_found(save, tmp_path):
    folder = write(tmp_path / "data", recordings(2), save)
    open_store(folder, backend=NumPy())
    path = folder / "r1.npz"
    content = path.read_bytes()
    path.write_bytes(spoil(content, len(content) // 3))
    with pytest.raises(DataError, match="r1"):
        open_store(folder, backend=NumPy(), verify="always")[1]


@pytest.mark.parametrize(("option", "value"), [("attributes", ["a"]), ("raw", True)])
def test_options_that_files_of_numpy_do_not_have_are_refused(option, value):
    with pytest.raises(ConfigError, match=f"NumPy: `{option}` must be left out, since files of"):
        NumPy(**{option: value})


def test_files_are_opened_by_their_suffix_and_written_to_a_store(tmp_path):
    """The path is enough where the package is installed."""
    rows = recordings(3)
    store = open_store(write(tmp_path / "data", rows))
    check_store(store, rows)
    write_store(tmp_path / "store", store)
    check_store(open_store(tmp_path / "store"), rows)
