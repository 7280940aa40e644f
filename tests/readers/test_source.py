"""What a source means: files, folders, globs."""

import pytest

from seqdata.errors import ConfigError, MissingShardError
from seqdata.readers.source import ReadOptions, count_suffixes, drop_suffixes, find_source


@pytest.fixture
def tree(tmp_path):
    for name in ("b.txt", "a.txt", "deep/er/c.TXT", "deep/d.npy", ".hidden", ".git/e.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return tmp_path


def keys(source, **options):
    return [file.key for file in find_source(source, **options)[0]]


def test_a_folder_means_all_files_below_it_in_order_without_hidden_ones(tree):
    assert keys(tree) == ["a.txt", "b.txt", "deep/d.npy", "deep/er/c.TXT"]


def test_a_file_means_itself(tree):
    (file,) = find_source(tree / "deep" / "d.npy")[0]
    assert (file.path, file.key) == (tree / "deep" / "d.npy", "d.npy")


def test_a_glob_names_files_by_what_follows_its_fixed_part(tree):
    assert keys(tree / "*.txt") == ["a.txt", "b.txt"]
    assert keys(tree / "**" / "*.npy") == ["deep/d.npy"]
    assert keys(tree / "deep" / "**" / "*") == ["d.npy", "er/c.TXT"]


def test_a_relative_glob_looks_in_the_present_folder(tree, monkeypatch):
    monkeypatch.chdir(tree)
    assert keys("*.txt") == ["a.txt", "b.txt"]
    assert keys("deep/*.npy") == ["d.npy"]
    assert all(file.path.is_file() for file in find_source("**/*")[0])


def test_a_folder_may_be_left_out(tree):
    assert keys(tree, skip=tree / "deep") == ["a.txt", "b.txt"]


def test_a_link_to_nothing_is_not_passed_over(tree):
    (tree / "deep" / "lost.txt").symlink_to(tree / "gone.txt")
    for source in (tree, tree / "deep" / "*.txt"):
        text = r'\("(deep/)?lost\.txt"\): must lead to a file, but is a link to nothing. Restore'
        with pytest.raises(MissingShardError, match=text):
            find_source(source)[0]
    assert keys(tree / "*.txt") == ["a.txt", "b.txt"]


def test_a_source_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"source '.*nowhere': must be a file"):
        find_source(tmp_path / "nowhere")[0]


def test_a_source_without_files_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="must hold at least one file"):
        find_source(tmp_path)[0]
    with pytest.raises(ConfigError, match="must hold at least one file"):
        find_source(tmp_path / "*.txt")[0]


def test_endings_are_counted_in_lower_case_most_common_first(tree):
    assert count_suffixes(find_source(tree)[0]) == {".txt": 3, ".npy": 1}


@pytest.mark.parametrize("option", ["group", "id"])
def test_an_option_of_tables_is_refused_for_files_of_one_array(option):
    with pytest.raises(ConfigError, match=f"format 'npy': `{option}` must be left out, but is 'c'"):
        ReadOptions(**{option: "c"}).one_field("npy")


def test_keys_lose_their_suffixes_where_they_stay_different(tree):
    files = find_source(tree)[0]
    bare = drop_suffixes(files)
    assert [file.key for file in bare] == ["a", "b", "deep/d", "deep/er/c"]
    assert [file.path for file in bare] == [file.path for file in files]
    (tree / "deep" / "d.txt").write_bytes(b"x")
    assert drop_suffixes(find_source(tree)[0]) == find_source(tree)[0]
    (tree / "v1.2.txt").write_bytes(b"x")
    assert [file.key for file in drop_suffixes(find_source(tree / "*.txt")[0])] == [
        "a",
        "b",
        "v1.2",
    ]


def test_a_field_that_hides_the_ids_is_refused():
    with pytest.raises(ConfigError, match=r"format 'npy': `field` must be a name .*, but is 'id'"):
        ReadOptions(field="id").one_field("npy")


@pytest.mark.parametrize("name", ["meters.parquet", "*.parquet"])
def test_a_url_is_refused_without_its_secrets(name):
    with pytest.raises(ConfigError, match=r"is a URL\. Copy the files to this machine") as caught:
        find_source(f"https://someone:p4ssw0rd@host/{name}?X-Amz-Signature=s1gn4ture")[0]
    assert str(caught.value).startswith(f"source 'https://host/{name}' must be a file, a folder")
