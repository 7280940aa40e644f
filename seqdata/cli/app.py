"""The ``seqdata`` command: a group of commands, one file each, and commands of installed packages.

Commands of packages are listed from metadata, and imported when they are called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from seqdata.cli._report.console import write_any_encoding
from seqdata.cli._report.grouped_help import iter_summaries
from seqdata.cli.doctor import doctor
from seqdata.cli.fit import fit
from seqdata.cli.index import index
from seqdata.cli.plan import plan
from seqdata.cli.plugins import plugins
from seqdata.cli.replay import replay
from seqdata.cli.stats import stats
from seqdata.cli.verify import verify
from seqdata.cli.why import why
from seqdata.cli.write import write
from seqdata.errors import PluginError
from seqdata.host import core_version, default_host
from seqdata.plugin_source import CommandClaim

_DATA = (write, stats, index, verify)
_TRAINING = (plan, replay, why, fit, doctor, plugins)


class PluginCommands(click.Group):
    """Group of commands that installed packages extend, without replacing its own commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands: on data, of packages, then on training."""
        del ctx
        own = [command.name for command in _DATA if command.name]
        training = [command.name for command in _TRAINING if command.name]
        added = {claim.name for claim in default_host().commands()} - {*own, *training}
        return [*own, *sorted(added), *training]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in two groups, with summaries that are never cut."""
        training = {command.name for command in _TRAINING}
        for title, is_training in (("Data", False), ("Training", True)):
            names = [name for name in self.list_commands(ctx) if (name in training) is is_training]
            with formatter.section(title):
                formatter.write_dl(list(iter_summaries(self, ctx, names)))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, without importing that of a package; None if there is none."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        claims = [claim for claim in default_host().commands() if claim.name == cmd_name]
        return _Unloaded(claims) if claims else None


class _Unloaded(click.Command):
    """Command of a package that is imported when it is called.

    Args:
        claims: Commands of this name that packages add; calling one of several is an error.
    """

    def __init__(self, claims: Sequence[CommandClaim]) -> None:
        self._several = " and ".join(claim.label for claim in claims)
        super().__init__(claims[0].name, short_help=f"(from {self._several})")
        self._claims = claims

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        """Return the context of the imported command.

        Raises:
            ClickException: If several packages add the command, or it cannot be imported or is
                not a click command.
        """
        try:
            return self._load().make_context(info_name, args, *more, **extra)
        except PluginError as error:
            raise click.ClickException(str(error)) from error

    def _load(self) -> click.Command:
        claim = self._claims[0]
        if len(self._claims) > 1:
            raise PluginError.at(
                f"seqdata: the command {claim.name!r} is added by {self._several}. Uninstall one "
                "of them, or choose with SEQDATA_PLUGINS.",
                name=claim.name,
            )
        try:
            found: Any = claim.point.load()
        except Exception as error:  # the code of a package may raise anything
            raise PluginError.at(
                f"seqdata: the command {claim.name!r} of {claim.label} cannot be imported "
                f"({type(error).__name__}: {error}). Repair, update or uninstall it.",
                distribution=claim.distribution,
            ) from error
        if not isinstance(found, click.Command):
            raise PluginError.at(
                f"seqdata: the command {claim.name!r} of {claim.label} must be a click command, "
                f"but is a {type(found).__name__}. Report it to the author of the plugin.",
                distribution=claim.distribution,
            )
        return found


@click.group(
    cls=PluginCommands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with: seqdata write 'logs/**/*.txt' store/",
)
@click.version_option(core_version(), prog_name="seqdata")
def app() -> None:
    """Write, inspect and plan datasets of sequences of any length, and look into runs."""


for _command in (*_DATA, *_TRAINING):
    app.add_command(_command)


def main() -> None:
    """Run the command with the arguments of the process."""
    write_any_encoding()
    app(prog_name="seqdata")
