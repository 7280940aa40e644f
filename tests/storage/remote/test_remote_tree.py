"""Files below a remote folder are listed once, and what is read of them is of that version."""

import fsspec
import pytest

from seqdata import Remote
from seqdata.backends.files import RemoteTree
from seqdata.errors import FingerprintMismatch, MissingShardError
from seqdata.storage.remote.options import MODES
from seqdata.storage.remote.transport import make_remote_files
from seqdata_testing.faults.network import folder_of, served
from seqdata_testing.waiting import patient

CONTENT = {"a": b"0123456789", "b/c": b"abc", "b/d/e": b""}


@pytest.fixture
def there(tmp_path):
    """Files below a folder of a bucket: (its URL, file system)."""
    system, folder = fsspec.filesystem("memory"), f"/tree-{tmp_path.name}"
    for name, content in CONTENT.items():
        system.pipe_file(f"{folder}/{name}", content)
    return f"memory:/{folder}", system


def grow(tmp_path, there, how="ranges"):
    tree = RemoteTree(
        there[0], Remote(cache_dir=tmp_path / "cache", how=how, retry_seconds=patient(0.5))
    )
    tree.list_files()
    return tree


@pytest.mark.parametrize("how", MODES)
def test_files_and_pieces_of_them_are_read_by_path(tmp_path, there, how):
    tree = grow(tmp_path, there, how)
    assert {path: each.stat.size for path, each in tree.listed.items()} == {
        path: len(content) for path, content in CONTENT.items()
    }
    assert all(each.modified for each in tree.listed.values())
    found = tree.read({"a": [(7, 9), (0, 2)], "b/c": None, "b/d/e": None, "none": None})
    plain = {path: [piece.tobytes() for piece in pieces] for path, pieces in found.items()}
    assert plain == {"a": [b"78", b"01"], "b/c": [b"abc"], "b/d/e": [b""]}


@pytest.mark.parametrize("how", MODES)
@pytest.mark.parametrize("other", [b"0123", b"0123456789ab"])
def test_a_file_that_was_replaced_since_it_was_listed_is_refused(tmp_path, there, how, other):
    tree = grow(tmp_path, there, how)
    before = tree.digest(["a", "b/c"])
    there[1].pipe_file(f"{there[0].removeprefix('memory:/')}/a", other)
    with pytest.raises(FingerprintMismatch, match=r'"a"\).*must (not change|have 10 bytes)'):
        tree.read({"a": [(2, 10)]})
    assert tree.read({"b/c": [(0, 1)]})["b/c"][0].tobytes() == b"a"
    assert grow(tmp_path, there).digest(["a", "b/c"]) != before


@pytest.mark.parametrize("how", MODES)
def test_a_file_that_is_gone_since_it_was_listed_is_missing(tmp_path, there, how):
    tree = grow(tmp_path, there, how)
    there[1].rm_file(f"{there[0].removeprefix('memory:/')}/b/c")
    with pytest.raises(MissingShardError, match=r'"b/c"\).*is not there'):
        tree.read({"a": None, "b/c": None})


def test_where_a_listing_has_other_tags_than_files_have_sizes_count(tmp_path, there):
    tree = grow(tmp_path, there)
    path = "a"
    assert make_remote_files(there[0], Remote()).walk()[path].stat != tree.listed[path].stat
    assert {each.stat.tag for each in tree.listed.values()} == {None}
    assert tree.read({path: None})[path][0].tobytes() == CONTENT[path]


def test_of_a_web_server_files_are_asked_for_one_by_one(tmp_path):
    folder = tmp_path / "served"
    (folder / "b").mkdir(parents=True)
    (folder / "b/c").write_bytes(b"abc")
    with served(folder_of(folder)) as web:
        tree = grow(tmp_path, (web.url, None))
        assert tree.listed is None
        assert list(tree.read({"b/c": None, "none": None})) == ["b/c"]
        assert (tree.known, tree.stat(["none"])) == (["b/c"], [None])
        requests = len(web.requests)
        tree.stat(["none", "b/c"])
        assert len(web.requests) == requests
        (folder / "b/c").write_bytes(b"xyz")
        with pytest.raises(FingerprintMismatch):
            tree.read({"b/c": None})


def test_paths_that_are_kept_are_bounded(there, monkeypatch):
    monkeypatch.setattr("seqdata.storage.remote.transport._MOST_PATHS", 2)
    files = make_remote_files(there[0], Remote())
    for name in CONTENT:
        files.stat(name)
        assert len(files._paths[1]) <= 2
