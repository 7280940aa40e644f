"""``seqdata replay``: rebuilds one batch of a run and shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from seqdata.cli._report.console import (
    EXIT_DATA,
    backend_option,
    format_examples,
    make_console,
    report_errors,
)

_MAX_SHOWN = 32  # sequences of a table; --json has all
_STATS = ("dtype", "shape", "min", "mean", "max", "nan", "inf")


@click.command(
    epilog=format_examples(
        "seqdata replay logs/version_0/seqdata-run.yaml --epoch 2 --batch 4711",
        "seqdata replay seqdata-run.yaml --epoch 2 --batch 4711 --save batch.pt",
        "seqdata replay seqdata-run.yaml --epoch 2 --step 1177 --rank 3 --world 4",
        "seqdata replay seqdata-run.yaml --epoch 0 --batch 3 --kind val --name clean --json",
    )
)
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
@backend_option
@click.option("--epoch", type=int, required=True, help="Epoch of the plan.")
@click.option("--batch", type=int, help="Number of the batch in the plan, as in error messages.")
@click.option("--step", type=int, help="In place of --batch: a step of a rank.")
@click.option(
    "--rank", type=int, help="Rank of the step [default: 0]; with --batch: rank of the lanes."
)
@click.option("--world", type=int, help="Number of ranks [default: the run's].")
@click.option(
    "--from",
    "from_position",
    metavar="POSITION",
    type=int,
    help="Batches of the epoch trained before the run began in it [default: the run's].",
)
@click.option(
    "--kind",
    type=click.Choice(["train", "val", "test", "predict"]),
    default="train",
    show_default=True,
    help="What the data was used for.",
)
@click.option("--name", help="Name of the data set, if there are several of a kind.")
@click.option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the batch to a .pt or .npz file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@report_errors
def replay(
    config: Path,
    backend: str | None,
    kind: Any,
    name: str | None,
    save: Path | None,
    as_json: bool,
    **which: int | None,
) -> None:
    """Rebuild one batch of a run, bit for bit, and show it.

    CONFIG is the seqdata-run.yaml that a fit wrote into the Trainer's log folder. It names
    functions and classes, whose modules are imported: trust it as you trust code. No GPU, Trainer
    or model is needed. If the batch cannot be rebuilt, its plan is shown, then the error, and the
    exit code is 1.
    """
    # torch is imported only when a batch is rebuilt
    from seqdata.cli._report.batch import save_batch, summarize_batch
    from seqdata.runs.locate_batch import ReplayRequest, remake_batch, remake_metadata
    from seqdata.runs.replay import open_replay

    replayed = open_replay(config, ReplayRequest(**_drop_unset(which)), kind, name, backend=backend)
    player, located = replayed.engine, replayed.located
    failure: Exception | None = None
    try:
        batch = remake_batch(player, located)
    except Exception as error:
        batch, failure = remake_metadata(player, located), error
    world = located.share.world
    facts = {
        "config": str(config), "kind": kind, "name": name, "step": located.step,
        "rank": world.rank, "world": world.size, **summarize_batch(batch, player.store),
        "went_on_from": player.options.error_log.entries, "error": _describe_failure(failure),
    }  # fmt: skip
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        _print_report(facts)
    if failure is not None:
        _raise_failure(failure, as_json)
    if save is not None:
        save_batch(batch, player.store, save)
        make_console(stderr=as_json).print(f"saved: {save}")


def _drop_unset(options: dict[str, int | None]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _describe_failure(failure: Exception | None) -> dict[str, Any] | None:
    if failure is None:
        return None
    notes = [*getattr(failure, "__notes__", ())]
    return {"type": type(failure).__name__, "message": str(failure), "notes": notes}


def _raise_failure(failure: Exception, as_json: bool) -> None:
    """Raise the error: one of seqdata as one line, any other with the place where it was raised."""
    if as_json:
        raise SystemExit(EXIT_DATA) from failure
    raise failure


def _print_report(facts: dict[str, Any]) -> None:
    """Print the facts; of zipped parts, of one after another."""
    out = make_console()
    parts = facts.get("parts")
    for name, part in ({} if parts is None else parts).items():
        out.print(f"part {name}")
        _print_batch({**facts, **part})
    if parts is None:
        _print_batch(facts)
    for row in facts["went_on_from"]:
        out.print(f"skipped: {row['error']}: {row['message']}")


def _print_batch(facts: dict[str, Any]) -> None:
    out = make_console()
    out.print(
        f"epoch {facts['epoch']}, batch {facts['number']} (step {facts['step']}, rank "
        f"{facts['rank']} of {facts['world']}): {facts['rows']:,} rows of up to "
        f"{facts['longest']:,} timesteps"
        + (f", {facts['filler']:,} of weight 0" if facts["filler"] else "")
    )
    out.print(
        f"{facts['timesteps']:,} timesteps, {facts['padded']:,} with padding: "
        f"{100 * facts['padding']:.2f} % is padding; {facts['num_tokens']:,} count, of "
        f"{facts['global_num_tokens']:,} in the step and {facts['update_num_tokens']:,} in the "
        f"update (loss_scale {facts['loss_scale']:.6g})"
    )
    sequences = facts["sequences"]
    if sequences:
        table = Table(*sequences[0], title="Sequences", title_justify="left")
        for row in sequences[:_MAX_SHOWN]:
            table.add_row(*map(str, row.values()))
        out.print(table)
    if len(sequences) > _MAX_SHOWN:
        out.print(f"and {len(sequences) - _MAX_SHOWN:,} more; --json has all")
    if facts["fields"]:
        table = Table("field", *_STATS, title="Fields, without padding", title_justify="left")
        for name, row in facts["fields"].items():
            table.add_row(name, *(_format_cell(row.get(figure)) for figure in _STATS))
        out.print(table)


def _format_cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
