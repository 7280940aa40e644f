"""Locations become files: one by one, by folders, globs, braces and lists; all else is refused."""

import os

import pytest

from seqdata.errors import (
    ConfigError,
    CorruptShardError,
    FingerprintMismatch,
    IncompleteDatasetError,
    MissingShardError,
    UnsafeContentError,
)
from seqdata.storage.indexed import find_files as module
from seqdata.storage.indexed.find_files import MAX_SHARDS, find_shards, format_location
from seqdata.storage.indexed.index_file import dump_index_files, dump_list
from seqdata.storage.indexed.opening import index_files
from seqdata.storage.indexed.user_format import UserFormat
from tests.index_files import load_indexes
from tests.storage.indexed.records import Records
from tests.storage.indexed.samples import make_index

FORMAT = UserFormat(Records())


def put(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


def found(location, **options):
    return [shard.name for shard in find_shards(str(location), FORMAT, **options).shards]


def test_a_location_is_absolute_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = os.fspath(tmp_path)
    assert format_location("a.recs", FORMAT) == f"{root}/a.recs"
    assert format_location(["a.recs", tmp_path / "b.recs"], FORMAT) == (
        f"{root}/a.recs::{root}/b.recs"
    )
    assert format_location("a.recs::s3://x/b.recs", FORMAT) == f"{root}/a.recs::s3://x/b.recs"
    assert format_location("{a,/b}/c.recs", FORMAT) == f"{root}/a/c.recs::/b/c.recs"
    assert format_location("{a,b}/c.recs", FORMAT) == f"{root}/{{a,b}}/c.recs"


@pytest.mark.parametrize("location", [[], 7, None, [7], {"a"}])
def test_a_location_is_a_path_or_a_list_of_paths(location):
    with pytest.raises(
        ConfigError, match="records: location must be a path or a non-empty list of paths"
    ):
        format_location(location, FORMAT)


def test_a_folder_has_its_files_sorted_without_hidden_ones(tmp_path):
    put(tmp_path, "b.recs", "a.recs", "c/d.RECS", "e.txt", ".f.recs", ".g/h.recs",
        "seqdata-index/x.recs")  # fmt: skip
    assert found(tmp_path) == ["a.recs", "b.recs", "c/d.RECS"]


def test_numbers_in_names_sort_by_value(tmp_path):
    put(tmp_path, "p10.recs", "p2.recs", "d10/0.recs", "d9/0.recs")
    expected = ["p2.recs", "p10.recs", "d9/0.recs", "d10/0.recs"]
    assert found(tmp_path) == found(tmp_path / "**" / "*.recs") == expected


def test_folders_behind_links_are_found_once(tmp_path):
    put(tmp_path, "disk/1.recs", "data/run/0.recs")
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "disk")
    (tmp_path / "data" / "latest").symlink_to("run")
    assert found(tmp_path / "data") == ["linked/1.recs", "run/0.recs"]


def test_files_of_several_splits_are_refused(tmp_path):
    put(tmp_path, "train.recs", "val.recs", "test/0.recs")
    for location in (tmp_path, tmp_path / "**" / "*.recs"):
        with pytest.raises(ConfigError, match=r"must hold the files of one split, .* of 3: test"):
            found(location)
    assert found(tmp_path / "{train,val}.recs") == ["train.recs", "val.recs"]


@pytest.mark.parametrize("name", ["{a,b}", "x{1..2}", "a::b", "c[d]"])
def test_a_folder_that_is_there_is_meant_by_its_name(tmp_path, name):
    folder = put(tmp_path / name, "1.recs", "2.recs")
    for location in (folder, folder / "*.recs", folder / "{1,2}.recs"):
        text = format_location(location, FORMAT)
        assert [shard.path for shard in find_shards(text, FORMAT).shards] == [
            folder / "1.recs", folder / "2.recs",
        ]  # fmt: skip


def test_globs_find_files_of_the_kind_only(tmp_path):
    put(tmp_path, "b.recs", "a.recs", "c/d.recs", "e.txt")
    (tmp_path / "folder.recs").mkdir()
    assert found(tmp_path / "*") == ["a.recs", "b.recs"]
    assert found(tmp_path / "**" / "*.recs") == ["a.recs", "b.recs", "c/d.recs"]
    with pytest.raises(ConfigError, match=r"must match at least one file that ends with '\.recs'"):
        found(tmp_path / "*.txt")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("t/**/*.recs", ["a/1.recs", "a/x/3.recs", "b/1.recs"]),
        ("t/*/1.recs", ["a/1.recs", "b/1.recs"]),
        ("t/{b,a}/1.recs", ["b/1.recs", "a/1.recs"]),
        ("t/{a,b}/", ["a/1.recs", "a/x/3.recs", "b/1.recs"]),
        ("t/{a,b}/[0-9].recs", ["a/1.recs", "b/1.recs"]),
        ("t/*", ["a/1.recs", "a/x/3.recs", "b/1.recs"]),
        ("t/a/*.recs", ["1.recs"]),
        ("t/a/x/3.recs", ["3.recs"]),
        ("{t,t/a}/x/*.recs", ["t/x/4.recs", "t/a/x/3.recs"]),
    ],
)
def test_files_of_a_pattern_are_named_below_the_folder_that_they_share(
    tmp_path, monkeypatch, pattern, names
):
    put(tmp_path / "t", "a/1.recs", "a/x/3.recs", "b/1.recs", "no.txt")
    if pattern.startswith("{"):
        put(tmp_path / "t/x", "4.recs")
    monkeypatch.chdir(tmp_path)
    shards = find_shards(format_location(pattern, FORMAT), FORMAT).shards
    assert [shard.name for shard in shards] == names
    assert all(shard.path.is_file() for shard in shards)


def test_a_name_with_the_signs_of_a_glob_is_the_file_of_that_name(tmp_path):
    put(tmp_path, "a[1].recs", "a1.recs")
    assert found(tmp_path / "a[1].recs") == ["a[1].recs"]


def test_braces_name_files_in_their_order(tmp_path):
    assert found(tmp_path / "{b,a{2..0}}.recs") == ["b.recs", "a2.recs", "a1.recs", "a0.recs"]


@pytest.mark.parametrize("location", ["/x/{a.recs", "/x/{a{b}.recs"])
def test_braces_are_balanced(location):
    with pytest.raises(ConfigError, match="location must have balanced braces"):
        found(location)


def test_braces_name_no_more_files_than_can_be():
    with pytest.raises(ConfigError, match=f"must name at most {MAX_SHARDS} files"):
        found(f"/x/{{0..{MAX_SHARDS}}}.recs")


@pytest.mark.parametrize("part", ["pipe:cat a.recs", "| cat a.recs", "cat a.recs |"])
def test_a_program_is_never_run(part, tmp_path):
    location = format_location(f"{tmp_path}/a.recs::{part}", FORMAT)
    with pytest.raises(UnsafeContentError, match=r"would run a program\. Run it yourself"):
        found(location)


@pytest.mark.parametrize("name", ["a.recs.gz", "A.RECS.GZ"])
def test_a_compressed_file_is_refused_with_the_remedy(name):
    with pytest.raises(ConfigError, match=f"{name}: must be a plain recs file, so that .*gunzip"):
        found(f"/x/{name}")


def test_a_file_is_named_once(tmp_path):
    with pytest.raises(ConfigError, match=r"must name each file once, but .* names a\.recs twice"):
        found(f"{tmp_path}/a.recs::{tmp_path}/a.recs")


def test_a_file_that_is_not_there_is_named_with_its_number(tmp_path):
    put(tmp_path, "a.recs")
    location = f"{tmp_path}/a.recs::{tmp_path}/b.recs"
    assert found(location) == ["a.recs", "b.recs"]  # it is an error when it is opened
    with pytest.raises(MissingShardError, match=r'shard 1 \("b.recs"\): is not there'):
        found(location, probe=True)


def test_a_path_alone_that_is_not_there_may_be_misspelt(tmp_path):
    text = r"nofile\.recs: must be a file or a folder, but is not there\. Check the path"
    with pytest.raises(MissingShardError, match=text):
        found(f"{tmp_path}/nofile.recs", probe=True)


def test_a_folder_of_an_unfinished_write_is_refused(tmp_path):
    put(tmp_path, "a.recs", ".seqdata-tmp-x/b")
    with pytest.raises(IncompleteDatasetError, match=r"was not finished writing\. Repeat the same"):
        found(tmp_path)


def test_a_folder_without_such_files_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"ends with '\.recs', but holds none. Check the path"):
        found(put(tmp_path, "a.txt"))


def put_index(folder, names):
    """Write an index file of some files."""
    (content,) = dump_index_files([make_index(shard=name) for name in names])
    path = folder / "seqdata-index" / "index.idx"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


def test_an_index_without_its_file_is_an_error(tmp_path):
    put(tmp_path, "a.recs")
    path = put_index(tmp_path, ["a.recs", "b.recs", "c.txt"])
    with pytest.raises(
        MissingShardError,
        match=r'"b\.recs"\): is not there, but its index in seqdata-index/index\.idx is\. Rest',
    ):
        found(tmp_path)
    assert found(tmp_path, forget_gone=True) == ["a.recs"]
    assert found(tmp_path) == ["a.recs"]
    assert sorted(load_indexes(tmp_path)) == ["a.recs", "c.txt"]  # that is of another format
    path.unlink()
    assert found(tmp_path) == ["a.recs"]


def test_a_list_of_the_folder_gives_order_and_what_is_missing(tmp_path):
    put(tmp_path, "a.recs", "b.recs")
    digests = {"b.recs": "0" * 64, "gone.recs": "1" * 64, "a.recs": "2" * 64}
    put(tmp_path, "seqdata-index/shards.json")
    path = tmp_path / "seqdata-index" / "shards.json"
    path.write_bytes(dump_list(list(digests.items()), {}))
    opened = find_shards(str(tmp_path), FORMAT)
    assert [shard.name for shard in opened.shards] == list(digests)
    assert [opened.index.listed(shard).sha256[0] for shard in opened.shards] == ["0", "1", "2"]
    put(tmp_path, "c.recs")
    with pytest.raises(FingerprintMismatch, match=r'"c\.recs"\): must be in the list of the fold'):
        found(tmp_path)
    path.write_bytes(b"[" * 100_000)
    with pytest.raises(CorruptShardError, match="but is damaged"):
        found(tmp_path)


def test_an_index_of_very_many_files_needs_them_all(tmp_path, monkeypatch):
    asked, expand = [], module._expand
    monkeypatch.setattr(
        module, "_expand", lambda *given: (asked.append(path) or path for path in expand(*given))
    )
    location = f"{tmp_path}/x-{{0..4999}}.recs"
    with pytest.raises(MissingShardError, match=r'shard 0 \("x-0.recs"\): is not there'):
        index_files(location, FORMAT)
    assert asked == [f"{tmp_path}/x-0.recs"]


def test_a_message_names_some_of_very_many_locations(tmp_path):
    location = format_location([tmp_path / f"x-{number}.recs" for number in range(3000)], FORMAT)
    with pytest.raises(MissingShardError, match=r"… \([\d,]+ characters\) shard 0") as caught:
        find_shards(location, FORMAT, probe=True)
    assert len(str(caught.value)) < 2000
    assert caught.value.details["dataset"] == location
