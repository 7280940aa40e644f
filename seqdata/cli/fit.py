"""``seqdata fit``: train a model on data, both named in a YAML file."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from seqdata.cli._report.console import complete_location, format_examples, report_errors

_OPTIONS = {
    "-c, --config FILE": "YAML file with the keys data, model and trainer. Of several files the "
    "last one that has a key decides.",
    "--data.KEY VALUE": "Replace an argument of the DataModule: --data.batch_size 64.",
    "--model.KEY VALUE": "Replace an argument of the model: --model.hidden 128.",
    "--trainer.KEY VALUE": "Replace an argument of the Trainer: --trainer.max_epochs 3.",
    "--seed_everything N": "Seed of everything that is random.",
    "--ckpt_path FILE": "Continue from a checkpoint: a file, or last.",
    "--print_config": "Print all keys and their values, as YAML, and exit.",
    "--data.help CLASS": "Show the arguments of a DataModule, and exit.",
    "--model.help CLASS": "Show the arguments of a model, and exit.",
}  # of LightningCLI, which is imported only to run


class FitCommand(click.Command):
    """Command whose help and completions also name options that LightningCLI takes."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options."""
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        own = [record for each in options if (record := each.get_help_record(ctx)) is not None]
        with formatter.section("Options"):
            formatter.write_dl([*_OPTIONS.items(), *own])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the options that begin with what is typed."""
        names = [name.split(", ")[-1].split(" ")[0] for name in _OPTIONS]
        found = [name for name in names if name.startswith(incomplete) and "KEY" not in name]
        return [*map(CompletionItem, found), *super().shell_complete(ctx, incomplete)]


@click.command(
    cls=FitCommand,
    context_settings={
        "ignore_unknown_options": True,
        "allow_extra_args": True,
    },
    options_metavar="--config FILE [OPTIONS]",
    short_help="Train the model of a YAML file on its data.",
    epilog=format_examples(
        "seqdata fit --config forecast.yaml",
        "seqdata fit --config forecast.yaml --trainer.max_epochs 3",
        "seqdata fit --config forecast.yaml --print_config",
        "seqdata fit --data.help ForecastDataModule",
    ),
)
@click.argument(
    "arguments",
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="",
    shell_complete=complete_location,
)
@report_errors
def fit(arguments: tuple[str, ...]) -> None:
    """Train the model of a YAML file on its data, by LightningCLI.

    Classes are import paths, or short names: those of seqdata, of its models, and of packages with
    entry points seqdata.classes.
    """
    from seqdata.suite.cli import run_cli  # Lightning is imported only if needed

    run_cli(["fit", *arguments])
