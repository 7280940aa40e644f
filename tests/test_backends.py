"""The face for authors of formats: few names, each documented; files are read once as input."""

import io
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from seqdata import backends, open_store
from seqdata.backends import Extents, FileFormat, FileIndex, FormatBackend, FormatReader, files
from seqdata.errors import ConfigError, SeqDataWarning
from seqdata.readers.source import ReadOptions, find_source

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = tuple(DOCS / "about" / "extend" / name for name in ("backends.md", "own-format.md"))


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
    names = (*backends.__all__, *files.__all__)
    code = "".join("".join(page.read_text("utf-8").split("```python")[1:]) for page in PAGES)
    assert [name for name in names if not re.search(rf"\b{name}\b", code)] == []
    table = PAGES[0].read_text("utf-8")
    assert [name for name in names if f"`{name}`" not in table] == []


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


def test_values_that_are_called_id_take_the_place_of_ids_with_one_warning(tmp_path):
    tar = pytest.importorskip("seqdata_webdataset.indexed_format")
    values = io.BytesIO()
    np.save(values, np.arange(3))
    for name in ("a", "B"):
        with tarfile.open(tmp_path / f"{name}.TAR", "w") as file:
            for ending, content in (("npy", values.getvalue()), ("id", b"same")):
                entry = tarfile.TarInfo(f"{name}.{ending}")
                entry.size = len(content)
                file.addfile(entry, io.BytesIO(content))
    files = find_source(tmp_path)[0]
    with pytest.warns(SeqDataWarning) as caught:
        rows = list(FormatReader(tar.IndexedTar())(files, ReadOptions()))
    assert [row["id"] for row in rows] == [b"same"] * 2
    assert [str(warning.message) for warning in caught] == [
        f"{tmp_path / 'B.TAR'}: ids are dropped: its values 'id' become the field 'id', which does "
        "not hold strings. To keep the ids, open the files, `rename` the field, and pass that to "
        "`write_store`"
    ]


class Opening(Bytes):
    """A format that opens by itself."""

    def __call__(self, location, *, verify=None):
        """Open one file of a folder."""
        return FormatBackend(self)(f"{location}/b.raw", verify=verify)


def test_a_format_that_is_callable_opens_by_itself(folder):
    (folder / "notes.md").unlink()
    for backend in (Opening(), Opening):
        store = open_store(folder, backend=backend, verify="always")
        assert store.keys(range(len(store))) == ["b.raw"]
    assert len(open_store(folder, backend=Bytes())) == 2


class Pair(Bytes):
    """A format whose files say whether there is a file ``b.raw``."""

    def index(self, file):
        begins = np.array([0])
        values = np.array([file.has_sibling("b.raw") + 2 * file.has_sibling("c.raw")])
        seen = Extents(begins, begins, "int64", axis=None, values=values)
        return FileIndex({"x": Extents(begins, begins + 3, "|u1"), "seen": seen})


def test_a_sibling_that_was_only_looked_for_does_not_belong_to_the_index(folder):
    store = open_store(folder / "a.raw", backend=Pair())
    assert int(store[0]["seen"]) == 1
    (folder / "b.raw").write_bytes(b"other")
    (folder / "c.raw").write_bytes(b"new")
    again = open_store(folder / "a.raw", backend=Pair())
    assert again.fingerprint == store.fingerprint
    assert int(again[0]["seen"]) == 1
