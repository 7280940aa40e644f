"""The command as a whole: help, version, plugins."""

import json
import os
import subprocess
import sys
from importlib import metadata

import numpy as np
import pytest
from click.testing import CliRunner

from seqdata.api import write_store
from seqdata.builtin import POLICIES
from seqdata.cli import main
from seqdata.cli.app import app
from seqdata_testing.waiting import patient

COMMANDS = [
    "doctor",
    "fit",
    "index",
    "plan",
    "plugins",
    "replay",
    "stats",
    "verify",
    "why",
    "write",
]


def run(*arguments):
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.output


def test_the_commands_of_this_release_are_listed():
    assert sorted(app.commands) == COMMANDS
    assert all(f"  {name} " in run("--help") for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(name):
    text = run(name, "-h")
    assert f"Usage: app {name}" in text
    assert f"Examples:\n    seqdata {name}" in text


def test_the_version_is_shown():
    assert metadata.version("lightning-seqdata") in run("--version")


def test_the_program_is_installed_under_its_name():
    (point,) = metadata.entry_points(group="console_scripts", name="seqdata")
    assert point.load() is main


def test_plugins_shows_what_the_core_offers():
    text = run("plugins")
    assert "lightning-seqdata" in text
    assert f"core policies: {', '.join(sorted(POLICIES))}" in text


def test_plugins_as_json():
    facts = json.loads(run("plugins", "--json"))
    assert facts["plugins"][0]["name"] == "core"
    assert facts["plugins"][0]["state"] == "built in"
    assert facts["core"]["backends"] == ["arrow", "foreign"]


def test_plugins_may_be_checked():
    assert "built in" in run("plugins", "--check")


UNREAD = {
    "ledger": ["plan", "store", "--batching", "fixed", "--batch-size", "4", "--world", "2",
               "--tail", "drop", "--ledger", "-"],
    "plan": ["plan", "store", "--batching", "fixed", "--batch-size", "4"],
    "stats": ["stats", "store", "--json"],
    "verify": ["verify", "store", "--json"],
    "doctor": ["doctor", "--json"],
    "help": ["plan", "--help"],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly) if name not in ("ledger", "plan")
             else name for name in UNREAD],
)  # fmt: skip
def test_a_command_ends_quietly_if_nobody_reads_on(name, tmp_path):
    """As with ``seqdata plan ... | head``."""
    write_store(tmp_path / "store", [np.arange(3.0)] * 9)
    reads, writes = os.pipe()
    os.close(reads)
    with open(writes, "wb") as stdout:
        told = subprocess.run(
            [sys.executable, "-m", "seqdata", *UNREAD[name]], stdout=stdout,
            stderr=subprocess.PIPE, cwd=tmp_path, check=False, timeout=patient(),
        )  # fmt: skip
    assert told.stderr == b""
