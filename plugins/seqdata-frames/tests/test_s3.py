"""Tables with a row per timestep behind s3:// are the sequences of the local files."""

import gzip
import json

import pytest
from frames_samples import alike, sales, shuffle, write
from seqdata_frames import Frames

import tests.s3
from seqdata import Loader, MissingShardError, PluginHost, Windows, open_store
from seqdata.errors import CacheError, ConfigError
from seqdata_testing.s3 import check_equal_batches

remote, server, url = tests.s3.remote, tests.s3.server, tests.s3.url

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning"),  # pandas 3
    pytest.mark.filterwarnings("ignore:.*column 'time' has equal values"),
]
BY = {"group": "series", "order": "time"}
PLACES = {
    "one.parquet": "FrameStore",
    "hive": "FrameStore",
    "hive/": "FrameStore",
    "hive/day=*/*.parquet": "FrameStore",
    "hive/day={2,1}": "FrameStore",
    "one.csv": "MemoryStore",
    "csv/": "MemoryStore",
    "one.jsonl": "MemoryStore",
    "one.jsonl.gz": "MemoryStore",
}
READS = ("one.parquet", "hive/day=1/0.parquet", "hive/day=2/0.parquet")


@pytest.fixture
def folder(tmp_path):
    data, frame = tmp_path / "data", sales()
    for name in ("hive/day=1", "hive/day=2", "csv"):
        (data / name).mkdir(parents=True)
    write(shuffle(frame), data / "one.parquet")
    write(frame[:8], data / "hive" / "day=1" / "0.parquet")
    write(frame[8:], data / "hive" / "day=2" / "0.parquet")
    (data / "hive" / "_SUCCESS").write_text("")
    frame.to_csv(data / "one.csv", index=False)
    frame[:8].to_csv(data / "csv" / "part.2.csv", index=False)
    frame[8:].to_csv(data / "csv" / "part.10.csv", index=False)
    rows = frame.assign(time=frame["time"].astype(str)).to_dict("records")
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    (data / "one.jsonl").write_text(text)
    (data / "one.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    return data


def kind_of(store):
    return type(getattr(store, "base", store)).__name__


@pytest.mark.parametrize("place", PLACES)
def test_a_table_in_a_bucket_is_that_of_the_local_files(place, url, folder, remote, server):
    here = open_store(f"{folder}/{place}", **BY)
    there = open_store(f"{url}/{place}", remote=remote, **BY)
    assert kind_of(there) == kind_of(here) == PLACES[place]
    assert alike(there, here)
    assert there.fingerprint == here.fingerprint
    policy = Windows(2, batch_size=2)
    check_equal_batches(Loader(there, policy, seed=1), Loader(here, policy, seed=1))
    assert server.list_read()
    again = open_store(f"{url}/{place}", remote=remote, **BY)
    assert alike(again, here)
    assert again.fingerprint == here.fingerprint
    assert not server.list_read()


@pytest.mark.parametrize("place", ["one.parquet", "hive", "one.csv"])
def test_without_a_package_a_table_in_a_bucket_is_read_into_memory(place, url, folder, remote):
    host = PluginHost()
    here, there = (
        open_store(f"{where}/{place}", host=host, **options, **BY)
        for where, options in ((folder, {}), (url, {"remote": remote}))
    )
    assert kind_of(there) == "MemoryStore"
    assert alike(there, here)
    assert there.fingerprint == here.fingerprint


def test_locations_of_a_list_are_one_table(url, folder, remote):
    places = ("hive/day=1", "hive/day=2")
    here = open_store([f"{folder}/{place}" for place in places], **BY)
    there = open_store([f"{url}/{place}" for place in places], remote=remote, **BY)
    assert kind_of(there) == "FrameStore"
    assert alike(there, here)
    assert there.fingerprint == here.fingerprint


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("place", ["one.parquet", "hive", "one.csv"])
def test_workers_read_what_the_process_reads(method, place, url, folder, remote, server):
    there = open_store(f"{url}/{place}", remote=remote, **BY)
    here = open_store(f"{folder}/{place}", **BY)
    server.list_read()
    policy = Windows(2, batch_size=2)
    loader = Loader(there, policy, seed=1, num_workers=2, start_method=method)
    check_equal_batches(loader, Loader(here, policy, seed=1))
    assert not server.list_read()


def test_rows_that_were_sorted_are_kept_and_made_again_of_changed_files(
    url, folder, remote, server, kept
):
    frames = Frames(progress=False)
    there = open_store(f"{url}/one.parquet", backend=frames, remote=remote, **BY)
    assert alike(there, open_store(f"{folder}/one.parquet", **BY))
    sorted_in = there.base.sorted_in
    assert sorted_in.is_relative_to(remote.copies)
    made = (sorted_in / "index.npz").stat().st_mtime_ns
    again = open_store(f"{url}/one.parquet", backend=frames, remote=remote, **BY)
    assert again.base.version == there.base.version
    assert again.base.sorted_in == sorted_in
    assert (sorted_in / "index.npz").stat().st_mtime_ns == made
    assert server.list_read() == ["one.parquet"]
    write(shuffle(sales(seed=1)), folder / "one.parquet")
    server.filesystem.pipe_file(f"{url}/one.parquet", (folder / "one.parquet").read_bytes())
    changed = open_store(f"{url}/one.parquet", backend=frames, remote=remote, **BY)
    assert alike(changed, open_store(f"{folder}/one.parquet", **BY))
    assert changed.base.version != there.base.version
    assert not sorted_in.exists()  # only the rows of one version are kept


@pytest.mark.parametrize("method", ["spawn"])
def test_a_file_that_was_replaced_is_noticed_by_workers(method, url, remote, folder, server):
    there = open_store(f"{url}/hive", remote=remote, **BY)
    write(sales(seed=1)[:8], folder / "new.parquet")
    content = (folder / "new.parquet").read_bytes()
    server.filesystem.pipe_file(f"{url}/hive/day=1/0.parquet", content)
    loader = Loader(there, Windows(2, batch_size=2), num_workers=1, start_method=method)
    with pytest.raises(ConfigError, match=f"{url}/hive: must be the table that was opened"):
        list(loader)
    assert len(there[0]["load"]) == 5  # here the copies of the old version are still read


def test_an_object_that_is_gone_is_named(url, remote, server):
    open_store(f"{url}/hive/day={{1,2}}/0.parquet", remote=remote, **BY)
    server.filesystem.rm_file(f"{url}/hive/day=2/0.parquet")
    with pytest.raises(MissingShardError, match=r"hive/day=2.*is not there"):
        open_store(f"{url}/hive/day={{1,2}}/0.parquet", remote=remote, **BY)


def test_a_cache_without_room_says_which_file_needs_it(url, server, tmp_path):
    small = server.remote(tmp_path / "small", cache_bytes=100)
    with pytest.raises(CacheError, match=r'"one\.parquet"\): has \d+ bytes, .*Raise Remote\(cache'):
        open_store(f"{url}/one.parquet", remote=small, **BY)
