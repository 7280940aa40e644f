"""Locations that cannot be what they are given for: each is told, with what to do."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from seqdata import ConfigError, open_store, write_store
from seqdata.errors import DataError, MissingShardError
from seqdata.storage.local_files import is_remote, local_path, refuse_remote
from seqdata_testing.waiting import patient

LONG = "x" * 300
ROWS = [{"id": "a", "x": np.zeros((3, 2), "float32")}]
CHECK = "[Cc]heck the path"


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
    "self": (
        ConfigError,
        "'self' must lead to a file or folder, but its links lead back to itself",
    ),
    "self/x": (ConfigError, "its links lead back to itself"),
    "x.tar": (ConfigError, "its links lead back to itself"),
    "dangling": (ConfigError, "a store's folder, but is a link to 'nowhere', which is not there"),
    "file/x": (ConfigError, r"must be a store's folder, but is not there \(nor is its parent\)"),
    "pipe": (DataError, "must be a store's folder .*, but is a pipe, a device or a socket"),
    "/dev/zero": (DataError, "is a pipe, a device or a socket"),
    "pipes": (
        DataError,
        r'"x.parquet"\): must be an ordinary file, but is a pipe or device',
    ),
    "pipes/x.parquet": (DataError, "must be an ordinary file, but is a pipe or device"),
    "links": (MissingShardError, r'"x.parquet"\): must lead to a file, but is a link to nothing'),
    "itself": (
        DataError,
        r'manifest \("seqdata.json"\): must lead to a file, but is a link to itself',
    ),
    "nothing": (MissingShardError, "must lead to a file, but is a link to nothing. Restore it"),
    "looped": (DataError, "must lead to a file, but is a link to itself. Restore it"),
    "a\ud800b": (
        ConfigError,
        r"'a\\ud800b' must be a path in the encoding of this locale, utf-8, ",
    ),
    "a\0b": (ConfigError, r"'a\\x00b' must be a path, but holds a NUL character. Check the path"),
    LONG: (
        ConfigError,
        r"'x{100}…' must have a name that this file system allows, but has one that is too long",
    ),
    f"{LONG}.parquet": (ConfigError, "but has one that is too long"),
    f"file:///{LONG}": (ConfigError, "but has one that is too long"),
    "~nobody-of-that-name/x": (
        ConfigError,
        "must be a path, but begins with '~' of an unknown user",
    ),
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
    "self/x": "its links lead back to itself",
    "a\ud800b": r"but has '\\ud800'. Set one of UTF-8, such as LC_ALL=C.UTF-8, or PYTHONUTF8=1",
    "a\0b": "holds a NUL character",
    LONG: "but has one that is too long",
}


@pytest.mark.parametrize("form", ["arrow", "webdataset"])
@pytest.mark.parametrize("location", WRITTEN, ids=lambda name: repr(name)[:20])
def test_what_cannot_be_written_to_is_told(location, form):
    with pytest.raises(ConfigError, match=WRITTEN[location]):
        write_store(location, ROWS, format=form, progress=False)
    assert not os.path.lexists("nowhere")


@pytest.mark.slow
def test_a_name_that_the_locale_cannot_encode_is_told():
    code = """if True:
        from seqdata import ConfigError, open_store
        try:
            open_store("b\\xfccher/train")
        except ConfigError as error:
            print(error)
    """
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=patient(),
        check=True, env={**os.environ, **plain},
    )  # fmt: skip
    assert done.stdout.strip() == (
        r"location 'b\xfccher/train' must be a path in the encoding of this locale, ascii, "
        r"but has '\xfc'. Set one of UTF-8, such as LC_ALL=C.UTF-8, or PYTHONUTF8=1"
    )


def test_a_folder_that_may_not_be_entered_is_told(monkeypatch):
    def refused(path, **_):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("seqdata.storage.local_files.os.stat", refused)
    text = r"'good' must be in folders that may be entered, but there is no permission"
    with pytest.raises(ConfigError, match=text):
        open_store("good")


def test_the_secrets_of_a_url_are_not_shown():
    with pytest.raises(ConfigError, match=r"'s3://bucket/a' is remote \(s3\)\. Use a local path"):
        local_path("s3://someone:p4ssw0rd@bucket/a?X-Amz-Signature=s1gn4ture#t0k3n")


def test_options_of_a_local_path_are_refused():
    refuse_remote("data", None)
    with pytest.raises(ConfigError, match=r"^data: `remote` .*local path"):
        refuse_remote(Path("data"), "cache")


@pytest.mark.parametrize(
    ("location", "there"),
    [("data", False), ("file:///data", False), ("FILE:///data", False), (Path("s3:/a"), False),
     ("s3://bucket/data", True), ("memory://a", True), ("HTTPS://host/a\nb", True)],
)  # fmt: skip
def test_a_url_of_another_machine_is_told_from_a_path(location, there):
    assert is_remote(location) is there
