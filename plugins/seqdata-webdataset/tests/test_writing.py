"""Writing tar shards: all or nothing, gone on with, the same on any executor."""

import json
import uuid
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import fsspec
import numpy as np
import pytest
from seqdata_webdataset import index_shards, open_webdataset, write_webdataset

from seqdata import Remote, open_store, write_store
from seqdata.errors import ConfigError, DecodeError, IncompleteDatasetError
from seqdata.storage import write_files
from seqdata.storage.arrow.shuffled import draw_order
from seqdata.storage.indexed import index_folder
from tests.few_shards import SHARD, files, rows


def test_there_are_several_shards_with_an_index(whole):
    tars = [name for name in whole if name.endswith(".tar")]
    assert len(tars) > 4
    assert sorted(whole) == sorted([*tars, "seqdata-index/index.idx", "seqdata-index/shards.json"])


@pytest.mark.parametrize("make", [ThreadPoolExecutor, ProcessPoolExecutor])
@pytest.mark.slow
def test_bytes_do_not_depend_on_the_executor(tmp_path, whole, make):
    options = {"mp_context": get_context("spawn")} if make is ProcessPoolExecutor else {}
    with make(2, **options) as executor:
        write_webdataset(tmp_path / "s", rows(), shard_bytes=SHARD, executor=executor)
    assert files(tmp_path / "s") == whole


def test_writing_goes_on_where_it_failed(tmp_path, whole):
    with pytest.raises(DecodeError, match=r"sequence 30 .*must have dtype int32 .*, but has int64"):
        write_webdataset(tmp_path / "s", rows(wrong=30), shard_bytes=SHARD)
    with pytest.raises(IncompleteDatasetError):
        open_webdataset(tmp_path / "s")
    (aside,) = (tmp_path / "s").glob(".seqdata-tmp-*")
    kept = len(list(aside.glob("*.facts")))
    assert kept >= 3
    told = []
    write_webdataset(
        tmp_path / "s", rows(), shard_bytes=SHARD, progress=lambda *both: told.append(both)
    )
    assert files(tmp_path / "s") == whole
    assert told[-1][0] == 40


def failed(folder):
    with pytest.raises(DecodeError):
        write_webdataset(folder, rows(wrong=30), shard_bytes=SHARD)


def changed(number):
    for one in rows():
        yield {**one, "y": -1} if one["id"] == f"u{number}" else one


@pytest.mark.parametrize(
    ("sequences", "what"),
    [
        (changed(0), "sequence 0: must be the one that was written before the interruption"),
        (rows(3), "sequence 3: must be there, as it was written"),
    ],
)
def test_other_sequences_are_not_gone_on_with(tmp_path, sequences, what):
    failed(tmp_path / "s")
    with pytest.raises(DecodeError, match=what):
        write_webdataset(tmp_path / "s", sequences, shard_bytes=SHARD)
    write_webdataset(tmp_path / "s", rows(), shard_bytes=SHARD, resume=False)


def test_another_scheme_is_not_gone_on_with(tmp_path):
    failed(tmp_path / "s")
    with pytest.raises(
        ConfigError, match="`shard_bytes` must be 20000, as it was before the inter"
    ):
        write_webdataset(tmp_path / "s", rows(), shard_bytes=SHARD + 1)


def test_sequences_after_the_last_shard_are_not_gone_on_with(tmp_path, monkeypatch):
    monkeypatch.setattr(write_files, "commit", stop)
    with pytest.raises(KeyboardInterrupt):
        write_webdataset(tmp_path / "s", rows(38), shard_bytes=SHARD)
    monkeypatch.undo()
    with pytest.raises(
        DecodeError,
        match="sequence 38: must not exist, since the interrupted write ended before it",
    ):
        write_webdataset(tmp_path / "s", rows(), shard_bytes=SHARD)


def stop(*_):
    raise KeyboardInterrupt


def test_damaged_leftovers_are_written_again(tmp_path, whole):
    failed(tmp_path / "s")
    (aside,) = (tmp_path / "s").glob(".seqdata-tmp-*")
    (aside / "00000-00000.tar").write_bytes(b"damaged")
    facts = bytearray((aside / "00000-00001.facts").read_bytes())
    facts[facts.index(b'"sequences": ') + len(b'"sequences": ')] ^= 1  # one more, or one less
    (aside / "00000-00001.facts").write_bytes(facts)
    (aside / "00000-00002.facts").write_text(json.dumps({"number": 2}))
    write_webdataset(tmp_path / "s", rows(), shard_bytes=SHARD)
    assert files(tmp_path / "s") == whole


def test_shards_may_be_replaced(tmp_path):
    write_webdataset(tmp_path / "s", rows(), shard_bytes=SHARD)
    with pytest.raises(
        ConfigError, match=r"must be an empty folder, but holds 'shard-000000.tar'. Choo"
    ):
        write_webdataset(tmp_path / "s", rows(4), shard_bytes=SHARD)
    store = write_webdataset(tmp_path / "s", rows(4), shard_bytes=SHARD, overwrite=True)
    assert (len(store), store.shards) == (4, ["shard-000000.tar"])
    assert len(files(tmp_path / "s")) == 3


def test_shards_of_others_are_never_replaced(tmp_path):
    (tmp_path / "theirs-7.tar").touch()
    with pytest.raises(
        ConfigError, match=r"must be an empty folder, but holds 'theirs-7.tar'. Choose"
    ):
        write_webdataset(tmp_path, rows(), shard_bytes=SHARD, overwrite=True)
    write_store(tmp_path / "arrow", [[1]])
    with pytest.raises(ConfigError, match=r"already holds a store. Choose another folder"):
        write_webdataset(tmp_path / "arrow", rows(), shard_bytes=SHARD, overwrite=True)


def test_parts_are_drawn_one_after_the_other(tmp_path, whole):
    parts = [lambda: list(rows())[:15], lambda: list(rows())[15:]]
    write_webdataset(tmp_path / "s", parts, shard_bytes=SHARD)
    assert files(tmp_path / "s") == whole


def test_without_ids_samples_are_numbered(tmp_path):
    store = write_store(tmp_path / "s", [[1, 2], [3]], format="webdataset")
    assert store.keys([0, 1]) == ["000000000", "000000001"]
    assert list(store.fields) == ["x"]


def test_ids_may_be_kept_as_a_field(tmp_path):
    store = write_store(
        tmp_path / "s", [{"id": "a.b", "x": [1]}, {"id": "a.c", "x": [2]}],
        format="webdataset", key="",
    )  # fmt: skip
    assert store.read(np.array([[1, 0, 1]]), ["id"])["id"] == ["a.c"]


def test_what_the_error_of_a_key_says_keeps_ids_that_are_no_field(tmp_path):
    rows = [{"id": "a.b", "x": [1]}, {"id": "a.c", "x": [2]}]
    source = open_store(rows).select("x")
    with pytest.raises(
        DecodeError, match=r"or pass `key=''` to number the samples and keep ids as a field$"
    ):
        write_store(tmp_path / "s", source, format="webdataset")
    store = write_store(tmp_path / "s", source, format="webdataset", key="")
    assert [row["id"] for row in store] == ["a.b", "a.c"]
    assert store.keys([0, 1]) == ["000000000", "000000001"]


@pytest.mark.parametrize("name", ["a.b", "", "__x__/y"])
def test_ids_that_can_be_no_keys_are_refused(tmp_path, name):
    with pytest.raises(
        DecodeError, match="the id must be a valid key of a tar shard, not empty, w"
    ):
        write_store(tmp_path / "s", [{"id": name, "x": [1]}], format="webdataset")


def test_one_id_twice_is_refused(tmp_path):
    twice = [{"id": "a", "x": [1]}, {"id": "b", "x": [1]}, {"id": "a", "x": [1]}]
    with pytest.raises(DecodeError, match=r"key .a. must occur once|but 'a' is also the id"):
        write_store(tmp_path / "s", twice, format="webdataset")
    with pytest.raises(DecodeError, match="but 'a' is also the id"):
        write_store(tmp_path / "s2", twice, format="webdataset", shard_bytes=1)
    assert not (tmp_path / "s2").exists()


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (
            {"X": [1], "x": [2]},
            "must have different extensions, but 'X' and 'x' would both be 'x.npy'",
        ),
        ({"a/b": [1]}, "must be a plain extension, .* would get 'a/b.npy'"),
        ({"pt": [1]}, "not one of pickled data, but field 'pt' would get 'pt.npy'"),
    ],
)
def test_names_that_can_be_no_extensions_are_refused(tmp_path, row, what):
    with pytest.raises(ConfigError, match=what):
        write_store(tmp_path / "s", [row], format="webdataset")


def test_the_size_of_a_shard_is_at_least_one_byte(tmp_path):
    with pytest.raises(ConfigError, match="`shard_bytes` must be an integer of at least 1"):
        write_webdataset(tmp_path / "s", rows(), shard_bytes=0)


def test_a_store_becomes_tar_and_arrow_again(tmp_path):
    first = write_store(tmp_path / "a", rows())
    spans = np.stack([np.arange(40), np.zeros(40), first.lengths], axis=1).astype(np.int64)

    def of(store):
        columns = store.read(spans, ["x", "y"])
        for number, name in enumerate(store.keys(np.arange(40))):
            yield {"id": name, "x": columns["x"][number], "y": columns["y"][number][0]}

    tar = write_store(tmp_path / "t", of(first), format="webdataset")
    again = write_store(tmp_path / "b", of(tar))
    assert again.fingerprint == first.fingerprint
    assert open_store(tmp_path / "t").fields == {"x": first.fields["x"], "y": first.fields["y"]}


# ---- in a random order


def shuffled(folder, sequences, **options):
    return write_webdataset(folder, sequences, shard_bytes=SHARD, shuffle=7, **options)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixed") / "s"
    shuffled(folder, list(rows()))
    return files(folder)


@pytest.mark.parametrize(
    "give",
    [iter, lambda all_rows: [lambda: all_rows[:15], lambda: iter(all_rows[15:])]],
    ids=["generator", "parts"],
)
def test_two_passes_write_the_same_shards_as_one(tmp_path, mixed, give):
    with ThreadPoolExecutor(2) as pool:
        store = shuffled(tmp_path / "s", give(list(rows())), executor=pool)
    assert files(tmp_path / "s") == mixed
    assert store.keys([0, 39]) == [f"u{number}" for number in draw_order(7, 40)[[0, 39]]]


def test_a_sample_without_an_id_has_the_number_that_it_has_in_order(tmp_path):
    given = [{"x": np.arange(number), "y": number} for number in range(9)]
    straight = write_webdataset(tmp_path / "straight", given, shard_bytes=SHARD)
    store = shuffled(tmp_path / "s", given)
    assert {row["id"]: row["y"] for row in store} == {row["id"]: row["y"] for row in straight}
    assert [row["y"] for row in store] == draw_order(7, 9).tolist()
    numbered = shuffled(tmp_path / "numbered", iter(given), key="")
    assert numbered.keys([0, 8]) == ["000000000", "000000008"]
    assert [row["y"] for row in numbered] == draw_order(7, 9).tolist()


def test_a_random_order_continues_in_either_pass_with_its_seed_only(tmp_path, mixed, monkeypatch):
    with pytest.raises(DecodeError, match=r"sequence 30 .*must have dtype int32 .*, but has int64"):
        shuffled(tmp_path / "s", rows(wrong=30))
    with pytest.raises(ConfigError, match="`shuffle` must be 7, as it was before the interruption"):
        write_webdataset(tmp_path / "s", rows(), shard_bytes=SHARD, shuffle=8)
    with monkeypatch.context() as patch:
        patch.setattr(write_files, "_check_keys", stop)
        with pytest.raises(KeyboardInterrupt):
            shuffled(tmp_path / "s", rows())
    assert list((tmp_path / "s").glob(".seqdata-tmp-*/*.facts"))
    shuffled(tmp_path / "s", rows())
    assert files(tmp_path / "s") == mixed


@pytest.mark.parametrize("indexed", ["beside the shards", "on this machine"])
def test_shards_that_are_written_again_to_a_url_are_read_as_they_are_now(
    indexed, tmp_path, monkeypatch
):
    """Their index may be in the cache, of a time when nothing could be written to the URL."""

    def refuse(*given):
        raise ConfigError("it cannot be written to")

    url, remote = f"memory://again-{uuid.uuid4().hex}", Remote(cache_dir=tmp_path / "cache")
    options = {"format": "webdataset", "remote": remote}
    try:
        for number in range(3):
            rows = [{"x": np.arange(300 + number) * i, "id": f"r{number}-{i}"} for i in range(5)]
            written = write_store(url, rows, **options, overwrite=number > 0)
            for store in (written, open_webdataset(url, remote=remote)):
                assert store.ids[:] == [row["id"] for row in rows]
                assert [row["x"].tolist() for row in store] == [row["x"].tolist() for row in rows]
            if indexed == "on this machine":
                with monkeypatch.context() as patch:
                    patch.setattr(index_folder, "make_writable_files", refuse)
                    index_shards(url, rebuild=True, remote=remote)
    finally:
        fsspec.filesystem("memory").rm(url.removeprefix("memory:/"), recursive=True)


def test_an_array_of_so_many_dimensions_that_its_header_is_long_is_written_as_numpy_writes_it(
    tmp_path,
):
    values = np.arange(2.0).reshape(*[1] * 31, 2)
    write_store(
        tmp_path / "tar", [{"x": [1, 2], "v": values}], format="webdataset", axes={"v": None}
    )
    assert np.array_equal(open_store(tmp_path / "tar")[0]["v"], values)
