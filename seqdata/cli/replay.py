"""``seqdata replay``: rebuilds one batch of a run and shows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from seqdata.cli._report.console import (
    EXIT_DATA,
    backend_option,
    format_examples,
    iter_table,
    json_option,
    print_lines,
    print_report,
    report_errors,
)

_MAX_SHOWN = 32  # most sequences of a table; --json has all
_STATS = ("dtype", "shape", "min", "mean", "max", "nan", "inf")


@click.command(
    short_help="Rebuild one batch of a run, bit for bit.",
    epilog=format_examples(
        "seqdata replay logs/version_0/seqdata-run.yaml --epoch 2 --batch 4711",
        "seqdata replay seqdata-run.yaml --epoch 2 --batch 4711 --save batch.pt",
        "seqdata replay seqdata-run.yaml --epoch 2 --step 1177 --rank 3 --world 4",
        "seqdata replay seqdata-run.yaml --epoch 0 --batch 3 --kind val --json",
    ),
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
@click.option("--name", help="Name of the dataset, if there are several of a kind.")
@click.option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the batch to a .pt or .npz file.",
)
@json_option
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
    exit status is 1.
    """
    # torch is imported only when a batch is rebuilt
    from seqdata.cli._report.batch import save_batch, summarize_batch
    from seqdata.runs.locate_batch import ReplayRequest, remake_batch, remake_metadata
    from seqdata.runs.replay import open_replay

    replayed = open_replay(config, ReplayRequest(**_drop_unset(which)), kind, name, backend=backend)
    engine, located = replayed.engine, replayed.located
    failure: Exception | None = None
    try:
        batch = remake_batch(engine, located)
    except Exception as error:
        batch, failure = remake_metadata(engine, located), error
    world = located.share.world
    info = {
        "config": str(config), "kind": kind, "name": name, "step": located.step,
        "rank": world.rank, "world": world.size, **summarize_batch(batch, engine.store),
        "went_on_from": engine.options.error_log.entries, "error": _describe_failure(failure),
    }  # fmt: skip
    print_report(info, _iter_lines(info), as_json=as_json)
    if failure is not None:
        _raise_failure(failure, as_json)
    if save is not None:
        save_batch(batch, engine.store, save)
        print_lines([f"saved: {save}"], stderr=as_json)


def _drop_unset(options: dict[str, int | None]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _describe_failure(failure: Exception | None) -> dict[str, Any] | None:
    if failure is None:
        return None
    notes = [*getattr(failure, "__notes__", ())]
    return {"type": type(failure).__name__, "message": str(failure), "notes": notes}


def _raise_failure(failure: Exception, as_json: bool) -> None:
    """Raise the error; with JSON, which has the error, only end with an exit status."""
    if as_json:
        raise SystemExit(EXIT_DATA) from failure
    raise failure


def _iter_lines(info: dict[str, Any]) -> Iterator[str | Text]:
    """Yield the lines and tables of a batch, or of zipped parts one after another."""
    parts = info.get("parts")
    for name, part in ({} if parts is None else parts).items():
        yield f"part {name}"
        yield from _iter_batch_lines({**info, **part})
    if parts is None:
        yield from _iter_batch_lines(info)
    for row in info["went_on_from"]:
        yield f"skipped: {row['error']}: {row['message']}"


def _iter_batch_lines(info: dict[str, Any]) -> Iterator[str | Text]:
    yield (
        f"epoch {info['epoch']}, batch {info['number']} (step {info['step']}, rank "
        f"{info['rank']} of {info['world']}): {info['rows']:,} rows of up to "
        f"{info['longest']:,} timesteps"
        + (f", {info['filler']:,} of weight 0" if info["filler"] else "")
    )
    yield (
        f"{info['timesteps']:,} timesteps, {info['padded']:,} with padding: "
        f"{100 * info['padding']:.2f} % is padding; {info['num_tokens']:,} count, of "
        f"{info['global_num_tokens']:,} in the step and {info['update_num_tokens']:,} in the "
        f"update (loss_scale {info['loss_scale']:.6g})"
    )
    sequences = info["sequences"]
    if sequences:
        yield "Sequences"
        titles = [*(name for name in sequences[0] if name != "key"), "key"]  # may be long
        rows = [[str(row[name]) for name in titles] for row in sequences[:_MAX_SHOWN]]
        yield from iter_table(titles, rows, left=("reset", "key"))
    if len(sequences) > _MAX_SHOWN:
        yield f"and {len(sequences) - _MAX_SHOWN:,} more; --json has all"
    if info["fields"]:
        yield "Fields, without padding"
        cells = [
            [name, *(_format_cell(row.get(figure)) for figure in _STATS)]
            for name, row in info["fields"].items()
        ]
        yield from iter_table(("field", *_STATS), cells, left=("field", "dtype", "shape"))


def _format_cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
