"""``seqdata replay``: one batch of a run, made again and shown.

Place in the flow: run file -> a batch -> a report, a file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from seqdata.cli._report.console import DATA, backend_option, console, examples, reporting

_SHOWN = 32  # sequences of a table; --json has all
_FIGURES = ("dtype", "shape", "min", "mean", "max", "nan", "inf")


@click.command(
    epilog=examples(
        "seqdata replay logs/version_0/seqdata-run.yaml --epoch 2 --batch 4711",
        "seqdata replay seqdata-run.yaml --epoch 2 --batch 4711 --save batch.pt",
        "seqdata replay seqdata-run.yaml --epoch 2 --step 1177 --rank 3 --world 4",
        "seqdata replay seqdata-run.yaml --epoch 0 --batch 3 --kind val --name clean --json",
    )
)
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
@backend_option
@click.option("--epoch", type=int, required=True, help="Epoch of the plan.")
@click.option("--batch", type=int, help="Number of the batch in the plan, as errors say it.")
@click.option("--step", type=int, help="Instead of it: a step of a rank.")
@click.option("--rank", type=int, help="Whose step [default: 0]; with --batch: whose lanes.")
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
    help="What the batch was made for.",
)
@click.option("--name", help="Of the data set, where there are several of a kind.")
@click.option("--save", type=click.Path(dir_okay=False, path_type=Path), help="A .pt or .npz file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@reporting
def replay(
    config: Path,
    backend: str | None,
    kind: Any,
    name: str | None,
    save: Path | None,
    as_json: bool,
    **which: int | None,
) -> None:
    """Make one batch of a run again, bit by bit, and show it.

    CONFIG is the seqdata-run.yaml that a fit wrote into the Trainer's log folder. It names
    functions and classes, whose modules are imported: trust it as you trust code. No GPU, Trainer
    or model is needed. Where the batch cannot be made, what was planned is shown, then the error;
    the exit code is then 1.
    """
    # torch is imported only when a batch is made
    from seqdata.cli._report.batch import batch_figures, save_batch
    from seqdata.runs.locate_batch import Wanted, described, made_again
    from seqdata.runs.replay import replay_from

    made = replay_from(config, Wanted(**_given(which)), kind, name, backend=backend)
    player, found = made.player, made.found
    failure: Exception | None = None
    try:
        batch = made_again(player, found)
    except Exception as error:
        batch, failure = described(player, found), error
    world = found.share.world
    facts = {
        "config": str(config), "kind": kind, "name": name, "step": found.step,
        "rank": world.rank, "world": world.size, **batch_figures(batch, player.store),
        "went_on_from": player.options.tally.found, "error": _told(failure),
    }  # fmt: skip
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        _print(facts)
    if failure is not None:
        _fail(failure, as_json)
    if save is not None:
        save_batch(batch, player.store, save)
        console(stderr=as_json).print(f"saved: {save}")


def _given(which: dict[str, int | None]) -> dict[str, Any]:
    return {name: value for name, value in which.items() if value is not None}


def _told(failure: Exception | None) -> dict[str, Any] | None:
    if failure is None:
        return None
    notes = [*getattr(failure, "__notes__", ())]
    return {"type": type(failure).__name__, "message": str(failure), "notes": notes}


def _fail(failure: Exception, as_json: bool) -> None:
    """End with the error: ours in a line, another's with where it was raised."""
    if as_json:
        raise SystemExit(DATA) from failure
    raise failure


def _print(facts: dict[str, Any]) -> None:
    out = console()
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
        for one in sequences[:_SHOWN]:
            table.add_row(*map(str, one.values()))
        out.print(table)
    if len(sequences) > _SHOWN:
        out.print(f"and {len(sequences) - _SHOWN:,} more; --json has all")
    if facts["fields"]:
        table = Table("field", *_FIGURES, title="Fields, without padding", title_justify="left")
        for name, one in facts["fields"].items():
            table.add_row(name, *(_cell(one.get(figure)) for figure in _FIGURES))
        out.print(table)
    for one in facts["went_on_from"]:
        out.print(f"went on from: {one['error']}: {one['message']}")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
