"""The ``seqdata`` command: a group of commands, one file each, and the commands of packages."""

from __future__ import annotations

import click

from seqdata.cli._plugin_commands import PluginCommands
from seqdata.cli.doctor import doctor
from seqdata.cli.index import index
from seqdata.cli.plan import plan
from seqdata.cli.plugins import plugins
from seqdata.cli.replay import replay
from seqdata.cli.stats import stats
from seqdata.cli.verify import verify
from seqdata.cli.why import why
from seqdata.cli.write import write
from seqdata.host import core_version


@click.group(
    cls=PluginCommands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with: seqdata write 'logs/**/*.txt' store/",
)
@click.version_option(core_version(), prog_name="seqdata")
def app() -> None:
    """Write, look at and plan data sets of sequences of any length."""


for _command in (write, index, stats, plan, replay, why, verify, plugins, doctor):
    app.add_command(_command)


def main() -> None:
    """Run the command with the arguments of the process."""
    app(prog_name="seqdata")
