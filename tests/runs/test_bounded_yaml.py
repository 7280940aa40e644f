"""Run files that stand for very much more than they hold."""

import pytest
import yaml
from click.testing import CliRunner

from seqdata.cli.app import app
from seqdata.errors import ConfigError, LimitError
from seqdata.runs.bounded_yaml import load_plain
from seqdata.runs.run_file import RunFile


def counted(events, seen):
    for event in events:
        seen.append(event)
        yield event


LEVELS = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9))
BOMBS = {
    "aliases": (
        f"seqdata_run: 1\na0: &a0 [lol]\n{LEVELS}",
        "must expand to at most 50000 values, but expands to more",
    ),
    "merges": (
        "a0: &a0 {k: 1}\n"
        + "".join(f"a{i}: &a{i} {{<<: [{f'*a{i - 1}, ' * 9}]}}\n" for i in range(1, 9)),
        "must expand to at most 50000 values, but expands to more",
    ),
    "a long list": (
        f"x: [{'1,' * 300_000}]",
        "must expand to at most 50000 values, but expands to more",
    ),
    "itself": (
        "x: &x [*x]",
        "must not contain a list or mapping that contains itself, but contains one",
    ),
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


def test_what_is_used_twice_in_a_run_file_is_an_alias_and_is_read(tmp_path):
    (tmp_path / "run.yaml").write_text("a: &a {k: [1, 2]}\nb: *a\nc: &b x\nd: *b\n")
    with pytest.raises(ConfigError, match="not a run file of version 1"):
        RunFile.read(tmp_path / "run.yaml")
    shared = [1, 2]
    text = yaml.safe_dump({"one": shared, "other": shared})
    assert "*" in text
    assert load_plain(text.encode(), "x") == {"one": shared, "other": shared}
