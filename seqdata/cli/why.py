"""``seqdata why``: names the sequences that made the loss of a step high."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from seqdata.cli._report.console import (
    backend_option,
    format_examples,
    iter_table,
    json_option,
    keep_whole,
    print_lines,
    print_report,
    report_errors,
)
from seqdata.runs.loss_files import LossFiles
from seqdata.runs.step_losses import MIN_COMPARED, OUTLYING, StepLosses
from seqdata.runs.suspects import StepReport, Suspect, explain_steps

if TYPE_CHECKING:
    from seqdata.runs.replay import RunSequences

_TEXTS = ("place", "part", "key")  # columns that are not numbers


@click.command(
    short_help="Name the sequences that made the loss of a step high.",
    epilog=format_examples(
        "seqdata why logs/version_0 --step 4711",
        "seqdata why logs/version_0",
        "seqdata why logs/version_0 logs/version_1 --step 4711 --top 3 --json",
    ),
)
@click.argument("run", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@backend_option
@click.option("--step", type=int, help="The step, as loggers number it [default: the worst steps].")
@click.option(
    "--top", type=click.IntRange(min=1), default=10, show_default=True,
    help="Most sequences, or steps, to show.",
)  # fmt: skip
@json_option
@report_errors
def why(
    run: Sequence[Path], backend: str | None, step: int | None, top: int, as_json: bool
) -> None:
    """Name the sequences whose loss made a step's loss high; without a step, the worst steps.

    RUN is the folder of a run that was trained with the callback LossRecord; of a run that was
    resumed in another folder, all its folders in order. Keys and places of sequences are looked up
    in the data of seqdata-run.yaml, whose functions and classes are imported: trust it as you trust
    code.
    """
    from seqdata.runs.replay import RunSequences  # imports torch

    losses = LossFiles.open([path.parent if path.is_file() else path for path in run])
    table = StepLosses.read(losses)
    steps = table.find_worst(top) if step is None else [step]
    reports = explain_steps(losses, table, steps, top if step is not None else 1)
    sequences = RunSequences.open(losses.run_folders, backend)
    plain = {
        "run": [str(path) for path in run], "score": losses.score, "recorded": len(table),
        "steps": [_describe_report(report, sequences) for report in reports],
        "problems": list(losses.problems), "data_problem": sequences.problem or None,
    }  # fmt: skip
    if not as_json:
        print_lines((f"note: {problem}" for problem in losses.problems), stderr=True)
        if sequences.problem:
            note = f"note: keys and places are unknown: {sequences.problem}"
            print_lines([note], stderr=True)
    if step is None:
        lines = _iter_worst_lines(reports, table, sequences, run)
    else:
        lines = _iter_step_lines(reports[0], table, sequences, run)
    print_report(plain, lines, as_json=as_json)


def _describe_report(report: StepReport, sequences: RunSequences) -> dict[str, Any]:
    return {
        **asdict(report), "stands_out": report.stands_out,
        "suspects": [_describe_suspect(suspect, sequences) for suspect in report.suspects],
    }  # fmt: skip


def _describe_suspect(suspect: Suspect, sequences: RunSequences) -> dict[str, Any]:
    location = sequences.find_location(suspect.part, suspect.id)
    return {
        **asdict(suspect),
        "key": sequences.find_key(suspect.part, suspect.id),
        "place": None if location is None else location.details,
        "replay": _make_replay_command(suspect, sequences),
    }


def _make_replay_command(suspect: Suspect, sequences: RunSequences) -> str | None:
    if sequences.run_file is None:
        return None
    batch = ["--epoch", str(suspect.epoch), "--batch", str(suspect.batch)]
    return shlex.join(["seqdata", "replay", str(sequences.run_file), *batch])


def _iter_worst_lines(
    reports: Sequence[StepReport], table: StepLosses, sequences: RunSequences, run: Sequence[Path]
) -> Iterator[str | Text]:
    found = sum(report.stands_out for report in reports)
    note = "the farthest first" if found else "none of them stands out"
    yield (
        f"{len(table):,} steps from {table.steps[0]} to {table.steps[-1]}; those above the losses "
        f"around them, {note}:"
    )
    has_parts = any(report.suspects[0].part is not None for report in reports)
    titles = ["step", "loss", "usually", "sd", "its loss", "before", "drawn", *_label(has_parts)]
    rows = []
    for report in reports:
        first = report.suspects[0]
        rows.append([
            str(report.step), _format(report.loss), _format(report.usual),
            _format(report.distance), _format(first.score), _format(first.mean_before),
            str(first.draws), *_identify(first, sequences, has_parts=has_parts),
        ])  # fmt: skip
    yield from iter_table(titles, rows, left=_TEXTS)
    yield "All sequences of a step:"
    yield keep_whole(f"  seqdata why {_join(run)} --step {reports[0].step}")


def _iter_step_lines(
    report: StepReport, table: StepLosses, sequences: RunSequences, run: Sequence[Path]
) -> Iterator[str | Text]:
    side = "below" if report.distance < 0 else "above"
    distance = f"{_format(abs(report.distance))} standard deviations {side}"
    if len(table) <= MIN_COMPARED:
        distance = "too few steps are recorded to say how far that is"
    yield (
        f"step {report.step}: loss {_format(report.loss)}, usually {_format(report.usual)} "
        f"({distance}); {report.sequences:,} sequence{'s' if report.sequences != 1 else ''} in "
        f"{report.batches:,} batch{'es' if report.batches != 1 else ''}"
    )
    yield from _list_findings(report, table, run)
    yield from _iter_suspect_lines(report, sequences)
    first = report.suspects[0]
    location = sequences.find_location(first.part, first.id)
    if location is not None:
        yield f"The first is {location}"
    command = _make_replay_command(first, sequences)
    if command is not None:
        yield "See its batch:"
        yield keep_whole(f"  {command}")


def _list_findings(report: StepReport, table: StepLosses, run: Sequence[Path]) -> list[str]:
    """Return the remarks that precede the table."""
    findings = []
    first_non_finite = table.find_first_non_finite()
    if first_non_finite is not None and first_non_finite < report.step:
        findings.append(
            f"The loss was already not finite at step {first_non_finite}. Look at that step first: "
            f"seqdata why {_join(run)} --step {first_non_finite}"
        )
    elif not report.stands_out and len(table) > MIN_COMPARED:
        findings.append("The step does not stand out from those around it.")
    elif report.level_distance >= OUTLYING and not report.is_shared:
        findings.append(
            f"Most sequences of the step are high (median {_format(report.level)}): the updates "
            "before it may be the cause. Look at the steps just before it."
        )
    if report.is_shared:
        findings.append(
            "Only the loss of each batch was recorded: sequences are ordered by what all their "
            'batches have in common. LossRecord(score="losses") records a loss for each row.'
        )
    if report.tied > 1:
        findings.append(
            f"The first {report.tied} sequences were always in the same batches, so that losses of "
            "batches cannot tell them apart."
        )
    elif not report.is_explained:
        findings.append("No sequence of the step stands out from the others.")
    return findings


def _iter_suspect_lines(report: StepReport, sequences: RunSequences) -> Iterator[str | Text]:
    has_parts = any(suspect.part is not None for suspect in report.suspects)
    figures = ["loss", "before", "drawn", *([] if report.is_shared else ["share"])]
    titles = [*figures, "epoch", "batch", "place", *_label(has_parts)]
    rows = []
    for suspect in report.suspects:
        location = sequences.find_location(suspect.part, suspect.id)
        share = "" if suspect.share is None else f"{100 * suspect.share:.1f} %"
        rows.append([
            _format(suspect.score), _format(suspect.mean_before), str(suspect.draws),
            *([] if report.is_shared else [share]), str(suspect.epoch), str(suspect.batch),
            "" if location is None or location.shard is None else f"shard {location.shard}",
            *_identify(suspect, sequences, has_parts=has_parts),
        ])  # fmt: skip
    yield from iter_table(titles, rows, left=_TEXTS)
    if report.sequences > len(report.suspects):
        yield f"and {report.sequences - len(report.suspects):,} more; --top shows more of them"


def _label(has_parts: bool) -> list[str]:
    """Return the titles of the last columns, which may be long."""
    return ["id", *(["part"] if has_parts else []), "key"]


def _identify(suspect: Suspect, sequences: RunSequences, *, has_parts: bool) -> list[str]:
    """Return the id, the part if there are any, and the key of a sequence."""
    key = sequences.find_key(suspect.part, suspect.id) or ""
    return [str(suspect.id), *([suspect.part or ""] if has_parts else []), key]


def _format(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _join(run: Sequence[Path]) -> str:
    return shlex.join(map(str, run))
