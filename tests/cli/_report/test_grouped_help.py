"""Help in groups: each command and each option in its group, once, and nothing is cut."""

import re

import click
import pytest
from click.testing import CliRunner

from seqdata.cli._report.grouped_help import GroupedCommand, iter_summaries
from seqdata.cli.app import app


def help_of(command, *names):
    return CliRunner().invoke(command, [*names, "--help"], terminal_width=80).output


def read_groups(text):
    """Return the first word and the text of each row of help, by the title of its group."""
    groups, rows = {}, {}
    for line in text.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            rows = groups.setdefault(line.removesuffix(":"), {})
        elif found := re.fullmatch(r"  (\S+)(?: \S+)*?  +(\S.*)", line):
            rows[found[1]] = found[2]
    return groups


def make_command(groups, **options):
    """Return a command with the options ``--size``, ``--name`` and ``--secret``."""
    parameters = [
        click.Option(["-s", "--size"], type=int, help="A size."),
        click.Option(["--name"], help="A name."),
        click.Option(["--secret"], hidden=True),
        click.Argument(["path"]),
    ]
    return GroupedCommand("make", params=parameters, option_groups=groups, **options)


def test_options_stand_in_the_order_of_their_groups_and_the_others_come_last():
    groups = read_groups(help_of(make_command({"Names": ("name",)})))
    assert list(groups) == ["Names", "Options"]
    assert groups["Names"] == {"--name": "A name."}
    assert list(groups["Options"]) == ["-s,", "--help"]  # "-s, --size INTEGER"


def test_an_option_is_named_in_groups_by_its_first_spelling():
    text = help_of(make_command({"All": ("name", "s", "help")}))
    assert text.index("--name") < text.index("--size") < text.index("--help")
    assert "Options:" not in text


def test_a_group_of_an_option_that_is_not_there_is_a_mistake_that_is_seen():
    for missing in ("nmae", "secret"):  # a hidden one has no line
        command = make_command({"Names": (missing,)})
        with pytest.raises(KeyError, match=missing):
            command.get_help(click.Context(command))


def test_summaries_are_whole_and_without_hidden_and_unknown_commands():
    long = "Compute " + "very " * 40 + "much."
    group = click.Group("group", commands=[
        click.Command("b", help=long), click.Command("a", help=long, short_help="Short."),
        click.Command("c", hidden=True, help="Secret."),
    ])  # fmt: skip
    found = list(iter_summaries(group, click.Context(group), ["b", "c", "d", "a"]))
    assert found == [("b", long), ("a", "Short.")]


def test_commands_are_in_two_groups_with_whole_summaries():
    groups = read_groups(help_of(app))
    groups.pop("Options", None)
    assert list(groups) == ["Data", "Training"]
    assert list(groups["Data"])[:4] == ["write", "stats", "index", "verify"]
    assert list(groups["Training"]) == ["plan", "replay", "why", "fit", "doctor", "plugins"]
    everything = {**groups["Data"], **groups["Training"]}
    assert all(len(text) <= 55 and "..." not in text for text in everything.values())
    assert all(text.endswith((".", ")")) for text in everything.values())


@pytest.mark.parametrize("name", ["plan", "doctor"])
def test_options_of_a_command_are_grouped_each_once(name):
    command = app.commands[name]
    assert isinstance(command, GroupedCommand)
    named = [option for group in command.option_groups.values() for option in group]
    assert len(named) == len(set(named))
    text = help_of(app, name)
    assert all(f"\n{title}:\n" in text for title in command.option_groups)


def test_all_options_of_plan_are_in_a_group():
    text = help_of(app, "plan")
    assert "\nOptions:\n" not in text
    assert "\nLanes of chunks (tbptt):\n  --lanes" in text
