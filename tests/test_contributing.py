"""CONTRIBUTING names files that exist."""

import re

import pytest

from tests.library_files import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
FOLDERS = (ROOT, ROOT / "seqdata", ROOT / "plugins/seqdata-webdataset/seqdata_webdataset")
FILE = re.compile(r"`([\w.*-]+(?:/[\w.*-]*)+|[\w.-]+\.(?:py|md|toml))`|\]\(([^)#:]+)")


def list_files(text):
    """Return the paths and links of a page, but those of a file that a reader is to add."""
    paths = ["".join(found) for found in FILE.findall(text)]
    return [path for path in paths if "yours" not in path]


def exists(path):
    return any(found for folder in FOLDERS for found in folder.glob(path.rstrip("/")))


@pytest.mark.parametrize("path", sorted({path for path in list_files(PAGE) if path[0] != "/"}))
def test_a_file_that_contributing_names_exists(path):
    assert exists(path)


def test_paths_and_links_are_found():
    text = "`seqdata/plan.py`, [page](docs/index.md#here), `planning/`, `builtin.py`, `t/*.toml`"
    assert list_files(text) == [
        "seqdata/plan.py", "docs/index.md", "planning/", "builtin.py", "t/*.toml",
    ]  # fmt: skip
    assert exists("planning/")
    assert not any(map(exists, ("seqdata/no_plan.py", "tests/*.toml")))
    assert not list_files("`policies/yours.py`, `make lint`, `Loader.plan`")
