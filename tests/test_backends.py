"""The face for authors of formats: few names, each documented; files are read once as input."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from seqdata import backends
from seqdata.backends import Extents, FileFormat, FileIndex, FormatReader
from seqdata.errors import ConfigError
from seqdata.readers.source import ReadOptions, find_source

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = (DOCS / "reference" / "backends.md", DOCS / "how-to" / "own-format.md")


@dataclass(frozen=True)
class Bytes(FileFormat):
    """The bytes of a file are one sequence; its first one is a field, too."""

    suffixes = (".raw",)

    def index(self, file):
        begins = np.array([0])
        head = Extents(begins, begins + 1, dtype="|u1", axis=None)
        return FileIndex({"x": Extents(begins, np.array([file.size]), dtype="|u1"), "head": head})


@pytest.fixture
def folder(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.raw").write_bytes(name.encode() * 3)
    (tmp_path / "notes.md").write_text("no data")
    return tmp_path


def test_the_face_is_small_and_each_name_is_in_an_example():
    assert len(backends.__all__) <= 25
    code = "".join("".join(page.read_text("utf-8").split("```python")[1:]) for page in PAGES)
    assert [name for name in backends.__all__ if not re.search(rf"\b{name}\b", code)] == []
    table = PAGES[0].read_text("utf-8")
    assert [name for name in backends.__all__ if f"`{name}`" not in table] == []


def test_files_are_read_once_as_input_and_others_are_skipped(folder):
    rows = list(FormatReader(Bytes())(find_source(folder)[0], ReadOptions()))
    assert [(row["id"], row["x"].tolist(), int(row["head"])) for row in rows] == [
        ("a.raw", [97] * 3, 97),
        ("b.raw", [98] * 3, 98),
    ]
    assert not (folder / "seqdata-index").exists()


def test_options_of_tables_are_refused(folder):
    with pytest.raises(ConfigError, match="`group` must be left out"):
        list(FormatReader(Bytes())(find_source(folder)[0], ReadOptions(group="g")))
