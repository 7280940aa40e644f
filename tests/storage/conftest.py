"""A real S3 API on this machine, started once per process of tests, with one bucket."""

import uuid
from pathlib import Path

import pytest

import tests.s3
from seqdata import Remote
from seqdata.storage.arrow.write import write_arrow
from seqdata_testing.faults.network import before, folder_of, served
from seqdata_testing.s3 import KEYS
from tests.storage.remote.cached import SIZE
from tests.storage.remote.samples import write
from tests.storage.rows import FEW_ROWS

server = tests.s3.server


@pytest.fixture(scope="session")
def s3(server):
    """fsspec's file system over the server."""
    return server.filesystem


@pytest.fixture
def bucket(s3):
    """A bucket of its own."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    s3.mkdir(name)
    return name


@pytest.fixture
def remote(server, tmp_path):
    """Gives options: the test's own cache, and the server's address."""

    def made(endpoint=server.storage_options["endpoint_url"], **options):
        options.setdefault("cache_dir", tmp_path / "cache")
        storage_options = {**KEYS, "endpoint_url": endpoint}
        return Remote(storage_options=storage_options, **options)

    return made


@pytest.fixture
def faulty(server):
    """The same server behind one whose answers can be made to fail."""
    with served(before(server.host, server.port)) as made:
        yield made


@pytest.fixture
def web(tmp_path):
    """Files a, b, c and d of 1 MiB, each of one byte value."""
    folder = tmp_path / "data"
    folder.mkdir()
    for number, name in enumerate("abcd"):
        (folder / name).write_bytes(bytes([number]) * SIZE)
    with served(folder_of(folder)) as made:
        yield made


@pytest.fixture(scope="session")
def local_of_many(tmp_path_factory):
    return write(tmp_path_factory.mktemp("many") / "store", shard_bytes=30_000)


@pytest.fixture
def store_of_many(local_of_many):
    """A store of ten shards or more, served, and the bytes of its largest one and of the rest."""
    local = local_of_many
    assert len(local.manifest.shards) > 8
    largest = max(shard.bytes for shard in local.manifest.shards)
    shards = {shard.file for shard in local.manifest.shards}
    files = [one for one in Path(local.location).iterdir() if one.name not in shards]
    with served(folder_of(Path(local.location))) as made:
        yield local, made, largest, sum(one.stat().st_size for one in files)


@pytest.fixture
def there(tmp_path):
    """The location of a store in memory, and its files by name."""
    import fsspec

    write_arrow(tmp_path / "store", FEW_ROWS, shard_bytes=1)
    name = uuid.uuid4().hex
    system = fsspec.filesystem("memory")
    for path in (tmp_path / "store").iterdir():
        system.pipe_file(f"/{name}/{path.name}", path.read_bytes())
    return f"memory://{name}", lambda file: f"/{name}/{file}", system
