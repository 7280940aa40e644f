"""Help in groups: of commands with their summaries, and of options by what they belong to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click


def iter_summaries(
    group: click.Group, context: click.Context, names: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield names and summaries of commands, whole: click cuts them to fit a line."""
    for name in names:
        command = group.get_command(context, name)
        if command is not None and not command.hidden:
            yield name, command.short_help or command.get_short_help_str(limit=1000)


class GroupedCommand(click.Command):
    """Command whose help lists its options in groups.

    Args:
        *args: As for ``click.Command``.
        option_groups: Names of options, without dashes, by the title of their group. Options that
            are in none come last, under "Options".
        **kwargs: As for ``click.Command``.
    """

    def __init__(
        self, *args: Any, option_groups: Mapping[str, Sequence[str]], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.option_groups = option_groups

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, group by group."""
        records = {
            parameter.opts[0].lstrip("-"): record
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Option)
            and (record := parameter.get_help_record(ctx)) is not None
        }
        groups = {
            title: [records.pop(name) for name in names]
            for title, names in self.option_groups.items()
        }
        others = {"Options": list(records.values())} if records else {}
        for title, rows in (groups | others).items():
            with formatter.section(title):
                formatter.write_dl(rows)
