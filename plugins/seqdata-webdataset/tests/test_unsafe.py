"""Members that would run code, and locations that would: nothing of it is ever run."""

import bz2
import gzip
import io
import pickle
import tarfile
import uuid
import zipfile

import fsspec
import numpy as np
import pytest
from seqdata_webdataset import WebDataset, index_shards, open_webdataset
from seqdata_webdataset.schema import Extension, infer_specs

from seqdata import Remote, open_store, write_store
from seqdata.errors import ConfigError, DataError, DecodeError, SeqDataError, UnsafeContentError
from seqdata.protocols import Field
from seqdata.storage.data_location import DataLocation

EXTENSIONS = ("pyd", "pkl", "pickle", "pth", "pt", "dill", "joblib")


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, target):
        self.target = str(target)

    def __reduce__(self):
        return open, (self.target, "w")


def nested(name, payload):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as inner:
        info = tarfile.TarInfo(name)
        info.size = len(payload)
        inner.addfile(info, io.BytesIO(payload))
    return content.getvalue()


def zipped(name, payload):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as made:
        made.writestr(name, payload)
    return content.getvalue()


def object_array(payload_object):
    content = io.BytesIO()
    np.save(content, np.array([payload_object], dtype=object), allow_pickle=True)
    return content.getvalue()


def payloads(target):
    """Name of a member -> its bytes; each runs code where it is decoded by its name."""
    evil = Evil(target)
    raw = pickle.dumps(evil)
    found = {f"u0.{extension}": raw for extension in EXTENSIONS}
    found |= {f"u0.{extension.upper()}": raw for extension in EXTENSIONS}
    found |= {f"u0.x.{extension}": raw for extension in EXTENSIONS}
    found |= {f"u0.{extension}.gz": gzip.compress(raw) for extension in EXTENSIONS}
    found |= {f"u0.npy.{extension}": raw for extension in EXTENSIONS[:3]}
    found |= {f"u0.{extension.title()}.npy": raw for extension in EXTENSIONS}
    found |= {
        "u0.pyd.bz2": bz2.compress(raw),
        "u0.o.npy": object_array(evil),
        "u0.o.npz": zipped("a.npy", object_array(evil)),
        "u0.tar": nested("u0.pyd", raw),
        "u0.json": raw,
        "u0.txt": raw,
        "u0.cls": raw,
        "u0.bin": raw,
        "u0.wav": raw,
        "u0.npz": raw,
        "u0.flac": raw,
        "u0.py": b"open(%r, 'w')" % str(target),
        "__pyd__/u0.pyd": raw,
        ".pyd": raw,
        "u0": raw,
    }
    return found


NAMES = list(payloads("x"))
SCHEMAS = {
    "u0.o.npz": {"o.npz": {"a": "int64"}},
    "u0.npz": {"npz": {"a": "int64"}},
    "u0.json": {"json": int},
    "u0.flac": {"flac": "int16"},
}


def test_there_are_many_payloads():
    assert len(NAMES) >= 30


def test_the_payload_would_run(tmp_path):
    pickle.loads(pickle.dumps(Evil(tmp_path / "ran"))).close()
    assert (tmp_path / "ran").exists()


@pytest.fixture(params=["here", "memory"])
def placed(request, tmp_path):
    """Opens a shard where it lies, or what is sent of it to a URL."""
    folder = f"/unsafe-{uuid.uuid4().hex}"
    system = fsspec.filesystem("memory")

    def open_(path, **options):
        if request.param == "here":
            return open_webdataset(path, index="build", progress=False, **options)
        system.pipe_file(f"{folder}/{path.name}", path.read_bytes())
        return open_webdataset(
            f"memory:/{folder}/{path.name}", index="build", progress=False,
            remote=Remote(cache_dir=tmp_path / "shards"), **options,
        )  # fmt: skip

    yield open_
    if system.exists(folder):
        system.rm(folder, recursive=True)


@pytest.mark.parametrize("name", NAMES)
def test_no_payload_is_run(name, tar, npy, tmp_path, placed):
    target = tmp_path / "ran"
    path = tar([("u0.npy", npy(np.arange(3))), (name, payloads(target)[name])])
    try:
        store = placed(path, schema=SCHEMAS.get(name))
        columns = store.read(np.array([[0, 0, 3]]), list(store.fields))
        for column in columns.values():
            column[0]
    except SeqDataError as error:
        refused = error
    else:
        refused = None
    assert not target.exists()
    parts = set(name.lower().split("."))
    if parts & set(EXTENSIONS) and not name.startswith(("__", ".")):
        assert isinstance(refused, UnsafeContentError)
        assert refused.details["offset"] == 1536
        assert f"{refused.details['key']}.{refused.details['field']}" == name.lower()
        assert "Leave them out with `schema=" in str(refused)


def test_arrays_of_objects_are_refused(tar, npy, tmp_path):
    raw = object_array(Evil(tmp_path / "ran"))
    path = tar([("u0.npy", npy(np.arange(3))), ("u0.o.npy", raw)])
    with pytest.raises(UnsafeContentError, match=r"holds Python objects or records \(dtype \|O\)"):
        open_webdataset(path, index="build", progress=False)


def test_what_is_unsafe_may_be_left_out(tar, npy, tmp_path):
    raw = pickle.dumps(Evil(tmp_path / "ran"))
    path = tar([("u0.npy", npy(np.arange(3))), ("u0.pyd", raw)])
    store = open_webdataset(path, index="build", progress=False, schema={"pyd": None})
    assert list(store.fields) == ["npy"]
    assert not (tmp_path / "ran").exists()


def test_no_schema_makes_unsafe_members_safe(tar, npy, tmp_path):
    path = tar([("u0.npy", npy(np.arange(3))), ("u0.pyd", b"abc")])
    for said in (bytes, str, int, ...):
        with pytest.raises(UnsafeContentError):
            open_webdataset(path, index="build", progress=False, schema={"pyd": said})


@pytest.mark.parametrize(
    "location",
    ["pipe:touch ran", "pipe:touch ran.tar", "touch ran |.tar|", "x.tar::pipe:touch ran"],
)
def test_no_location_runs_a_program(location, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for open_ in (open_webdataset, lambda one: open_store(one, backend="webdataset")):
        with pytest.raises(UnsafeContentError, match=r"must be a path, but .* would run a program"):
            open_(location)
    with pytest.raises(SeqDataError):
        open_store(location)
    assert list(tmp_path.iterdir()) == []


SAYING = {"WDS_SECURE": "0", "SEQDATA_UNSAFE_DECODERS": "pyd", "UNSAFE_DECODERS": "pyd"}


def test_nothing_but_code_makes_members_run(tar, npy, tmp_path, monkeypatch):
    """No environment variable, no query of a URL, and nothing that lies beside the data."""
    for name, value in SAYING.items():
        monkeypatch.setenv(name, value)
    raw = pickle.dumps(Evil(tmp_path / "ran"))
    path = tar([("u0.npy", npy(np.arange(3))), ("u0.pyd", raw)])
    for location in (path, f"file://{path}", [path]):
        for schema in (None, {"pyd": "float32"}, {"pyd": Field("float32")}):
            with pytest.raises(UnsafeContentError):
                open_webdataset(location, index="build", schema=schema, progress=False)
    told = ("x", Field("float32"))  # as an index may have it
    for schema in (None, {"pyd": "float32"}):
        with pytest.raises(UnsafeContentError):
            infer_specs(
                [Extension("pyd", (), False, DataLocation(dataset="shards"), told)],
                schema,
                "shards",
            )
    with pytest.raises(SeqDataError):
        open_store(f"{path}?unsafe_decoders=pyd", backend="webdataset")
    assert not (tmp_path / "ran").exists()


def pickled_shard(tar, torch):
    def written(value):
        content = io.BytesIO()
        torch.save(value, content)
        return content.getvalue()

    return tar(
        [
            one
            for number in range(4)
            for one in (
                (f"u{number}.x.PYD", pickle.dumps(np.arange(number, dtype=np.float32))),
                (f"u{number}.pkl", pickle.dumps({"y": number, "z": [1, 2]})),
                (f"u{number}.pt", written({"w": torch.ones(number, 2, requires_grad=True)})),
            )
        ]
    )


READ = {"x.pyd": "float32", "pkl": {"y": int}, "pt": {"w": Field("float32", (2,), "time")}}


def test_code_may_name_what_is_read_though_it_runs(tar):
    torch = pytest.importorskip("torch")
    path = pickled_shard(tar, torch)
    index_shards(path, progress=False)
    backend = WebDataset(schema=READ, unsafe_decoders=frozenset({"pyd", "pkl", "pt"}))
    for store in (
        open_webdataset(path, schema=READ, unsafe_decoders={"pyd", "pkl", "pt"}, progress=False),
        pickle.loads(pickle.dumps(open_store(path, backend=backend))),
    ):
        assert store.lengths.tolist() == [0, 1, 2, 3]
        columns = store.read(np.array([[3, 1, 3]]), list(store.fields))
        assert columns["x.pyd"][0].tolist() == [1, 2]
        assert columns["pkl.y"][0].tolist() == [3]
        assert columns["pt.w"][0].tolist() == [[1, 1], [1, 1]]


def test_only_what_is_named_is_read(tar):
    path = pickled_shard(tar, pytest.importorskip("torch"))
    for names in ((), {"pyd"}, {"pyd", "pkl"}, {"pt", "pkl"}, {"pickle", "pth", "pkl", "pt"}):
        with pytest.raises(
            UnsafeContentError,
            match=r'members of extension "(x.pyd|pkl|pt)" must be plain data, but are',
        ):
            open_webdataset(path, index="build", schema=READ, unsafe_decoders=names, progress=False)


@pytest.mark.parametrize("name", ["u0.pyd.gz", "u0.pkl.pyd", "u0.pyd.npy", "u0.dill"])
def test_what_is_named_does_not_stand_for_more(name, tar, npy, tmp_path):
    raw = pickle.dumps(Evil(tmp_path / "ran"))
    path = tar([("u0.npy", npy(np.arange(3))), (name, raw)])
    with pytest.raises(UnsafeContentError):
        open_webdataset(path, index="build", unsafe_decoders={"pyd"}, progress=False)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (
            "pyd",
            r"`unsafe_decoders` must be a set of names, but is 'pyd'\. Pass for example {'pyd'}",
        ),
        (
            {"npy"},
            "`unsafe_decoders` must only have pyd, pkl, pickle, pth, pt, but has 'npy'. Leave",
        ),
        ({"dill", 3}, "`unsafe_decoders` must only have pyd, pkl.*, but has 'dill', 3"),
    ],
)
def test_names_of_decoders_that_cannot_be_meant_are_refused(names, text, folder):
    with pytest.raises(ConfigError, match=text):
        open_webdataset(folder, unsafe_decoders=names)


@pytest.mark.parametrize("said", [..., str, bytes, Field("str", (), None)])
def test_what_is_unpickled_must_be_said(said, tar, npy):
    path = tar([("u0.npy", npy(np.arange(3))), ("u0.pyd", pickle.dumps([1]))])
    text = "`schema` of 'pyd' must be the dtype of its members, which is not stored"
    with pytest.raises(ConfigError, match=text):
        open_webdataset(
            path, index="build", schema={"pyd": said}, unsafe_decoders={"pyd"}, progress=False
        )


@pytest.mark.parametrize("extension", ["pyd", "pth"])
def test_what_cannot_be_unpickled_is_an_error_with_its_place(extension, tar, npy):
    path = tar([("u0.npy", npy(np.arange(3))), (f"u0.{extension}", b"no such thing")])
    store = open_webdataset(
        path, index="build", schema={extension: int}, unsafe_decoders={extension}, progress=False
    )
    text = rf"must match `schema`, but cannot be decoded as .{extension} \(\w*Error: .*Restore"
    with pytest.raises(DecodeError, match=text) as caught:
        store.read(np.array([[0, 0, 3]]), [extension])[extension][0]
    assert caught.value.details["offset"] == 1536


def test_nothing_is_unpacked(folder):
    before = sorted(folder.rglob("*"))
    store = open_webdataset(folder)
    store.read(np.array([[0, 0, 0]]), list(store.fields))
    assert sorted(folder.rglob("*")) == before


def test_names_that_lead_out_of_a_folder_are_only_names(tar, npy):
    path = tar([("../../etc/x.npy", npy(np.arange(3))), ("/abs/y.npy", npy(np.arange(2)))])
    store = open_webdataset(path, index="build", progress=False)
    assert store.keys([0, 1]) == ["../../etc/x", "/abs/y"]


def test_writing_never_pickles(tmp_path):
    with pytest.raises((ConfigError, DataError)):
        write_store(tmp_path / "s", [{"x": np.array([object()])}], format="webdataset")
