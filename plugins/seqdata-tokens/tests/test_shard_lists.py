"""Folders of MosaicML Streaming and LitData, made by their writers (``golden.py``)."""

import importlib.util
import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from seqdata_tokens import Tokens

from seqdata import Bucketed, Loader, open_store
from seqdata.cli.app import app
from seqdata.errors import ConfigError, SeqDataError
from seqdata_testing.stores import check_store

GOLDEN = Path(__file__).parent / "golden"
FOLDERS = {
    "mds-ndarray": Tokens(),
    "mds-ndarray-int32": Tokens(),
    "mds-bytes": Tokens(dtype="int32"),
    "mds-columns": Tokens(column="tokens"),
    "litdata-tensor": Tokens(),
    "litdata-numpy": Tokens(),
}


def make_rows():
    random = np.random.default_rng(3)
    lengths = (1, 7, 255, 256, 30, 399, 64)
    return [{"tokens": random.integers(0, 50_000, n).astype(np.int32)} for n in lengths]


def copy(name, folder):
    return Path(shutil.copytree(GOLDEN / name, folder / name))


@pytest.mark.parametrize("name", sorted(FOLDERS))
def test_what_the_real_writers_wrote_is_read(tmp_path, name):
    folder = copy(name, tmp_path)
    check_store(open_store(folder, backend=FOLDERS[name]), make_rows())
    check_store(open_store(folder, backend=FOLDERS[name]), make_rows())  # of its index


@pytest.mark.parametrize("name", ["mds-ndarray", "litdata-tensor"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_the_same(tmp_path, name, method):
    store = open_store(copy(name, tmp_path), backend=Tokens())
    alone = list(Loader(store, Bucketed(2)))
    loader = Loader(store, Bucketed(2), num_workers=1, start_method=method)
    for batch, other in zip(alone, loader, strict=True):
        assert batch["tokens"].tolist() == other["tokens"].tolist()


@pytest.mark.parametrize("name", ["mds-ndarray", "litdata-tensor"])
def test_the_commands_index_and_verify_such_folders(tmp_path, name):
    folder = copy(name, tmp_path)
    for command in ("index", "verify"):
        result = CliRunner().invoke(app, [command, str(folder), "--backend", "tokens"])
        assert result.exit_code == 0, result.output
    path = max(folder.glob("*[0-9].*"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert CliRunner().invoke(app, ["verify", str(folder), "--backend", "tokens"]).exit_code != 0


@pytest.mark.parametrize("name", sorted(FOLDERS))
@pytest.mark.parametrize("cut", [1, 100, 440])
def test_a_file_that_was_cut_off_is_refused(tmp_path, name, cut):
    folder = copy(name, tmp_path)
    path = max(folder.glob("*[0-9].*"))
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(SeqDataError, match=rf"{path.name}.*(ascending|for the) offsets"):
        open_store(folder, backend=FOLDERS[name])


@pytest.mark.parametrize("name", ["mds-ndarray", "litdata-numpy"])
@pytest.mark.parametrize("place", [0, 1, -1])
def test_a_file_that_is_lost_is_named(tmp_path, name, place):
    folder = copy(name, tmp_path)
    lost = sorted(folder.glob("*[0-9].*"))[place]
    lost.unlink()
    with pytest.raises(SeqDataError, match=rf"{lost.name}'.*is missing. Restore it"):
        open_store(folder, backend=Tokens())


def test_a_file_that_is_not_in_the_list_is_refused(tmp_path):
    folder = copy("mds-ndarray", tmp_path)
    shutil.copy(folder / "shard.00000.mds", folder / "shard.00009.mds")
    with pytest.raises(SeqDataError, match=r"is not listed in index.json. Move it out"):
        open_store(folder, backend=Tokens())


def edit(folder, change):
    path = folder / "index.json"
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


def test_a_shard_of_mds_that_is_another_one_is_refused(tmp_path):
    folder = copy("mds-ndarray", tmp_path)
    edit(folder, lambda found: found["shards"][0].update(samples=2))
    with pytest.raises(SeqDataError, match=r"1264 bytes and 3 samples, but index.json says 1264"):
        open_store(folder, backend=Tokens())


@pytest.mark.parametrize("text", ["{", "[]", '{"shards": 3}'])
def test_a_damaged_list_is_refused(tmp_path, text):
    folder = copy("mds-ndarray", tmp_path)
    (folder / "index.json").write_text(text)
    match = r"has an index.json next to it that|must have an index.json with a list 'shards'"
    with pytest.raises(SeqDataError, match=match):
        open_store(folder, backend=Tokens())


def test_a_shard_of_mds_alone_describes_itself(tmp_path):
    shutil.copy(GOLDEN / "mds-ndarray/shard.00000.mds", tmp_path / "x.mds")
    store = open_store(tmp_path / "x.mds", backend=Tokens())
    check_store(store, make_rows()[:3])


@pytest.mark.parametrize(
    ("name", "backend", "message"),
    [
        (
            "mds-bytes",
            Tokens(),
            r"'tokens' of bytes, whose dtype must be given.*dtype=\.\.\.",
        ),
        ("mds-columns", Tokens(), r"columns id \(str\), last \(ndarray:int32:2\), .*column=\.\.\."),
        ("mds-columns", Tokens(column="text"), "must have the column 'text', but has id"),
        ("mds-columns", Tokens(column="id"), "'id' of str, but tokens must be ndarray or bytes"),
    ],
)
def test_what_the_columns_of_mds_do_not_say_must_be_said(tmp_path, name, backend, message):
    with pytest.raises(SeqDataError, match=message):
        open_store(copy(name, tmp_path), backend=backend)


def test_a_column_of_fixed_size_is_read(tmp_path):
    store = open_store(copy("mds-columns", tmp_path), backend=Tokens(column="last"))
    check_store(store, [{"tokens": np.array([n, 2 * n], np.int32)} for n in range(7)])


@pytest.mark.parametrize("column", ["", 3])
def test_a_column_is_a_name(column):
    with pytest.raises(ConfigError, match=f"`column` must be the name of a .* but is {column!r}"):
        Tokens(column=column)


def write_mds(path, encoding, samples):
    """Write a shard with one column of no fixed size, as ``MDSWriter`` does."""
    columns = {"column_names": ["x"], "column_encodings": [encoding], "column_sizes": [None]}
    head = json.dumps(columns).encode()
    rows = [struct.pack("<I", len(sample)) + sample for sample in samples]
    begin = 4 + 4 * (len(rows) + 1) + len(head)
    offsets = begin + np.cumsum([0, *map(len, rows)])
    path.write_bytes(struct.pack("<I", len(rows)) + offsets.astype("<u4").tobytes() + head)
    with path.open("ab") as file:
        file.write(b"".join(rows))


@pytest.mark.parametrize(
    ("encoding", "samples", "message"),
    [
        ("ndarray:int32", [b"\x08\x01\x01" + bytes(4)], "do not have exactly one dimension"),
        ("ndarray:int32", [b"\x04\x02" + bytes(4)], "not as long as their shapes say"),
        ("ndarray:int32", [b""], "arrays without a shape"),
        ("ndarray:int32", [b"\x05\x01"], "that end within their shapes"),
        ("ndarray:int32:2,3", [bytes(24)], "must be one-dimensional arrays"),
        ("ndarray", [b"\x21\x04\x01" + bytes(4), b"\x08\x04\x01\x00"], "of several dtypes"),
        ("ndarray", [b"\x07\x04\x01\x00"], "of a dtype with the unknown code 7"),
        ("ndarray", [b""], "has arrays without a dtype: it is damaged"),
        ("jpeg", [b"x"], "'x' of jpeg, but tokens must be ndarray or bytes"),
    ],
)
def test_arrays_that_are_no_tokens_are_refused(tmp_path, encoding, samples, message):
    write_mds(tmp_path / "x.mds", encoding, samples)
    with pytest.raises(SeqDataError, match=message):
        open_store(tmp_path / "x.mds", backend=Tokens())


def test_samples_whose_columns_do_not_fill_them_are_refused(tmp_path):
    write_mds(tmp_path / "x.mds", "bytes", [b"abcd"])
    content = bytearray((tmp_path / "x.mds").read_bytes())
    content[-8] = 3
    (tmp_path / "x.mds").write_bytes(content)
    with pytest.raises(SeqDataError, match="whose columns do not fill them"):
        open_store(tmp_path / "x.mds", backend=Tokens(dtype="uint8"))


def test_a_file_that_does_not_describe_its_columns_is_refused(tmp_path):
    (tmp_path / "x.mds").write_bytes(struct.pack("<3I", 1, 14, 14) + b"{}")
    with pytest.raises(SeqDataError, match="does not describe its columns"):
        open_store(tmp_path / "x.mds", backend=Tokens())


@given(st.lists(st.integers(1, 70_000), min_size=1, max_size=6), st.sampled_from([4, 5, 6]))
@settings(max_examples=20, deadline=None)
def test_arrays_of_any_length_are_read(tmp_path_factory, lengths, code):
    path = tmp_path_factory.mktemp("mds") / "x.mds"
    least = {4: 1 << 8, 5: 1 << 16, 6: 1 << 32}[code]
    values = [np.arange(min(n, least - 1)).astype(np.uint16) for n in lengths]
    heads = [bytes([code]) + len(v).to_bytes(1 << (code & 3), "little") for v in values]
    pairs = zip(heads, values, strict=True)
    write_mds(path, "ndarray:uint16", [head + value.tobytes() for head, value in pairs])
    check_store(open_store(path, backend=Tokens()), [{"tokens": value} for value in values])


@pytest.mark.parametrize("ending", ["zstd", "gz", "br", "bz2", "snappy"])
def test_a_compressed_shard_is_refused(tmp_path, ending):
    (tmp_path / f"shard.00000.mds.{ending}").write_bytes(b"x")
    with pytest.raises(SeqDataError, match="is compressed"):
        open_store(tmp_path, backend=Tokens())


@pytest.mark.parametrize(
    ("text", "state"), [(None, "it is missing"), ("{}", "has no list 'chunks'")]
)
def test_a_chunk_of_litdata_that_has_lost_its_list_is_refused(tmp_path, text, state):
    folder = copy("litdata-tensor", tmp_path)
    (folder / "index.json").unlink()
    if text is not None:
        (folder / "index.json").write_text(text)
    with pytest.raises(
        SeqDataError, match=f"must have the 'index.json' that LitData writes .*{state}"
    ):
        open_store(folder, backend=Tokens())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"compression": "zstd"}, r"was written with compression \(zstd\)"),
        ({"encryption": {"a": 1}}, "was written with encryption"),
        ({"item_loader": "PyTreeLoader"}, "must hold tokens only, but .* item_loader=PyTreeLoader"),
        ({"data_format": ["int", "str"]}, "tokens only, but index.json says data_format="),
        ({"data_format": ["no_header_tensor:4"]}, "of a dtype that is not supported"),
        (
            {"data_format": ["no_header_tensor:17"]},
            r"items of .* tokens of int64, but index.json says",
        ),
    ],
)
def test_chunks_of_litdata_that_are_no_tokens_are_refused(tmp_path, config, message):
    folder = copy("litdata-tensor", tmp_path)
    edit(folder, lambda found: found["config"].update(config))
    with pytest.raises(SeqDataError, match=message):
        open_store(folder, backend=Tokens())


def test_the_dtypes_of_litdata_are_those_of_its_tables():
    if importlib.util.find_spec("litdata") is None:
        pytest.skip("litdata is not installed")
    from litdata.constants import _NUMPY_DTYPES_MAPPING, _TORCH_DTYPES_MAPPING
    from seqdata_tokens.litdata import _ARRAYS, _TENSORS

    for code, dtype in enumerate(_ARRAYS):
        assert np.dtype(dtype) == _NUMPY_DTYPES_MAPPING[code]
    for code, dtype in _TENSORS.items():
        assert str(_TORCH_DTYPES_MAPPING[code]).endswith(np.dtype(dtype).name)
