"""A file comes whole, in parallel requests, and is what it must be; otherwise that is said."""

import hashlib
import os

import pytest

from seqdata import Remote
from seqdata.errors import CorruptShardError, DataError, FingerprintMismatch, MissingShardError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.remote import file_cache as module
from seqdata.storage.remote.file_cache import DownloadSpec, download
from seqdata.storage.remote.remote_files import FileStat

CONTENT = bytes(range(256)) * 10
SHA = hashlib.sha256(CONTENT).hexdigest()
PLACE = DataLocation(dataset="memory://d", shard=1, file="a")


class Files:
    """Files of a folder in memory: versions of one file, the last one stays."""

    location, remote = "memory://d", Remote(connections=3)

    def __init__(self, *versions):
        self.versions, self.ranges, self.stats = list(versions), [], []

    def stat(self, name, location=None):
        if self.stats:
            return self.stats.pop(0)
        return FileStat(len(self.versions[0]), "tag")

    def read(self, name, first, stop, location=None):
        self.ranges.append((first, stop))
        content = self.versions[0]
        if stop == len(content) and len(self.versions) > 1:
            self.versions.pop(0)
        return content[first:stop]


def fetch(files, tmp_path, size=2560, sha256=SHA, **options):
    path = tmp_path / "local"
    path.write_bytes(bytes(size))
    spec = DownloadSpec(files, "a", size, sha256, options.pop("stat", None), PLACE, **options)
    descriptor = os.open(path, os.O_RDWR)
    try:
        download(spec, descriptor)
    finally:
        os.close(descriptor)
    return path.read_bytes()


@pytest.mark.parametrize("request_bytes", [100, 1280, 2560, 1 << 20])
def test_a_file_comes_whole(request_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "REQUEST_BYTES", request_bytes)
    files = Files(CONTENT)
    assert fetch(files, tmp_path) == CONTENT
    assert len(files.ranges) == -(-len(CONTENT) // request_bytes)
    assert fetch(Files(CONTENT), tmp_path, sha256=None) == CONTENT


def test_an_empty_file_needs_no_request(tmp_path):
    files = Files(b"")
    assert fetch(files, tmp_path, 0, hashlib.sha256(b"").hexdigest()) == b""
    assert files.ranges == []


def test_another_size_is_said_before_anything_is_read(tmp_path):
    files = Files(CONTENT[:-1])
    with pytest.raises(CorruptShardError, match=r"bytes 2559\.\.2560: must have 2560 bytes, but"):
        fetch(files, tmp_path)
    assert files.ranges == []


def test_bytes_of_another_version_are_asked_for_again(tmp_path):
    assert fetch(Files(b"?" * len(CONTENT), CONTENT), tmp_path) == CONTENT


@pytest.mark.parametrize("error", [None, FingerprintMismatch])
def test_another_content_is_an_error_of_the_kind_that_was_asked_for(error, tmp_path):
    files = Files(b"?" * len(CONTENT))
    with pytest.raises(error or CorruptShardError, match=f"must have sha256 {SHA[:16]}, but has"):
        fetch(files, tmp_path, error=error)
    assert len(files.ranges) == 2


def test_a_file_that_is_replaced_meanwhile_is_said(tmp_path):
    files = Files(CONTENT)
    files.stats = [FileStat(len(CONTENT), "old")]
    with pytest.raises(DataError, match="memory://d shard 1"):
        fetch(files, tmp_path)
    assert fetch(Files(CONTENT), tmp_path, stat=FileStat(len(CONTENT), "tag")) == CONTENT


def test_an_error_of_one_request_ends_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "REQUEST_BYTES", 100)

    class Failing(Files):
        def read(self, name, first, stop, location=None):
            if first == 300:
                raise MissingShardError.at("gone")
            return super().read(name, first, stop, location)

    with pytest.raises(MissingShardError, match="gone"):
        fetch(Failing(CONTENT), tmp_path)
