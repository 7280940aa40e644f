"""Run files that hold or stand for very much more than a fit has."""

import pytest
import yaml
from click.testing import CliRunner

from seqdata.cli.app import app
from seqdata.errors import LimitError
from seqdata.runs.run_file import NAME, RunFile
from tests.runs.run_files import make_run_file


def counted(events, seen):
    for event in events:
        seen.append(event)
        yield event


TOO_LONG = f"x: [{'1,' * 300_000}]\n"
BLOCK = "# /// seqdata-run\n# {}# ///\n"
BOMBS = {
    "aliases": ("a: &a [lol]\nb: [*a, *a]\n", "must have no aliases, but has one"),
    "itself": ("x: &x [*x]", "must have no aliases, but has one"),
    "a long list": (TOO_LONG, "must have at most 50000 values, but has more"),
    "a long record": (BLOCK.format(TOO_LONG), "must have at most 50000 values, but has more"),
    "depth": (f"x: {'[' * 100_000}", "must nest 64 levels at most, but nests deeper"),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_file_that_stands_for_too_much_is_refused_before_it_is_loaded(
    tmp_path, monkeypatch, kind
):
    text, message = BOMBS[kind]
    (tmp_path / "run.yaml").write_text(text)
    seen = []
    parse = yaml.parse
    monkeypatch.setattr(yaml, "parse", lambda *given: counted(parse(*given), seen))
    monkeypatch.setattr(yaml, "load", lambda *_: pytest.fail("was loaded"))
    with pytest.raises(LimitError, match=rf"run\.yaml: {message}\. Pass the file"):
        RunFile.read(tmp_path / "run.yaml")
    assert len(seen) <= 50_010
    done = CliRunner().invoke(app, ["doctor", str(tmp_path / "run.yaml")])
    assert done.exit_code != 0
    assert message in done.output.replace("\n", " ")


def test_what_is_used_twice_is_written_twice(tmp_path):
    shared = ["a", "b"]
    data = {"train": shared, "val": {"one": shared, "other": shared}}
    make_run_file(data).write(tmp_path / NAME)
    assert RunFile.read(tmp_path / NAME).data == data
