"""From a location to a store: arguments, what is kept from earlier, and one that is read once."""

import pickle

import pytest

from seqdata.errors import ConfigError, DataError, SeqDataWarning
from seqdata.storage.indexed import index_folder
from seqdata.storage.indexed.audit import audit_files
from seqdata.storage.indexed.opening import check_arguments, index_files, open_files, open_once
from seqdata.storage.indexed.user_format import UserFormat
from seqdata.storage.local_files import write_atomically
from seqdata_testing.stores import check_reads
from tests.index_files import index_path
from tests.storage.indexed.records import (
    Documents,
    Records,
    sequences,
    write_documents,
    write_file,
    write_files,
)

FORMAT = UserFormat(Records())
ROWS = sequences(6)


@pytest.fixture
def folder(tmp_path):
    return write_files(tmp_path / "data", ROWS, per_file=3)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("sometimes", None, "unique"), "/d: `verify` must be one of"),
        ((None, "make", "unique"), "/d: `index` must be 'build' or None, but is 'make'. Leave it"),
        (
            (None, None, "twice"),
            "/d: `keys` must be one of unique, by_shard, but is 'twice'. Leave",
        ),
    ],
)
def test_arguments_are_checked_first(arguments, text):
    with pytest.raises(ConfigError, match=text):
        check_arguments("/d", *arguments)


def test_valid_arguments_pass():
    for verify in (None, "off", "first_read", "always"):
        for index in (None, "build"):
            check_arguments("/d", verify, index, "by_shard")


def test_ids_may_be_unique_in_each_file_only(folder):
    write_file(folder / "more" / "part-1.recs", ROWS[:3])
    text = (
        r'sequence 3 \("more/part-1.recs"\): the id must be unique, but .s0-000. is also the id of '
        r'sequence 0 \("part-0.recs"\). Make ids unique, or where they are unique only within each '
        r"file, .* `FormatBackend\(format\)\(location, keys='by_shard'\)`"
    )
    with pytest.raises(DataError, match=text):
        open_files(folder, FORMAT)
    store = open_files(folder, FORMAT, keys="by_shard")
    assert store.keys([0, 3]) == ["part-0.recs/s0-000", "more/part-1.recs/s0-000"]
    assert store.fingerprint != open_files(folder / "part-0.recs", FORMAT).fingerprint
    write_file(folder / "twice.recs", ROWS[:1] * 2)
    with pytest.raises(DataError, match=r"Make ids unique, or rename files of one name$"):
        open_files(folder / "twice.recs", FORMAT, keys="by_shard")


@pytest.mark.parametrize("read", [open_files, index_files])
def test_a_damaged_index_is_built_again_but_not_in_silence(folder, read):
    values = open_files(folder, FORMAT)[4]["frames"]
    path = folder / "more" / "part-1.recs"
    whole, at = path.read_bytes(), path.read_bytes().index(values.tobytes())
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    index = index_path(folder)
    index.write_bytes(index.read_bytes()[:-1] + b"x")
    text = (
        rf"{folder}: each index must be valid, but 2 of 2 cannot be used: they are built again .* "
        r'count as whole.* The first: .* index \("seqdata-index/index.idx"\): must be a valid '
        r"index, but is damaged$"
    )
    with pytest.warns(SeqDataWarning, match=text):
        read(folder, FORMAT)
    assert open_files(folder, FORMAT)[4]["frames"].tobytes() != values.tobytes()  # as it is now


def test_timesteps_of_decoded_values_are_counted_once(folder, monkeypatch):
    first = open_files(folder, FORMAT).lengths_of["letters"].tolist()
    (kept,) = folder.rglob("lengths-*.npy")
    monkeypatch.setattr(Records, "decode", None)
    assert open_files(folder, FORMAT).lengths_of["letters"].tolist() == first
    kept.write_bytes(kept.read_bytes()[:-1])  # damaged: they are counted again
    with pytest.raises(DataError, match="cannot be decoded"):
        open_files(folder, FORMAT)
    monkeypatch.undo()
    assert open_files(folder, FORMAT).lengths_of["letters"].tolist() == first


def test_another_schema_of_the_same_files_is_another_store(folder):
    store = open_files(folder, FORMAT)
    fewer = open_files(folder, UserFormat(Records(with_notes=False)))
    assert store.fingerprint != fewer.fingerprint
    assert pickle.loads(pickle.dumps(fewer)).fingerprint == fewer.fingerprint


def test_a_file_is_read_once_without_a_trace(tmp_path):
    path = write_file(tmp_path / "data" / "a.recs", ROWS)
    store = open_once(path, FORMAT)
    check_reads(store, ROWS)
    assert store.keys([5]) == [ROWS[5]["name"]]
    assert list(path.parent.iterdir()) == [path]
    path.write_bytes(b"nonsense")
    with pytest.raises(DataError, match="cannot be read by Records"):
        open_once(path, FORMAT)


@pytest.fixture
def read_only(tmp_path, monkeypatch):
    """Make what comes next unable to write to the folder of the data; root always can."""
    monkeypatch.setenv("SEQDATA_CACHE", str(tmp_path / "cache"))

    def refuse(path, content):
        if path.is_relative_to(tmp_path / "data"):
            raise PermissionError
        write_atomically(path, content)

    return lambda: monkeypatch.setattr(index_folder, "write_atomically", refuse)


def test_files_that_cannot_be_written_to_are_opened_with_other_options(
    folder, read_only, monkeypatch
):
    options = [UserFormat(Records(with_notes)) for with_notes in (True, False)]
    first = open_files(folder, options[0]).fingerprint
    read_only()
    second = open_files(folder, options[1]).fingerprint
    assert index_files(folder, options[1], rebuild=True)["sequences"] == len(ROWS)
    monkeypatch.setattr(Records, "index", None)  # it is not asked again
    assert [open_files(folder, one).fingerprint for one in options] == [first, second]


def test_a_sibling_that_is_replaced_where_nothing_can_be_written_is_read(tmp_path, read_only):
    file_format = UserFormat(Documents())
    path = write_documents(tmp_path / "data" / "a.tok", 10, 100)
    assert open_files(path, file_format).lengths.tolist() == [10, 90]
    read_only()
    write_documents(path, 3, 100)
    for _ in range(2):
        assert open_files(path, file_format).lengths.tolist() == [3, 97]
    write_documents(path, 4, 100)

    def count_damages(repair):
        _, reports = audit_files(
            str(path), file_format, shard=None, repair=repair, on_progress=lambda _: None
        )
        return [report.damages for report in reports]

    assert [count_damages(repair) for repair in (False, True, False)] == [[1], [0], [0]]
    assert open_files(path, file_format).lengths.tolist() == [4, 96]
