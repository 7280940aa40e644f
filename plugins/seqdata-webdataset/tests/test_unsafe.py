"""Members that would run code, and locations that would: nothing of it is ever run."""

import bz2
import gzip
import io
import pickle
import tarfile
import zipfile

import numpy as np
import pytest
from seqdata_webdataset import open_webdataset

from seqdata import open_store, write_store
from seqdata.errors import ConfigError, DataError, SeqDataError, UnsafeContentError

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


@pytest.mark.parametrize("name", NAMES)
def test_no_payload_is_run(name, tar, npy, tmp_path):
    target = tmp_path / "ran"
    path = tar([("u0.npy", npy(np.arange(3))), (name, payloads(target)[name])])
    try:
        store = open_webdataset(path, index="build", progress=False, schema=SCHEMAS.get(name))
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
        assert refused.facts["offset"] == 1536
        assert "must be plain data; leave them out with `schema`=" in str(refused)


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
        with pytest.raises(UnsafeContentError, match="would run a program, must be a path"):
            open_(location)
    with pytest.raises(SeqDataError):
        open_store(location)
    assert list(tmp_path.iterdir()) == []


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
