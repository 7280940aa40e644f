"""The page: Markdown that MyST renders, with a chart and a table for each question."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench_set import charts
from bench_set.charts import say
from bench_set.results import Results
from bench_set.rows import OURS, Answer, Row

FAULTS = ("faults.md", "../explanation/torture.md")  # beside the page, or as long as it is there
SPEED = ("speed.md", "../explanation/speed.md")


class Section(NamedTuple):
    """How a question is shown.

    Attributes:
        title: Heading.
        text: What is asked, and what is equal for all.
        charted: Beginning of the settings that are drawn.
        axis: Name of the axis of the chart.
    """

    title: str
    text: str
    charted: str
    axis: str


SECTIONS = {
    "padding": Section(
        "Padding, at equal mixing",
        "Each rule makes batches of 64 from each set of lengths. Low padding is easy to reach if "
        "batches are not shuffled, so the table also shows how often two sequences of a batch meet "
        'again in the next epoch, as a multiple of random batches ("met again 2x"). The last row '
        "of each set shows the best of ten pool sizes, from 5 to 300 batches, that mix at least as "
        "well as seqdata.",
        "short tokens (S)", "% padding",
    ),
    "speed": Section(
        "Batches per second",
        "A loop draws padded batches of 64 with their lengths and does nothing else. The files are "
        "in the page cache. All loaders return the same sequences in the same dtype, each in its "
        "own order.",
        "", "µs per batch",
    ),
    "waiting": Section(
        "Waiting, in the same Trainer",
        "The same Lightning Trainer trains the same LSTM(32) on one CPU thread, without workers. A "
        "step takes a few milliseconds. The table shows the share of a step that the Trainer "
        "spends in `next()`, measured by Lightning's profiler. Loaders that support bucketing use "
        "it.",
        "", "% of a step spent waiting",
    ),
    "windows": Section(
        "Windows",
        "A batch has 256 windows of 96 + 24 timesteps of two float32 fields, cut at random "
        "positions of 300 series.",
        "", "µs per batch",
    ),
    "first_batch": Section(
        "First batch",
        "The time from the end of `import torch` to the first batch, in a fresh process without "
        "workers.",
        "", "ms",
    ),
    "resume": Section(
        "Resume",
        "The time from a saved state to the next batch, in a process that has imported the "
        "library, without workers. The script compares the next three batches with those of an "
        "uninterrupted run.",
        "at 99 %", "ms",
    ),
    "memory": Section(
        "Memory of a worker",
        "The anonymous memory of all child processes of the training process, after 100 batches "
        "with one worker. A page that several processes share is divided equally among them. "
        "Memory-mapped files are not counted.",
        "", "MiB",
    ),
    "writing": Section(
        "Writing",
        "The writer of each library writes the same sequences from memory, in one process.",
        "", "µs per sequence",
    ),
    "mixing": Section(
        "Exactness of shares",
        "The benchmark mixes 100 datasets with weights from 10⁻⁴ to 1. The table shows the "
        "largest deviation from the weights at any point of the epoch, in draws. seqdata draws "
        "batches, and the other libraries draw sequences.",
        "", "most draws off the weights",
    ),
    "remote": Section(
        "From S3, on the same machine",
        "Each loader reads an epoch from a small server with the S3 API, starting with an empty "
        "cache. The server runs on the loopback interface, shares the cores with the loaders, and "
        "counts bytes and requests.",
        "", "s for an epoch",
    ),
    "cold": Section(
        "Cold files",
        "The benchmark drops the files from the page cache with `posix_fadvise`. The loader then "
        "reads until the epoch ends or a few seconds have passed. Each sequence is read once, as "
        "with data larger than memory. The host of a virtual machine may cache the virtual disk.",
        "", "sequences per second",
    ),
    "planning": Section(
        "Planning",
        "The time until the first batch of a bucketed epoch is planned, in a fresh process with "
        "the lengths in memory.",
        "", "s",
    ),
}  # fmt: skip

README = ("short tokens, random, in process", "frames, random, in process")
"""Settings of "speed" that the README shows."""

REASONS = {
    "speed": "seqdata makes batches in a thread, so that they are ready when the model needs them. "
    "A loop that does nothing else pays for the thread and gains nothing: see the rows of "
    "`prefetch=0`.",
    "padding": "the failing set has about a dozen batches and the heaviest tail of the ten sets. "
    "seqdata adds noise to the lengths before it cuts batches. The noise costs most if a single "
    "long file determines the length of a batch. The cause was not investigated further.",
    "remote": "a random batch needs values of all files, so seqdata fetches each file completely "
    "before the first batch. That takes most of the time. The client and the server share two "
    "cores.",
    "waiting": "if other programs use the cores, as the load averages show, the prefetch thread "
    "competes with the training step for a core. The cause was not investigated further.",
}
"""Question -> why an aim was missed, as far as it was looked into."""


def write_page(results: Results, docs: Path) -> None:
    """Write index.md and the charts beside it."""
    pictures = docs / "pictures"
    pictures.mkdir(exist_ok=True)
    lines = list(_head(results))
    for name, section in SECTIONS.items():
        lines += _section(results, name, section, pictures)
    speed = results.answers.get("speed")
    if speed is not None and all(speed.find(setting, OURS) for setting in README):
        charts.draw_for_readme(speed, pictures, list(README), SECTIONS["speed"].axis)
    lines += _slower(results)
    lines += _tail(results, docs)
    (docs / "index.md").write_text("\n".join(lines) + "\n", "utf-8")


def _head(results: Results) -> Iterator[str]:
    machine = results.machine
    yield "# Benchmarks"
    yield ""
    yield (
        "This page compares seqdata with other sequence loaders. One command runs all loaders on "
        "one machine, with the same data and the same batches. Each loader has an adapter of at "
        "most 60 lines in `benchmarks/peers`, with the settings that its guide recommends. If your "
        "loader could be faster, please correct its adapter."
    )
    yield ""
    if results.quick:
        yield "**Measured with `--quick`: small data, few rounds. Do not cite these results.**\n"
    yield (
        f"Measured {machine['date'][:16].replace('T', ' ')} UTC at commit {machine['commit']}: "
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}; Python {machine['python']}, torch {machine['torch']}, NumPy "
        f"{machine['numpy']}. Load average when it began: {machine['load'][0]}"
        + _loads(results)
        + ". A figure is the median of rounds in which the loaders took turns, with the least and "
        "the most in brackets. [results.json](results.json) contains all results."
    )
    yield ""
    yield "Our aims, and what was found:\n"
    yield "| aim | found | |\n|---|---|---|"
    for answer in results.answers.values():
        for aim in answer.aims:
            yield f"| {aim.text} | {aim.found} | {'met' if aim.is_met else '**missed**'} |"
    yield ""


def _loads(results: Results) -> str:
    loads = [each["load_before"] for each in results.asked.values()]
    loads += [each["load_after"] for each in results.asked.values()]
    if not loads or max(loads) <= results.machine["cores"]:
        return ""
    return (
        f"; during the run {min(loads)} to {max(loads)} on {results.machine['cores']} cores. "
        "**Other programs ran at the same time**, so rely on ratios more than on times, and do not "
        "rely on rows with a wide range"
    )


def _section(results: Results, name: str, section: Section, pictures: Path) -> Iterator[str]:
    yield f"## {section.title}\n"
    yield section.text
    yield ""
    if name in results.failed:
        yield f"Not measured in this run: {results.failed[name]}\n"
    if name not in results.answers:
        if name not in results.failed:
            yield "Not measured in this run.\n"
        return
    answer = results.answers[name]
    settings = list(dict.fromkeys(row.setting for row in answer.rows if row.values))
    charted = [setting for setting in settings if setting.startswith(section.charted)]
    if charted:
        charts.draw(answer, pictures / f"{name}.svg", charted, section.axis)
        yield f"![{section.title}: {section.axis}](pictures/{name}.svg)\n"
    script = f"benchmarks/bench_set/{name}.py"
    asked = results.asked[name]
    yield (
        f'Script: [`{script}`](../../{script}), `make bench BENCH="--only {name}"`. Load '
        f"{asked['load_before']} to {asked['load_after']}, "
        f"{asked['date'][:16].replace('T', ' ')}.\n"
    )
    yield from _table(answer, settings)
    yield from (f"{note}\n" for note in answer.notes)
    if name in REASONS and not all(aim.is_met for aim in answer.aims):
        yield f"Why an aim is missed: {REASONS[name]}\n"
    if answer.left_out:
        reasons = "; ".join(f"{who} ({_shorten(why)})" for who, why in answer.left_out.items())
        yield f"Not measured: {reasons}.\n"


def _shorten(why: str) -> str:
    """Return a reason without the name of our exception and temporary folders."""
    return re.sub(r"/tmp/\S*/", "", why.removeprefix("LeftOut: "))


def _table(answer: Answer, settings: list[str]) -> Iterator[str]:
    ratios = "ratio (above 1: seqdata is better)"
    yield f"| setting | loader | {answer.unit} | {ratios} | |"
    yield "|---|---|--:|--:|---|"
    for setting in settings:
        rows = [row for row in answer.rows if row.setting == setting]
        mine = answer.find(setting, OURS)
        for row in rows:
            cells = (setting, row.loader, _figures(row), _ratio(answer, row, mine), row.note)
            yield f"| {' | '.join(cells)} |"
    yield ""


def _figures(row: Row) -> str:
    if not row.values:
        return ""
    if len(row.values) == 1:
        return say(row.median)
    return f"{say(row.median)} [{say(min(row.values))}..{say(max(row.values))}]"


def _ratio(answer: Answer, row: Row, mine: float | None) -> str:
    if mine is None or not row.values or row.loader == OURS:
        return ""
    both = (mine, row.median) if answer.more_is_better else (row.median, mine)
    return f"{say(both[0] / both[1])}x" if min(both) > 0 else ""


def _slower(results: Results) -> Iterator[str]:
    """List every setting in which somebody's median is better than ours."""
    yield "## Where we are slower\n"
    yield "In these settings, another loader has a better median than seqdata.\n"
    yield "| question | setting | better | theirs | ours |\n|---|---|---|--:|--:|"
    for name, answer in results.answers.items():
        for row in answer.rows:
            mine = answer.find(row.setting, OURS)
            if mine is None or not row.values or row.loader.startswith(OURS):
                continue
            if row.median > mine if answer.more_is_better else row.median < mine:
                cells = (SECTIONS[name].title, row.setting, row.loader, say(row.median), say(mine))
                yield f"| {' | '.join(cells)} |"
    yield ""


def _tail(results: Results, docs: Path) -> Iterator[str]:
    yield "## Damage, and what comes of it\n"
    yield f"[The same damage, here and in other libraries]({_first_there(docs, FAULTS)})"
    yield "shows how each library reacts to a flipped bit, a missing shard or a dead worker.\n"
    yield "## What each does not do\n"
    yield "| loader | |\n|---|---|"
    for title, lacks in results.lacks.items():
        yield f"| {title} | {lacks} |"
    yield ""
    for module, why in {**results.not_installed, **results.left_out}.items():
        yield f"Not measured at all: {module} ({_shorten(why)}).\n"
    versions = ", ".join(f"{name} {each}" for name, each in sorted(results.versions.items()))
    yield f"Versions: {versions}.\n"
    yield "## Run it\n"
    yield "```sh no-run\nmake bench                          # everything, this page"
    yield "make bench BENCH=--quick            # small data, in bench-quick/, under 3 minutes"
    yield 'make bench BENCH="--only speed"     # one question; the rest of the page stays\n```\n'
    speed = _first_there(docs, SPEED)
    yield f"Before you compare your own loader, read [Measure the speed]({speed})."
    if speed == SPEED[0]:
        yield "\n```{toctree}\n:hidden:\n:titlesonly:\n\nspeed\nfaults\n```"


def _first_there(docs: Path, pages: tuple[str, ...]) -> str:
    return next((page for page in pages if (docs / page).exists()), pages[-1])
