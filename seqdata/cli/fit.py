"""``seqdata fit``: train a model on data, both named in a YAML file."""

from __future__ import annotations

import click

from seqdata.cli._report.console import format_examples, report_errors


@click.command(
    context_settings={
        "ignore_unknown_options": True,
        "allow_extra_args": True,
    },
    short_help="Train the model of a YAML file on its data.",
    epilog=format_examples(
        "seqdata fit --config forecast.yaml",
        "seqdata fit --config forecast.yaml --trainer.max_epochs 3",
        "seqdata fit --config forecast.yaml --print_config",
    ),
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@report_errors
def fit(arguments: tuple[str, ...]) -> None:
    """Train the model of a YAML file on its data: --config FILE; LightningCLI's other options.

    model, data and trainer are its parts. Classes are import paths, or short names: those of
    seqdata, of seqdata-models, and of packages with entry points seqdata.classes.
    """
    from seqdata.suite.cli import run_cli  # Lightning is imported only if needed

    run_cli(["fit", *arguments])
