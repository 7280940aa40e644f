"""One function finds files: order, links, hidden names, and what is dropped is counted."""

import os
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.errors import ConfigError, DataError, MissingShardError, SeqDataWarning
from seqdata.storage.find_files import (
    describe_left_out,
    find_files,
    find_listed,
    iter_names,
    natural_key,
    warn_left_out,
)


def put(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


def is_x(path):
    return path.endswith(".x")


def names(location, **options):
    return list(find_files(location, is_x, **options).names)


@given(st.lists(st.integers(0, 2000), unique=True), st.booleans(), st.sampled_from(["-", ".", ""]))
def test_numbers_sort_by_value_with_and_without_zeros(numbers, is_padded, sign):
    texts = [f"part{sign}{n:0{5 if is_padded else 1}d}.x" for n in numbers]
    assert sorted(texts, key=natural_key) == [
        text for _, text in sorted(zip(numbers, texts, strict=True))
    ]


@given(st.lists(st.from_regex(r"[a-z._-]{1,6}[0-9]{3}[a-z]{0,2}", fullmatch=True), unique=True))
def test_names_with_as_many_digits_sort_as_texts(texts):
    assert sorted(texts, key=natural_key) == sorted(texts)


def test_names_that_are_alike_but_for_zeros_have_one_order():
    texts = ["a1", "a01", "a001", "a2", "a0"]
    for _ in range(10):
        random.shuffle(texts)
        assert sorted(texts, key=natural_key) == ["a0", "a001", "a01", "a1", "a2"]


def test_files_come_before_subfolders(tmp_path):
    put(tmp_path, "b/1.x", "a.x", "z.x", "b/c/0.x", "b10/0.x", "b9/0.x")
    assert names(tmp_path) == ["a.x", "z.x", "b/1.x", "b/c/0.x", "b9/0.x", "b10/0.x"]


@pytest.mark.parametrize("target", [".", "..", "run1", "run1/deep", "../data", "../data/run1"])
def test_a_link_to_what_is_read_already_is_not_followed(tmp_path, target):
    data = put(tmp_path / "data", "run1/0.x", "run1/deep/1.x")
    for name in ("latest", "a", "run1/deep/up"):
        (data / name).symlink_to(os.path.relpath(data / target, (data / name).parent))
    found = find_files(data, is_x)
    assert found.names == ["run1/0.x", "run1/deep/1.x"]
    assert found.repeated == ["a", "latest", "run1/deep/up"]
    assert describe_left_out(found) == "3 links to files that are read already ('a')"


def test_links_to_other_folders_are_followed_once(tmp_path):
    put(tmp_path / "disk", "bob/0.x", "bob/deep/1.x")
    data = put(tmp_path / "data", "ann/0.x")
    for name in ("zoe", "bob"):
        (data / name).symlink_to(tmp_path / "disk" / "bob")
    (tmp_path / "disk" / "bob" / "back").symlink_to(data)
    found = find_files(data, is_x)
    assert found.names == ["ann/0.x", "bob/0.x", "bob/deep/1.x"]
    assert found.repeated == ["zoe", "bob/back"]
    assert find_files(data / "**" / "*.x", is_x).names == found.names
    (tmp_path / "link").symlink_to(data)
    assert names(tmp_path / "link") == found.names


def test_a_link_to_a_file_that_is_read_is_its_second_name(tmp_path):
    put(tmp_path, "data/a/1.x", "elsewhere/2.x")
    for name in ("last.x", "a/first.x"):
        (tmp_path / "data" / name).symlink_to(tmp_path / "data" / "a" / "1.x")
    for name in ("2.x", "3.x"):  # two names of a file elsewhere, as of a cache by content
        (tmp_path / "data" / name).symlink_to(tmp_path / "elsewhere" / "2.x")
    found = find_files(tmp_path / "data", is_x)
    assert found.names == ["2.x", "3.x", "a/1.x"]
    assert found.repeated == ["last.x", "a/first.x"]


def test_links_among_folders_that_lead_to_each_other_end(tmp_path):
    data = put(tmp_path / "data", "0.x")
    for name, target in (("a", "b"), ("b", "a"), ("c", "..")):
        (data / name).symlink_to(target)
    with pytest.raises(DataError, match="must lead to a file, but is a link to nothing"):
        find_files(data)  # links to themselves are no folders
    assert names(data) == ["0.x"]


def test_a_link_to_nothing_is_an_error_only_where_it_is_read(tmp_path):
    put(tmp_path, "a.x")
    (tmp_path / "lost.y").symlink_to("gone")
    assert names(tmp_path) == ["a.x"]
    (tmp_path / "lost.x").symlink_to("gone")
    for location in (tmp_path, tmp_path / "*.x", tmp_path / "lost.x"):
        with pytest.raises(MissingShardError, match=r'"lost.x"\): must lead to a file, but is a'):
            find_files(location, is_x)


def test_a_pipe_is_refused_and_not_opened(tmp_path):
    os.mkfifo(tmp_path / "a.x")
    for location in (tmp_path, tmp_path / "a.x"):
        with pytest.raises(DataError, match="must be an ordinary file, but is a pipe or device"):
            find_files(location, is_x)


def test_a_folder_that_cannot_be_read_is_not_passed_over(tmp_path, monkeypatch):
    put(tmp_path, "a.x", "deep/b.x")
    listed = os.scandir

    def scandir(path):
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied")
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(DataError, match=r'"deep"\): must be readable, but cannot be opened'):
        find_files(tmp_path, is_x)


def test_what_is_left_out_is_counted_by_suffix(tmp_path):
    put(
        tmp_path, "a.x", "b.y", "c/d.Y", "e.z", "noext", "._a.x", ".b.x", ".DS_Store", ".git/c.x",
        "_SUCCESS", "README.md", "seqdata-index/a.x", "__MACOSX/f.x", "store/seqdata.json",
        "store/part-00000.x",
    )  # fmt: skip
    found = find_files(tmp_path, is_x)
    assert found.names == ["a.x"]
    text = (
        "4 files of other suffixes (2 .y, 1 .z, 1 without a suffix), 2 hidden files ('._a.x'), "
        "1 store of seqdata ('store')"
    )
    assert set(re.split(r", | \(|\)", describe_left_out(found))) == set(
        re.split(r", | \(|\)", text)
    )
    with pytest.warns(SeqDataWarning, match=rf"{tmp_path}: skipped: 4 files of other"):
        warn_left_out([found])
    assert "4 files" not in describe_left_out(found, read=["q.y", "q.z", "q"])


def test_many_suffixes_are_not_all_listed(tmp_path):
    put(tmp_path, "a.x", *(f"{number}.s{number}" for number in range(9)))
    assert "5 more)" in describe_left_out(find_files(tmp_path, is_x))


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.x", ["a.x"]),
        ("**/*.x", ["a.x", "d/b.x", "d/e/c.x"]),
        ("**", ["a.x", "d/b.x", "d/e/c.x"]),
        ("d/*", ["b.x"]),
        ("d/**", ["b.x", "e/c.x"]),
        ("d/**/c.x", ["e/c.x"]),
        ("*/*/*", ["d/e/c.x"]),
        ("d*", ["d/b.x", "d/e/c.x"]),
        ("?.x", ["a.x"]),
        ("[!a].x", []),
        (".h/*.x", ["h.x"]),
        (".*/*.x", [".h/h.x"]),
        ("nowhere/*", []),
        ("{d,.}/*.x", ["d/b.x", "a.x"]),
        ("{d/e,d}/?.x", ["e/c.x", "b.x"]),
        ("a.x::{root}/d", ["a.x", "d/b.x", "d/e/c.x"]),
    ],
)
def test_globs_and_braces_name_files(tmp_path, pattern, found):
    put(tmp_path, "a.x", "d/b.x", "d/e/c.x", ".h/h.x", "d/e/f.y")
    assert names(f"{tmp_path}/{pattern.replace('{root}', str(tmp_path))}") == found


@pytest.mark.parametrize("name", ["lr={0.1,0.2}", "run{1..3}", "a[1]", "b*", "x::y", "q{", "{z}"])
def test_a_path_that_is_there_is_taken_by_its_name(tmp_path, name):
    put(tmp_path / name, "1.x", "2.x", "{a,b}.x")
    assert names(tmp_path / name) == ["1.x", "2.x", "{a,b}.x"]
    assert names(tmp_path / name / "1.x") == ["1.x"]
    assert names(tmp_path / name / "{a,b}.x") == ["{a,b}.x"]
    assert names(tmp_path / name / "{2,1}.x") == ["2.x", "1.x"]
    assert names(tmp_path / name / "[12].x") == ["1.x", "2.x"]
    assert list(iter_names(tmp_path / name / "1*")) == ["1.x"]


def test_splits_are_refused_unless_they_are_named(tmp_path):
    put(tmp_path, "train-1.x", "test-1.x", "test.y")
    for location in (tmp_path, tmp_path / "*", tmp_path / "*.x"):
        with pytest.raises(ConfigError, match=rf"{tmp_path}: must hold the files of one split"):
            find_files(location, is_x)
    assert names(tmp_path / "train*") == ["train-1.x"]
    assert names(tmp_path / "{train,test}-*.x") == ["train-1.x", "test-1.x"]


def test_the_folder_of_a_dataset_dict_names_its_splits(tmp_path):
    put(tmp_path, "deep/a/0.x", "deep/b/0.x")
    (tmp_path / "deep" / "dataset_dict.json").write_text('{"splits": ["a", "b"]}')
    for location in (tmp_path, tmp_path / "deep"):
        with pytest.raises(ConfigError, match=rf"Open one of them: '{tmp_path}/deep/a' or"):
            find_files(location, is_x)
    assert names(tmp_path / "deep" / "a") == ["0.x"]


@pytest.mark.parametrize(("log", "told"), [
    ("_delta_log", "Delta table: .* valid. Pass its path with a slash .* backend='frames' .* list"),
    (".hoodie", "Hudi table: .* valid. Read it and pass the table$"),
])  # fmt: skip
def test_a_table_with_a_log_of_versions_is_refused(tmp_path, log, told):
    put(tmp_path, "0.x", f"{log}/0.json")
    with pytest.raises(ConfigError, match=f"whose files are all data, but is a {told}"):
        find_files(tmp_path, is_x)


@pytest.mark.parametrize("name", [b"\xff.x", b"d\xe9/0.x"])
def test_a_name_that_is_not_utf8_is_refused(tmp_path, name):
    path = os.fsencode(tmp_path) + b"/" + name
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb"):
        pass
    text = r"names of files must be UTF-8, but b'.*' is not. Rename it"
    for location in (tmp_path, tmp_path / "**" / "*.x"):
        with pytest.raises(ConfigError, match=text):
            find_files(location, is_x)
    assert names(tmp_path / "*.y") == []


def test_a_folder_may_be_left_out(tmp_path):
    put(tmp_path, "a.x", "out/b.x")
    (tmp_path / "link").symlink_to("out")
    assert names(tmp_path, skip=tmp_path / "out") == ["a.x"]
    assert names(tmp_path, skip=tmp_path / "not there") == ["a.x", "out/b.x"]


def test_a_file_that_is_named_twice_is_refused(tmp_path):
    put(tmp_path, "a.x", "b.x")
    with pytest.raises(ConfigError, match=r"must name each file once, but names 'a.x' 2 times"):
        find_files(f"{tmp_path}/{{a,a}}.x", is_x)


def test_braces_that_are_not_balanced_are_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"must have balanced braces of .*, but has an opening brace without"
    ):
        find_files(f"{tmp_path}/{{a,b", is_x)
    with pytest.raises(ConfigError, match="but has braces of more than 1048576 names"):
        find_files(f"{tmp_path}/{{0..9999999999}}.x", is_x)


def test_names_of_a_listing_are_chosen_by_the_same_rules():
    listed = ["part.10.x", "part.2.x", "._part.2.x", "a.y", ".z/b.x", "d/c.x"]
    found = find_listed("s3://d", listed, ["e", "_f", "seqdata-index"], is_x)
    assert found.names == ["part.2.x", "part.10.x", "d/c.x"]
    assert describe_left_out(found) == (
        "1 file of other suffixes (1 .y), 2 hidden files ('._part.2.x'), "
        "1 folder below, as behind every URL ('e')"
    )
    with pytest.raises(ConfigError, match="must hold the files of one split"):
        find_listed("s3://d", ["train.x", "test.x"], [], is_x)


def test_names_for_a_look_are_all_that_are_visible(tmp_path):
    put(tmp_path, "a.x", "d/b.y", ".c/d.x", "train/1.x", "test/1.x")
    assert sorted(iter_names(tmp_path)) == ["a.x", "d/b.y", "test/1.x", "train/1.x"]
    assert list(iter_names(tmp_path / "nowhere")) == []
    assert list(iter_names(tmp_path / "d*")) == ["d/b.y"]
