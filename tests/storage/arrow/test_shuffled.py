"""Writing in a random order: in one pass or two, the same bytes, and continued where it stopped."""

import itertools
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from seqdata.api import open_store, write_store
from seqdata.errors import ConfigError, DecodeError, IncompleteDatasetError
from seqdata.storage.arrow.manifest import MANIFEST
from seqdata.storage.arrow.shuffled import draw_order
from seqdata.storage.arrow.write import write_arrow
from seqdata.storage.digest_trailer import add_digest, read_with_digest
from seqdata.storage.writing.staging_dir import FIRST_PASS

COUNT = 60
SEED = 7
SHARD = 600  # bytes: some ten sequences


def rows(count=COUNT):
    return [{"x": np.arange(number % 5), "y": number} for number in range(count)]


class Stop(Exception):
    pass


def stopping(at):
    """Yield sequences, and fail in place of one of them."""
    for number, row in enumerate(rows()):
        if number == at:
            raise Stop
        yield row


def write(folder, sequences, **options):
    return write_arrow(folder, sequences, **{"shuffle": SEED, "shard_bytes": SHARD, **options})


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def due(tmp_path_factory):
    folder = tmp_path_factory.mktemp("due") / "store"
    write(folder, rows())
    return content(folder)


def part(first, stop):
    return rows()[first:stop]


def list_inputs(folder):
    """Return name -> the same sequences in another form, and the passes that it is written in."""
    store = write_arrow(folder / "source", rows(), shard_bytes=400)
    table = pa.table({"x": [row["x"] for row in rows()], "y": range(COUNT)})
    parquet.write_table(table, folder / "table.parquet", row_group_size=7)
    feather.write_feather(table, folder / "table.feather", compression="uncompressed")
    url = f"memory://{folder.parent.name}/{folder.name}"
    return {
        "list": (rows(), 1),
        "table": (table, 1),
        "store": (store, 1),
        "view": (open_store(folder / "source").select("x", "y"), 1),
        "path": (folder / "source", 1),
        "stores": ([store.take(range(20)), store.take(range(20, COUNT))], 1),
        "arrow": (folder / "table.feather", 1),
        "parquet": (folder / "table.parquet", 2),
        "url": (write_store(url, store), 2),
        "remote and local": ([open_store(url).take(range(9)), store.take(range(9, COUNT))], 2),
        "generator": (iter(rows()), 2),
        "dict": (dict(enumerate(rows())).values(), 2),
        "parts": ([lambda: iter(part(0, 25)), lambda: [], lambda: part(25, COUNT)], 2),
    }


NAMES = [
    "list", "table", "store", "view", "path", "stores", "arrow", "parquet", "url",
    "remote and local", "generator", "dict", "parts",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_bytes_depend_on_the_sequences_and_the_seed_only(tmp_path, due, name):
    inputs = list_inputs(tmp_path)
    assert [*inputs] == NAMES
    sequences, passes = inputs[name]
    told = []
    store = write_store(
        tmp_path / "store", sequences, shuffle=SEED, shard_bytes=SHARD,
        progress=lambda count, size: told.append(count),
    )  # fmt: skip
    assert content(tmp_path / "store") == due
    assert store.keys(range(COUNT)) == [*map(str, draw_order(SEED, COUNT))]
    falls = sum(later < earlier for earlier, later in itertools.pairwise(told))
    assert falls == passes - 1
    assert told[-1] == COUNT


@pytest.mark.parametrize("sequences", [rows, lambda: iter(rows()), lambda: [rows]])
def test_the_bytes_do_not_depend_on_the_executor(tmp_path, due, sequences):
    with ThreadPoolExecutor(2) as pool:
        write(tmp_path / "store", sequences(), executor=pool)
    assert content(tmp_path / "store") == due


def test_a_sequence_has_the_content_that_it_has_in_order(tmp_path):
    given = [{"id": f"utt-{number}", **row} for number, row in enumerate(rows())]
    for folder, sequences in (("named", given), ("numbered", rows())):
        straight = write_arrow(tmp_path / folder / "straight", sequences)
        for seed in range(3):
            mixed = write_arrow(tmp_path / folder / str(seed), iter(sequences), shuffle=seed)
            found, expected = ({row["id"]: row for row in store} for store in (mixed, straight))
            assert found.keys() == expected.keys()
            assert [*found] != [*expected]
            for name, row in found.items():
                np.testing.assert_equal(row, expected[name])


def test_ids_of_numbers_are_texts_that_are_stored(tmp_path):
    store = write(tmp_path / "store", rows())
    assert list(store.fields) == ["id", "x", "y"]
    assert store.manifest.key == "id"
    numbered = write(tmp_path / "numbered", iter(rows()), key="")
    assert list(numbered.fields) == ["x", "y"]
    assert numbered.keys([0, 1]) == ["0", "1"]
    assert [row["y"] for row in numbered] == draw_order(SEED, COUNT).tolist()


def test_the_manifest_has_the_seed_and_the_fingerprint_does_not_depend_on_it(tmp_path, due):
    store = write(tmp_path / "store", rows())
    assert json.loads(due[MANIFEST])["shuffle"] == store.manifest.shuffle == SEED
    copied = write_arrow(tmp_path / "copied", list(store), shard_bytes=SHARD)
    assert copied.manifest.shuffle is None
    assert "shuffle" not in json.loads((tmp_path / "copied" / MANIFEST).read_bytes())
    assert copied.fingerprint == store.fingerprint


def test_a_store_at_a_url_is_written_in_two_passes_too(tmp_path, due):
    url = f"memory://{tmp_path.parent.name}-{tmp_path.name}/to"
    store = write_store(url, iter(rows()), shuffle=SEED, shard_bytes=SHARD)
    assert store.manifest.shuffle == SEED
    assert store.fingerprint == json.loads(due[MANIFEST])["fingerprint"]


def test_a_store_is_replaced_by_itself_in_a_random_order(tmp_path, due):
    store = write_arrow(tmp_path / "store", rows(), shard_bytes=300)
    write_store(tmp_path / "store", store, shuffle=SEED, shard_bytes=SHARD, overwrite=True)
    assert content(tmp_path / "store") == due


def test_no_more_than_one_pass_is_on_the_disk_at_the_end_nor_after_an_early_error(tmp_path):
    write(tmp_path / "store", iter(rows()))
    assert all(path.is_file() for path in (tmp_path / "store").iterdir())
    with pytest.raises(Stop):
        write(tmp_path / "early", stopping(3))
    with pytest.raises(DecodeError, match="the id must be unique, but 'a' is also the id of"):
        write(tmp_path / "twice", ({"id": "a", "x": [1]} for _ in range(COUNT)))
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


# ---- continued where it stopped


def stop_in_second_pass(folder, monkeypatch, shards, sequences=None):
    """Write up to a number of shards of the second pass."""
    rename = os.replace
    written = []

    def fails(source, target):
        name = Path(target).name
        if name.endswith(".facts") and FIRST_PASS not in Path(target).parts:
            written.append(name)
            if len(written) > shards:
                raise Stop
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fails)
        with pytest.raises(Stop) as caught:
            write(folder, iter(rows()) if sequences is None else sequences)
    return caught.value


@pytest.mark.parametrize("at", [25, 40, 59])
def test_the_first_pass_continues_after_its_shards(tmp_path, due, at):
    folder, told = tmp_path / "store", []
    with pytest.raises(Stop) as caught:
        write(folder, stopping(at))
    notes = [note for note in caught.value.__notes__ if "are kept" in note]
    assert len(notes) == 1
    assert "continues after them, or starts again with `resume=False`" in notes[0]
    with pytest.raises(IncompleteDatasetError, match=r"[1-9] finished shards \(\d+ sequences\)"):
        open_store(folder)
    (kept,) = folder.glob(f".seqdata-tmp-*/{FIRST_PASS}/.seqdata-tmp-*")
    shards = {path.name for path in kept.glob("*.arrow")}
    write(folder, iter(rows()), progress=lambda count, size: told.append(count))
    assert content(folder) == due
    assert shards
    assert told[0] > 1, "shards are not written again"


@pytest.mark.parametrize("shards", [0, 1, 3])
def test_the_second_pass_continues_and_the_first_is_not_drawn_again(
    tmp_path, due, monkeypatch, shards
):
    folder, drawn = tmp_path / "store", []
    error = stop_in_second_pass(folder, monkeypatch, shards)
    kept = (
        f"{shards} finished shards"
        if shards
        else "all sequences are kept in the order given: the "
        "same call continues with the second pass, or starts again with `resume=False`"
    )
    assert [note.startswith(kept) for note in error.__notes__] == [True]
    with pytest.raises(IncompleteDatasetError, match="the same call or command"):
        open_store(folder)

    def watched():
        for row in rows():
            drawn.append(row["y"])
            yield row

    write(folder, watched())
    assert content(folder) == due
    assert drawn == [0]


def test_parts_continue_with_the_second_pass_too(tmp_path, due, monkeypatch):
    parts = [list, lambda: part(0, 25), lambda: part(25, COUNT)]
    stop_in_second_pass(tmp_path / "store", monkeypatch, 1, parts)
    write(tmp_path / "store", parts)
    assert content(tmp_path / "store") == due


def test_one_pass_continues_with_the_same_order(tmp_path, due, monkeypatch):
    folder = tmp_path / "store"
    stop_in_second_pass(folder, monkeypatch, 2, rows())
    assert not list(folder.glob(f".seqdata-tmp-*/{FIRST_PASS}"))
    kept = {path.name for path in folder.glob(".seqdata-tmp-*/*.facts")}
    assert len(kept) == 2
    write(folder, rows())
    assert content(folder) == due


def test_what_was_begun_in_one_pass_continues_in_two(tmp_path, due, monkeypatch):
    stop_in_second_pass(tmp_path / "store", monkeypatch, 2, rows())
    write(tmp_path / "store", iter(rows()))
    assert content(tmp_path / "store") == due


@pytest.mark.parametrize("stopped", ["first", "second", "one"])
@pytest.mark.parametrize(("seed", "found"), [(8, "8"), (None, "None")])
def test_another_seed_does_not_continue(tmp_path, due, monkeypatch, stopped, seed, found):
    folder = tmp_path / "store"
    if stopped == "first":
        with pytest.raises(Stop):
            write(folder, stopping(40))
    else:
        stop_in_second_pass(folder, monkeypatch, 1, rows() if stopped == "one" else None)
    text = f"`shuffle` must be 7, as it was before the interruption, but is {found}. Pass the same"
    with pytest.raises(ConfigError, match=text):
        write(folder, iter(rows()), shuffle=seed)
    write(folder, iter(rows()))
    assert content(folder) == due


def test_a_seed_does_not_continue_what_has_none(tmp_path):
    with pytest.raises(Stop):
        write(tmp_path / "store", stopping(40), shuffle=None)
    text = "`shuffle` must be None, as it was before the interruption, but is 7. Pass the same, or"
    with pytest.raises(ConfigError, match=text):
        write(tmp_path / "store", iter(rows()))


def test_an_earlier_release_recorded_no_seed(tmp_path):
    folder = tmp_path / "store"
    with pytest.raises(Stop):
        write(folder, stopping(40), shuffle=None)
    (path,) = folder.glob(".seqdata-tmp-*/scheme.json")
    recorded = json.loads(read_with_digest(path))
    assert recorded.pop("shuffle", 0) is None
    path.write_bytes(add_digest(json.dumps(recorded).encode(), path.name))
    with pytest.raises(ConfigError, match="`shuffle` must be None, as it was before the interrup"):
        write(folder, iter(rows()))
    assert len(write(folder, iter(rows()), shuffle=None)) == COUNT


@pytest.mark.parametrize("name", [MANIFEST, "part-00001.arrow", "part-00001.crc"])
def test_a_first_pass_with_missing_files_is_written_again(tmp_path, due, monkeypatch, name):
    stop_in_second_pass(tmp_path / "store", monkeypatch, 1)
    (path,) = (tmp_path / "store").glob(f".seqdata-tmp-*/{FIRST_PASS}/{name}")
    path.unlink()
    write(tmp_path / "store", iter(rows()))
    assert content(tmp_path / "store") == due


def test_writing_may_begin_again_with_another_seed(tmp_path, monkeypatch):
    for number, stop in enumerate((0, 2)):
        folder = tmp_path / str(number)
        stop_in_second_pass(folder, monkeypatch, stop)
        store = write(folder, iter(rows()), shuffle=8, resume=False)
        assert store.keys(range(COUNT)) == [*map(str, draw_order(8, COUNT))]
        assert all(path.is_file() for path in folder.iterdir())


def test_other_sequences_do_not_continue(tmp_path, due, monkeypatch):
    folder = tmp_path / "store"
    stop_in_second_pass(folder, monkeypatch, 1)
    for other in ({"x": np.arange(3), "y": 0}, {"x": np.arange(0.0), "y": 0}, {"x": np.arange(2)}):
        text = "sequence 0: must be the one that was written before the interruption, but is anoth"
        with pytest.raises(DecodeError, match=text):
            write(folder, iter([other, *rows()[1:]]))
    with pytest.raises(ConfigError, match="must hold at least one sequence"):
        write(folder, iter([]))
    stop_in_second_pass(tmp_path / "list", monkeypatch, 1, rows())
    with pytest.raises(DecodeError, match="must be the one that was written before"):
        write(tmp_path / "list", rows(3 * COUNT))  # others are in between


# ---- the line on the terminal


def test_a_bar_says_which_pass_it_is(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    write(tmp_path / "two", iter(rows()), progress=True)
    shown = capsys.readouterr().err
    assert "writing two, pass 2 of 2" in shown
    assert f"{COUNT} sequences, " in shown
    write(tmp_path / "one", rows(), progress=True)
    shown = capsys.readouterr().err
    assert "writing one" in shown
    assert "pass" not in shown
