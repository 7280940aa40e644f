"""The command on terminals of all kinds: width, colors, encodings, completion, exit statuses."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from click.shell_completion import get_completion_class
from click.testing import CliRunner

from seqdata.api import write_store
from seqdata.cli._report import console
from seqdata.cli._report.console import iter_table, keep_whole
from seqdata.cli.app import app
from seqdata_testing.waiting import patient

ROOT = Path(__file__).resolve().parents[2]
LONG = "recordings/2026-11-27/" + "site-17-" * 12 + "end"


def iter_commands(group=app, names=("seqdata",)):
    yield names, group
    for name in group.list_commands(click.Context(group)) if isinstance(group, click.Group) else ():
        yield from iter_commands(group.get_command(click.Context(group), name), (*names, name))


def help_of(*names):
    return (
        CliRunner(env={"COLUMNS": "80"}).invoke(app, [*names, "--help"], terminal_width=80).output
    )


def test_no_line_of_help_is_longer_than_a_terminal_or_cut():
    own = [names for names, found in iter_commands() if found.params]
    assert len(own) > 12
    for names in own:
        lines = help_of(*names[1:]).splitlines()
        assert [line for line in lines if len(line) > 80] == []
        assert [line for line in lines[1:] if re.search(r"[a-z]\.\.\.$", line)] == []


RUNNER = """
import json, os, sys
from seqdata.cli._report import console
from seqdata.cli._report.console import write_any_encoding
from seqdata.cli.app import app

write_any_encoding()
for environment, arguments in json.loads(sys.argv[1]):
    os.environ |= environment
    print("<<<", flush=True)
    try:
        app(arguments, prog_name="seqdata")
    except SystemExit:
        sys.stdout.flush()
"""  # several commands in one process, which takes seconds to start


def make_program(*commands):
    """Return the command line that runs pairs of changed environment and arguments."""
    return [sys.executable, "-c", RUNNER, json.dumps(commands)]


def run_on_terminal(*commands, cwd):
    """Return the output of each command on a terminal."""
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    with subprocess.Popen(
        make_program(*commands), stdout=theirs, stderr=theirs, cwd=cwd,
        env=environment | {"TERM": "xterm"},
    ) as process:  # fmt: skip
        os.close(theirs)
        output = b""
        while chunk := read_terminal(ours):
            output += chunk
        process.wait(timeout=patient())
    os.close(ours)
    return output.decode().replace("\r\n", "\n").split("<<<\n")[1:]


def read_terminal(end):
    try:
        return os.read(end, 1 << 16)
    except OSError:  # the other end is closed
        return b""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A store with long ids, and a dropped sequence whose id is Chinese."""
    folder = tmp_path_factory.mktemp("terminal")
    rows = [{"id": "\u4e2d\u6587", "x": np.zeros(0)}]
    rows += [{"id": f"{LONG}-{i}", "x": np.zeros(i * 7 % 50)} for i in range(20)]
    write_store(folder / "store", rows)
    return folder


PLAN = ("plan", "store", "--max-tokens", "100", "--world", "1,8")


@pytest.mark.slow
def test_on_a_terminal_prose_wraps_at_words_and_ids_are_whole(folder):
    bare = {"NO_COLOR": "1"}
    colored, bare_error, *plans = run_on_terminal(
        ({}, ("plan", "nowhere")), (bare, ("plan", "nowhere")),
        *((bare | {"COLUMNS": str(columns)}, PLAN) for columns in (80, 120)), cwd=folder,
    )  # fmt: skip
    assert "\x1b[31m" in colored
    assert "\x1b" not in bare_error
    plain = CliRunner().invoke(app, ["plan", str(folder / "store"), *PLAN[2:]]).output
    assert max(map(len, plain.splitlines())) > 120  # without a terminal, nothing is wrapped
    for columns, shown in zip((80, 120), plans, strict=True):
        assert shown.split() == plain.split()  # no word is broken
        assert f"{LONG}-0" in shown
        assert all(LONG in line for line in shown.splitlines() if len(line) > columns)
        assert len(shown.splitlines()) > len(plain.splitlines())
        assert shown.splitlines()[-1] == plain.splitlines()[-1]


@pytest.mark.slow
def test_another_encoding_shows_other_signs_and_no_traceback(folder):
    done = subprocess.run(
        make_program(({}, PLAN), ({}, ("stats", "store"))), cwd=folder, check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, timeout=patient(),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    planned, shown = done.stdout.decode("ascii").split("<<<\n")[1:]
    assert " batches - 480 timesteps - " in planned
    assert "dropped: 2 sequences: \\u4e2d\\u6587, " in planned
    assert "  ####" in shown


def test_bytes_that_cannot_be_decoded_stay_an_error():
    with pytest.raises(UnicodeDecodeError):
        console._encode_as_ascii(UnicodeDecodeError("ascii", b"\xff", 0, 1, "no"))


def test_a_table_has_its_numbers_on_the_right_and_cuts_nothing():
    rows = [("a" * 200, "1", ""), ("\u4e2d", "1,234", "x")]
    lines = [line.plain for line in iter_table(("key", "count", "note"), rows, left=("key",))]
    assert lines == [
        "key" + " " * 197 + "   count   note",
        "a" * 200 + "       1      -",
        "\u4e2d" + " " * 198 + "   1,234      x",
    ]
    assert keep_whole("a b").no_wrap


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_names_and_files(shell):
    page = (ROOT / "docs" / "api" / "command.md").read_text("utf-8")
    assert f"_SEQDATA_COMPLETE={shell}_source seqdata" in page
    complete = get_completion_class(shell)(app, {}, "seqdata", "_SEQDATA_COMPLETE")

    def find(*words):
        return [item.value for item in complete.get_completions(list(words[:-1]), words[-1])]

    assert find("pl") == ["plan", "plugins"]
    assert find("plan", "--batching", "tok") == ["token-budget"]
    assert {"arrow", "foreign"} <= set(find("stats", "--backend", ""))
    assert "--max-tokens" in find("plan", "store", "--max")
    assert find("fit", "--da") == ["--data.help"]
    assert find("fit", "--config", "a.yaml", "--print") == ["--print_config"]
    for words in (["plan"], ["write"], ["index"], ["fit", "--config"], ["fit", "--config", "="],
                  ["plugins", "check", "npz"]):  # fmt: skip
        (item,) = complete.get_completions(words, "sto")
        assert item.type == "file"


def test_the_script_of_bash_is_one():
    script = get_completion_class("bash")(app, {}, "seqdata", "_SEQDATA_COMPLETE").source()
    done = subprocess.run(["bash", "-n"], input=script, text=True, timeout=patient(), check=False)
    assert done.returncode == 0
    assert "_SEQDATA_COMPLETE=bash_complete" in script
