"""Locations that cannot be what they are given for: each is told, with what to do."""

import errno
import os
import shutil

import numpy as np
import pytest

from seqdata import ConfigError, open_store, write_store
from seqdata.errors import DataError, MissingShardError

LONG = "x" * 300
ROWS = [{"id": "a", "x": np.zeros((3, 2), "float32")}]
CHECK = "check the path"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Some of everything that a name may stand for."""
    monkeypatch.chdir(tmp_path)
    write_store("good", ROWS, progress=False)
    (tmp_path / "file").write_bytes(b"x")
    for link, target in (("self", "self"), ("dangling", "nowhere"), ("x.tar", "x.tar")):
        os.symlink(target, link)
    os.mkfifo("pipe")
    for name in ("pipes", "links"):
        (tmp_path / name).mkdir()
    os.mkfifo("pipes/x.parquet")
    os.symlink("nowhere", "links/x.parquet")
    for name, file, target in (
        ("itself", "seqdata.json", "seqdata.json"),
        ("nothing", "part-00000.arrow", "nowhere"),
        ("looped", "part-00000.arrow", "part-00000.arrow"),
    ):
        shutil.copytree("good", name)
        os.remove(f"{name}/{file}")
        os.symlink(target, f"{name}/{file}")


OPENED = {
    "self": (ConfigError, "'self' leads to itself by its links, must lead to a file or folder"),
    "self/x": (ConfigError, "leads to itself by its links"),
    "x.tar": (ConfigError, "leads to itself by its links"),
    "dangling": (ConfigError, "is a link to 'nowhere', which is not there, must lead to a store"),
    "file/x": (ConfigError, r"is not there \(nor is its parent\), must be a store's folder"),
    "pipe": (DataError, "is a pipe, a device or a socket, must be a store's folder"),
    "/dev/zero": (DataError, "is a pipe, a device or a socket"),
    "pipes": (DataError, r'"x.parquet"\): is a folder, pipe or device, must be an ordinary file'),
    "pipes/x.parquet": (DataError, "is a folder, pipe or device, must be an ordinary file"),
    "links": (MissingShardError, r'"x.parquet"\): is a link to nothing, must lead to a file'),
    "itself": (DataError, r'manifest \("seqdata.json"\): is a link that leads to itself, must'),
    "nothing": (MissingShardError, "is a link to nothing, must lead to a file; restore it"),
    "looped": (DataError, "is a link that leads to itself, must lead to a file; restore it"),
    "a\0b": (ConfigError, r"'a\\x00b' holds a NUL character, must be a path; check the path"),
    LONG: (ConfigError, r"'x{100}…' has a name that is too long, must be one of this file system"),
    f"{LONG}.parquet": (ConfigError, "has a name that is too long"),
    f"file:///{LONG}": (ConfigError, "has a name that is too long"),
    "~nobody-of-that-name/x": (ConfigError, "begins with '~' of nobody .*, must be a path"),
}


@pytest.mark.parametrize("location", OPENED, ids=lambda name: repr(name)[:20])
def test_what_cannot_be_opened_is_told(location):
    error, text = OPENED[location]
    with pytest.raises(error, match=text):
        open_store(location)


WRITTEN = {
    "file/x": "file/x: must be in a folder, but is below '.*/file', which is a file. Choose",
    "file/x/y": "is below '.*/file', which is a file",
    "pipe/x": "is below '.*/pipe', which is a file",
    "/dev/null/x": "is below '/dev/null', which is a file",
    "/proc/x": r"/proc/x: cannot be created \(.*\)\. Choose another path",
    "dangling": "must be a folder, or missing, but is a link to 'nowhere', which is missing",
    "self/x": "leads to itself by its links",
    "a\0b": "holds a NUL character",
    LONG: "has a name that is too long",
}


@pytest.mark.parametrize("form", ["arrow", "webdataset"])
@pytest.mark.parametrize("location", WRITTEN, ids=lambda name: repr(name)[:20])
def test_what_cannot_be_written_to_is_told(location, form):
    with pytest.raises(ConfigError, match=WRITTEN[location]):
        write_store(location, ROWS, format=form, progress=False)
    assert not os.path.lexists("nowhere")


def test_a_folder_that_may_not_be_entered_is_told(monkeypatch):
    def refused(path, **_):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("seqdata.storage.local_files.os.stat", refused)
    text = r"'good' cannot be looked at \(no permission\), must be in folders that may be entered"
    with pytest.raises(ConfigError, match=text):
        open_store("good")
