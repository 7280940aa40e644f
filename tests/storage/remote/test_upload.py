"""A store is written here and sent, its last file last; the same call goes on after a failure."""

import hashlib
import json
import uuid

import fsspec
import pytest

from seqdata import Remote
from seqdata.errors import CacheError, ConfigError
from seqdata.storage.remote import upload as module
from seqdata.storage.remote.transport import make_writable_files
from seqdata.storage.remote.upload import _read_log, upload_store


class Plan:
    """Files a, b and the last one, z."""

    last = "z"

    def __init__(self, fail=False, old=(), **contents):
        self.contents = {"a": b"1", "b": b"2", "z": b"end", **contents}
        self.fail, self.leftovers, self.written, self.sent = fail, old, 0, None

    def check(self, files, sent, *, overwrite):
        self.sent = set(sent)
        if not overwrite and "z" in files.names():
            raise ConfigError("there is a store")

    def write(self, folder, *, overwrite):
        folder.mkdir(parents=True, exist_ok=True)
        self.written += 1
        for name, content in self.contents.items():
            (folder / name).write_bytes(content)

    def digests(self, folder):
        groups = [["a"], ["b"]]
        if self.fail:
            groups[1] = ["b", "missing"]
        return [
            {name: hashlib.sha256(self.contents.get(name, b"")).hexdigest() for name in group}
            for group in groups
        ]

    def old(self, files):
        return self.leftovers


@pytest.fixture
def location():
    url = f"memory://{uuid.uuid4().hex}/store"
    fsspec.filesystem("memory").makedirs(url.removeprefix("memory:/"))
    return url


@pytest.fixture
def remote(tmp_path):
    return Remote(cache_dir=tmp_path / "cache")


def send(location, remote, plan, *, resume=True, overwrite=False):
    upload_store(location, remote, plan, resume=resume, overwrite=overwrite)
    return contents(location)


def contents(location):
    system = fsspec.filesystem("memory")
    paths = system.ls(location.removeprefix("memory:/"), detail=False)
    return {path.rpartition("/")[2]: system.cat_file(path) for path in paths}


def test_all_files_come_there_and_nothing_stays_here(location, remote):
    plan = Plan()
    assert send(location, remote, plan) == plan.contents
    assert plan.sent == set()
    assert not list(remote.writing.iterdir())


def test_a_store_that_is_there_is_refused_before_anything_is_written(location, remote):
    send(location, remote, Plan())
    plan = Plan()
    with pytest.raises(ConfigError, match="there is a store"):
        send(location, remote, plan)
    assert plan.written == 0


def test_an_older_store_is_replaced_and_its_other_files_are_removed(location, remote):
    send(location, remote, Plan(c=b"old"))
    fsspec.filesystem("memory").pipe_file(f"{location}/c".removeprefix("memory:/"), b"old")
    assert send(location, remote, Plan(a=b"new", old=("a", "c")), overwrite=True) == {
        "a": b"new", "b": b"2", "z": b"end",
    }  # fmt: skip


@pytest.mark.parametrize("resume", [True, False])
def test_the_same_call_goes_on_after_what_was_sent(location, remote, resume):
    with pytest.raises(OSError, match="missing"):
        send(location, remote, Plan(fail=True))
    assert "z" not in contents(location)  # without its last file there is no store
    system = fsspec.filesystem("memory")
    before = system.modified(f"{location}/a".removeprefix("memory:/"))
    plan = Plan()
    assert send(location, remote, plan, resume=resume) == plan.contents
    assert {"a"} <= plan.sent
    assert (system.modified(f"{location}/a".removeprefix("memory:/")) == before) is resume


def test_one_process_at_a_time_writes_to_a_location(location, remote):
    class Nested(Plan):
        def write(self, folder, *, overwrite):
            with pytest.raises(ConfigError, match="one process at a time must write here, but"):
                send(location, remote, Plan())
            super().write(folder, overwrite=overwrite)

    assert send(location, remote, Nested()) == Plan().contents


@pytest.mark.parametrize(
    "content", [None, b"", b"7", b"[1]", b'"a"', b"[" * 100_000, b'{"a": 7, "b": ["x"]}']
)
def test_a_damaged_log_is_one_of_nothing(content, tmp_path):
    path = tmp_path / module._LOG_FILE
    if content is not None:
        path.write_bytes(content)
    assert _read_log(path) == {}


def test_what_was_sent_is_compared_with_what_is_there(location, remote, tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    files = make_writable_files(location, remote)
    log = module._UploadLog(tmp_path / "sent.json", {})
    assert not log.is_uploaded(files, "a", "digest")
    log.add("a", "digest", files.upload("a", tmp_path / "a"))
    assert list(json.loads((tmp_path / "sent.json").read_bytes())) == ["a"]
    again = module._UploadLog(tmp_path / "sent.json", _read_log(tmp_path / "sent.json"))
    assert again.is_uploaded(files, "a", "digest")
    assert not again.is_uploaded(files, "a", "another")
    files.remove("a")
    assert not again.is_uploaded(files, "a", "digest")


@pytest.mark.parametrize("cache", ["file/c", "file"])
def test_a_folder_that_cannot_be_made_is_an_error_of_the_cache(location, tmp_path, cache):
    (tmp_path / "file").write_text("x")
    with pytest.raises(
        CacheError,
        match=r"can be created and written to, but is not \(.*\). Pass Remote\(cache_dir",
    ):
        upload_store(
            location, Remote(cache_dir=tmp_path / cache), Plan(), resume=True, overwrite=False
        )
