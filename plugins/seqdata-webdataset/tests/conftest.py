"""Shards for the tests: written by the webdataset library, or byte by byte."""

import io
import itertools
import json
import tarfile

import numpy as np
import pytest
from seqdata_webdataset import open_webdataset, write_webdataset

import tests.s3
from tests.few_shards import SHARD, files, rows

server = tests.s3.server


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own for each test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SEQDATA_CACHE", str(folder))
    return folder


def sample(number):
    rng = np.random.default_rng(number)
    steps = int(rng.integers(0, 9)) if number != 7 else 40_000
    return {
        "mel.npy": rng.normal(size=(steps, 3)).astype(np.float32),
        "tok.npy": rng.integers(0, 99, 2 * steps),
        "cls": number % 5,
        "txt": f"é {number}",
        "json": {"a": [1, 2], "b": number},
        "mean.npy": np.float32(number),
    }


@pytest.fixture(scope="session")
def sequences(shards):
    """What our store holds of the three shards."""
    return [
        {**one, "json": json.dumps(one["json"]).encode(), "cls": np.int64(one["cls"])}
        for one in shards[1]
    ]


@pytest.fixture(scope="session")
def shards(tmp_path_factory):
    """Three shards by the library, without an index: (folder, what is in them)."""
    import webdataset  # and torch, which the process that hands tests out does without

    folder = tmp_path_factory.mktemp("shards")
    samples = [sample(number) for number in range(30)]
    for shard in range(3):
        with webdataset.TarWriter(str(folder / f"x-{shard:03d}.tar"), mtime=0) as writer:
            for number in range(10 * shard, 10 * shard + 10):
                writer.write({"__key__": f"dir/u{number}", **samples[number]})
    return folder, samples


@pytest.fixture
def whole(tmp_path):
    """The files of a few shards by our writer, by their paths."""
    write_webdataset(tmp_path / "whole", rows(), shard_bytes=SHARD)
    return files(tmp_path / "whole")


@pytest.fixture
def folder(shards, tmp_path):
    """A copy of the three shards that a test may damage, with their indexes."""
    made = tmp_path / "data"
    made.mkdir()
    for path in shards[0].glob("*.tar"):
        (made / path.name).write_bytes(path.read_bytes())
    open_webdataset(made, index="build", progress=False)
    return made


@pytest.fixture(scope="session")
def npy():
    """Gives the bytes of an array as a file."""

    def give(array):
        content = io.BytesIO()
        np.save(content, array, allow_pickle=True)
        return content.getvalue()

    return give


class Tar:
    """Writes members as they are told."""

    def __init__(self, path, format=tarfile.USTAR_FORMAT):
        self.path = path
        self.format = format

    def write(self, members, *, end=True, **more):
        raw = b""
        for one in members:
            name, content = one[:2]
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for field, value in (one[2] if len(one) > 2 else {}).items():
                setattr(info, field, value)
            raw += info.tobuf(self.format) + content + bytes(-len(content) % 512)
        self.path.write_bytes(raw + (bytes(1024) if end else b""))
        return self.path


@pytest.fixture
def tar(tmp_path):
    """Gives a shard of members (name, bytes, fields of the header)."""

    def write(members, name="one.tar", format=tarfile.USTAR_FORMAT, end=True):
        return Tar(tmp_path / name, format).write(members, end=end)

    return write


@pytest.fixture
def opened(tar):
    """Opens a shard of members, with options."""

    numbers = itertools.count()

    def open_(members, **options):
        path = tar(members, name=f"{next(numbers)}.tar")
        return open_webdataset(path, index="build", progress=False, **options)

    return open_


@pytest.fixture(scope="session")
def s3(server):
    """The S3 API of this machine: (file system, options)."""
    return server.filesystem, server.storage_options
