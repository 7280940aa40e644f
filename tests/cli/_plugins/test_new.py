"""``seqdata plugins new``: each kind of package is complete, and its own tests pass."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

import seqdata
import seqdata_testing
from seqdata.cli._plugins.templates import KINDS
from seqdata.cli.app import app
from seqdata_testing.waiting import patient

ROOTS = [str(Path(module.__file__).parents[1]) for module in (seqdata, seqdata_testing)]
FILES = {"pyproject.toml", "README.md", "test.yml"}


def run(*arguments):
    return CliRunner().invoke(app, ["plugins", *map(str, arguments)])


def python(*arguments, cwd, paths=(), check=True):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SEQDATA_")}
    clean["PYTHONPATH"] = os.pathsep.join([*map(str, paths), *ROOTS])
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=cwd, env=clean, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=patient(150),
    )  # fmt: skip
    assert not check or done.returncode == 0, done.stdout
    return done


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_tests_of_a_new_package_pass(kind, tmp_path):
    done = run("new", "my-own", "--kind", kind, tmp_path / "package")
    assert done.exit_code == 0, done.output
    tested = python("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path / "package",
                    paths=[tmp_path / "package"])  # fmt: skip
    assert "passed" in tested.stdout
    assert "warning" not in tested.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_package_is_short_and_complete(kind, tmp_path):
    done = run("new", "mine", "--kind", kind)
    assert done.exit_code == 0, done.output
    files = [path for path in (tmp_path / "seqdata-mine").rglob("*") if path.is_file()]
    assert {path.name for path in files} == FILES | {"seqdata_mine.py", "test_seqdata_mine.py"}
    texts = [path.read_text("utf-8") for path in files]
    assert sum(text.count("\n") for text in texts) < 120
    assert all("$" not in text for text in texts)
    assert all(f"wrote {path.relative_to(tmp_path)}" in done.output for path in files)


OPEN = """
import subprocess, sys
from seqdata import open_store

store = open_store("data/a.mine")
assert store[2]["x"].shape == (7, 2), store
assert len(open_store("data")) == 3
"""


@pytest.mark.slow
def test_a_wheel_of_a_new_package_opens_files_by_their_suffix(tmp_path):
    assert run("new", "mine", "--kind", "format").exit_code == 0
    site, package = tmp_path / "site", tmp_path / "seqdata-mine"
    python("-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, package, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        assert "seqdata_mine.py" in content.namelist()
    python("-m", "pip", "install", "--no-index", "--no-deps", "-q", "--target", site, wheel,
           "--disable-pip-version-check", cwd=tmp_path)  # fmt: skip
    write = (
        "import sys; sys.path.append('seqdata-mine/tests'); from test_seqdata_mine import *; "
        "import pathlib; folder = pathlib.Path('data'); folder.mkdir(); "
        "write(folder / 'a.mine', TestMineFiles.sequences[:3])"
    )
    python("-c", write, cwd=tmp_path, paths=[site])
    python("-c", OPEN, cwd=tmp_path, paths=[site])
    checked = python("-m", "seqdata", "plugins", "check", "mine", "data", cwd=tmp_path,
                     paths=[site])  # fmt: skip
    assert "17 ok, 0 failed, 1 skipped" in checked.stdout
    listed = python("-m", "seqdata", "plugins", cwd=tmp_path, paths=[site]).stdout
    assert "backend mine: of mine" in listed
    assert "suffix .mine: backend mine of seqdata-mine 0.1.0" in listed


def test_files_are_never_overwritten(tmp_path):
    assert run("new", "mine", "--kind", "reader", "here").exit_code == 0
    path = tmp_path / "here" / "README.md"
    path.write_text("mine")
    (tmp_path / "here" / "pyproject.toml").unlink()
    done = run("new", "mine", "--kind", "policy", "here")
    assert done.exit_code == 2
    assert "'here/README.md' must not exist, but does, and is never overwritten" in done.stderr
    assert path.read_text() == "mine"
    assert not (tmp_path / "here" / "pyproject.toml").exists()


@pytest.mark.parametrize("name", ["Mine", "1a", "a b", "mine-", "-a", "ä", "a" * 65, "a/b"])
def test_an_invalid_name_is_refused(name, tmp_path):
    done = run("new", "--kind", "format", "--", name)
    assert done.exit_code == 2
    assert "the name must be of the form [a-z][a-z0-9_.-]{0,63}, with a letter" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("testing", "format", "there is a module 'seqdata_testing' already"),
        ("token_budget", "policy", "names a policy of seqdata or a plugin"),
        ("arrow", "store", "names a backend of seqdata"),
        ("parquet", "format", "the suffix '.parquet' of the files must be free, but is opened by "
                              "seqdata itself"),
    ],
)  # fmt: skip
def test_a_name_that_is_taken_is_refused(name, kind, text, tmp_path):
    done = run("new", name, "--kind", kind)
    assert done.exit_code == 2
    assert text in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "here").write_text("mine")
    done = run("new", "mine", "--kind", "format", "here/below")
    assert done.exit_code == 2
    assert "must be a folder, but is a file, or below one" in done.stderr


def test_an_unknown_kind_is_refused():
    done = run("new", "mine", "--kind", "database")
    assert done.exit_code == 2
    assert (
        "'database' is not one of 'collator', 'format', 'policy', 'reader', 'store'" in done.stderr
    )
