"""A writer that gets SIGKILL while it sends a store to a bucket: no store, and gone on with."""

import os
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from seqdata import ConfigError, IncompleteDatasetError, MissingShardError, open_store
from seqdata_testing.faults.network import Answer, before, served
from seqdata_testing.waiting import patient
from tests.preloaded import python
from tests.storage.remote.samples import read_all, write

CHILD = """
import os, sys
print(os.getpid(), flush=True)  # of what is forked, not of the program that asked for it
from seqdata import Remote
from seqdata_testing.s3 import KEYS
from tests.storage.remote.samples import write
location, endpoint, cache = sys.argv[1:]
write(location, remote=Remote(cache_dir=cache, storage_options={**KEYS, "endpoint_url": endpoint}))
"""
LAST = "seqdata.json"
ROOT = Path(__file__).parents[3]


@contextmanager
def killing(server, name, stored):
    """Serve the bucket, and kill whoever sends a file, before it is there or once it is."""
    known, pids = before(server.host, server.port), []

    def source(asked):
        hit = pids and asked.method == "PUT" and name in asked.path
        answer = known(asked) if stored or not hit else Answer(503)
        if hit:
            os.kill(pids.pop(), signal.SIGKILL)
        return answer

    with served(source) as server:
        yield server, pids


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("part-00000.arrow", False),
        ("lengths-time", True),
        (LAST, False),
        (LAST, True),
        pytest.param("part-00000.arrow", True, marks=pytest.mark.nightly),
        pytest.param("lengths-time", False, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.slow
def test_a_writer_that_is_killed_while_it_sends_leaves_no_half_store_and_is_gone_on_with(
    s3, server, bucket, remote, tmp_path, name, stored
):
    location = f"s3://{bucket}/store"
    with killing(server, name, stored) as (front, pids):
        command = [python(), "-c", CHILD, location, front.url, str(tmp_path / "cache")]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as child:
            pids.append(int(child.stdout.readline()))
            assert child.wait(timeout=patient()) == -signal.SIGKILL
        sent = {path for method, path in front.requests if method == "PUT"}
    local = write(tmp_path / "local")
    if name == LAST and stored:  # it was the last thing to do
        assert read_all(open_store(location, remote=remote())) == read_all(local)
        with pytest.raises(ConfigError, match=r"already contains a store. Choose another location"):
            write(location, remote=remote())
        return
    with pytest.raises((IncompleteDatasetError, MissingShardError), match="is not there"):
        open_store(location, remote=remote())
    assert read_all(write(location, remote=remote())) == read_all(local)
    assert not list((tmp_path / "cache" / "seqdata-writing").iterdir())
    for path in (tmp_path / "local").iterdir():
        assert s3.cat_file(f"{bucket}/store/{path.name}") == path.read_bytes()
    assert sent  # it was killed while it sent, not before
