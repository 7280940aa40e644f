"""Commands of installed packages: from metadata alone until they are called."""

import re
import sys

import pytest
from click.testing import CliRunner

from seqdata.cli.app import app
from seqdata.host import default_host

MODULE = """
import click

@click.command()
@click.argument("name")
def command(name):
    '''Greet somebody.'''
    click.echo(f"hello {name}")

other = 7
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a package that adds a command."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def make(name, command, place="command", text=MODULE):
        module = f"a_command_{name}"
        (site / f"{module}.py").write_text(text)
        info = site / f"seqdata_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: seqdata-{name}\nVersion: 1.0\n"
        )
        (info / "entry_points.txt").write_text(
            f"[seqdata.commands]\n{command} = {module}:{place}\n"
        )
        default_host.cache_clear()

    yield make
    default_host.cache_clear()
    for module in [name for name in sys.modules if name.startswith("a_command_")]:
        del sys.modules[module]


def run(*arguments):
    return CliRunner().invoke(app, arguments)


def test_a_command_is_listed_without_an_import_and_called(install):
    install("greet", "greet")
    listed = run("--help")
    assert "greet" in listed.output
    assert "(from seqdata-greet 1.0)" in listed.output
    assert "a_command_greet" not in sys.modules
    assert run("greet", "you").output == "hello you\n"
    assert "Greet somebody." in run("greet", "--help").output


def test_the_cores_own_commands_cannot_be_taken(install):
    install("greet", "stats")
    assert "Greet" not in run("stats", "--help").output


@pytest.mark.parametrize(
    ("place", "text", "said"),
    [
        ("other", MODULE, "must be a click command, but is a int"),
        ("command", "raise OSError('no')", r"cannot be imported \(OSError: no\)"),
    ],
)
def test_a_broken_command_breaks_nothing_but_itself(install, place, text, said):
    install("greet", "greet", place, text)
    assert run("--help").exit_code == 0
    result = run("greet")
    assert result.exit_code == 1
    assert re.search(said, result.stderr)
    assert "Traceback" not in result.stderr


def test_a_command_of_two_packages_names_both(install):
    install("greet", "greet")
    install("also", "greet")
    assert run("--help").exit_code == 0
    error = run("greet", "you").stderr
    assert "added by seqdata-greet 1.0 and seqdata-also 1.0" in error or (
        "added by seqdata-also 1.0 and seqdata-greet 1.0" in error
    )
