"""Another project of the same import name: what is mixed in one folder says so, and where."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import seqdata
from seqdata import name_conflict

PACKAGE = Path(seqdata.__file__).parent
FILES = ("__init__.py", "name_conflict.py", "errors.py")


@pytest.fixture
def folder(tmp_path):
    """Our package's first files, as they lie in a folder of installed packages."""
    (tmp_path / "seqdata").mkdir()
    for name in FILES:
        shutil.copy(PACKAGE / name, tmp_path / "seqdata" / name)
    return tmp_path


def ran(folder, code):
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=folder, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )  # fmt: skip
    return done.stdout + done.stderr


def test_alone_it_says_nothing(folder):
    assert ran(folder, "import seqdata; print(seqdata.DataError.__name__)") == "DataError\n"


@pytest.mark.parametrize("other", ["_io/__init__.py", "types.py"])
def test_files_beside_ours_are_told_when_it_is_imported(folder, other):
    place = folder / "seqdata" / other
    place.parent.mkdir(exist_ok=True)
    place.write_text("")
    said = ran(folder, "import seqdata; print(seqdata.DataError.__name__)")
    assert "DataError\n" in said
    assert f"{folder}/seqdata: must hold lightning-seqdata alone" in said
    assert "pip uninstall -y seqdata lightning-seqdata" in said


@pytest.mark.parametrize("code", ["import seqdata.errors", "from seqdata.errors import DataError"])
def test_another_front_is_refused_by_every_module_of_ours(folder, code):
    (folder / "seqdata" / "__init__.py").write_text("read = None\n")
    said = ran(folder, code)
    assert f"ImportError: {folder}/seqdata/__init__.py: must be the `__init__.py` of" in said
    assert "then pip install lightning-seqdata" in said


def test_a_front_that_was_uninstalled_is_refused_too(folder):
    (folder / "seqdata" / "__init__.py").unlink()
    assert "ImportError: seqdata: must be the `__init__.py`" in ran(folder, "import seqdata.errors")


def test_the_other_project_is_found_with_its_files(folder, monkeypatch):
    assert name_conflict.find_foreign_release() is None
    assert name_conflict.find_foreign_files() == []
    known = folder / "seqdata-0.2.2.dist-info"
    known.mkdir()
    known.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: seqdata\nVersion: 0.2.2\n")
    known.joinpath("RECORD").write_text("seqdata/_io/read.py,,\nseqdata/__init__.py,,\n")
    (folder / "seqdata" / "_io").mkdir()
    (folder / "seqdata" / "_io" / "read.py").touch()  # importlib_metadata leaves out what is gone
    monkeypatch.syspath_prepend(folder)
    assert name_conflict.find_foreign_release() == "seqdata 0.2.2"
    assert name_conflict.find_foreign_files() == []  # it lies elsewhere
    monkeypatch.setattr(name_conflict, "__file__", str(folder / "seqdata" / "name_conflict.py"))
    assert name_conflict.find_foreign_files() == ["seqdata/__init__.py", "seqdata/_io/read.py"]
