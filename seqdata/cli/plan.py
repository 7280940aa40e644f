"""``seqdata plan``: the figures of an epoch, before it is trained."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast, get_args

import click
import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from seqdata.api import open_store
from seqdata.cli._report.console import (
    backend_option,
    format_examples,
    join_locations,
    json_option,
    print_report,
    report_errors,
)
from seqdata.cli._report.ledger import STDOUT, iter_ledger, write_ledger
from seqdata.cli._report.mixture import (
    MIX_OPTIONS,
    PartStats,
    compute_part_stats,
    compute_zip_stats,
    join_measures,
    make_mixture,
    make_parts_table,
    make_zip,
    measure_parts,
    open_parts,
    parse_batch_sizes,
    parse_weights,
)
from seqdata.cli._report.plots import draw_lanes, draw_plan
from seqdata.cli._report.statistics import WorldStats, compute_idle_share, compute_world_stats
from seqdata.errors import ConfigError
from seqdata.index import SequenceIndex
from seqdata.plan import Plan
from seqdata.planning.build import describe_policy
from seqdata.planning.policy import balance_ranks
from seqdata.policies.curriculum import Curriculum
from seqdata.policies.mix import Mix
from seqdata.policies.zip import Zip
from seqdata.protocols import Policy
from seqdata.report import BatchMeasures
from seqdata.resolve import resolve_policy
from seqdata.sharing import Tail

CURRICULUM_OPTIONS = ("curriculum", "segment")
"""Options of the command for the curriculum; without a mixture also ``batches``."""

_EXAMPLE = "0:256,2:1024,5:none"


def parse_rules(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> tuple[tuple[int, int | None], ...] | None:
    """Parse pairs such as ``0:256,2:1024,5:none``; none: no limit."""
    if text is None:
        return None
    pairs = [pair.partition(":") for pair in text.split(",")]
    try:
        rules = tuple(
            (int(number), None if limit.strip().lower() == "none" else int(limit))
            for number, _, limit in pairs
        )
    except ValueError:
        raise click.BadParameter(f"must be pairs like {_EXAMPLE}, but is {text!r}") from None
    numbers = [number for number, _ in rules]
    is_rising = numbers[0] == 0 and numbers == sorted(set(numbers))
    if not is_rising or any(limit is not None and limit < 1 for _, limit in rules):
        raise click.BadParameter(
            f"must rise from 0, with lengths of at least 1, like {_EXAMPLE}, but is {text!r}"
        )
    return rules


def take_curriculum_options(options: dict[str, Any], *, has_mix: bool) -> dict[str, Any]:
    """Remove the options of a curriculum from all options, and return them by its argument names.

    Raises:
        ConfigError: If an option is given without ``--curriculum``.
    """
    of_epoch = ("batches",) if "curriculum" in options and not has_mix else ()
    names = (*CURRICULUM_OPTIONS, *of_epoch)
    curriculum_options = {name: options.pop(name) for name in names if name in options}
    if curriculum_options and "curriculum" not in curriculum_options:
        raise ConfigError(
            "plan: `--segment` must come with `--curriculum`, but there is none. Pass e.g. "
            f"--curriculum {_EXAMPLE}."
        )
    if curriculum_options:
        curriculum_options["max_length"] = curriculum_options.pop("curriculum")
    return curriculum_options


def limit_lengths(policy: Policy, options: dict[str, Any]) -> Policy:
    """Return a policy whose limit of length rises during the run; unchanged without options.

    Raises:
        ConfigError: If an option is invalid, or the policy has no limit of length.
    """
    return Curriculum(policy, **options) if options else policy


_DEFAULT = "token-budget"
_LISTED = 5  # most sequences named in a list


def _parse_sizes(_context: click.Context, _option: click.Parameter, text: str) -> tuple[int, ...]:
    """Parse numbers such as ``1,2,8``, each at least 1."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise click.BadParameter(f"must be numbers of ranks like 1,2,8, but is {text!r}")
    return tuple(int(part) for part in parts)


def _make_flag(name: str, help: str) -> Callable[[Any], Any]:
    """Return a flag that is None unless it is given, since other policies do not have it."""
    return click.option(name, is_flag=True, flag_value=True, default=None, help=help)


@click.command(
    epilog=format_examples(
        "seqdata plan store/ --batching token-budget --max-tokens 16384 --world 1,2,8",
        "seqdata plan store/ --batching bucketed --batch-size 64 --plot plan.png",
        "seqdata plan store/ --batching fixed --batch-size 32 --max-length 512 --too-long split",
        "seqdata plan store/ --max-tokens 16384 --world 8 --tail drop --ledger left-out.jsonl",
        "seqdata plan store/ --batching tbptt --lanes 64 --chunk 256 --plot lanes.png",
        "seqdata plan store/ --batching packed --rows 8 --row-length 1024",
        "seqdata plan store/ --batching windows --size 96 --horizon 24 --stride 1 --batch-size 256",
        "seqdata plan books-1/ books-2/ --max-tokens 16384",
        "seqdata plan books/ code/ --mix 0.7,0.3 --by timesteps --max-tokens 16384",
        "seqdata plan store/ --max-tokens 16384 --curriculum 0:256,9:none --segment 500 --epoch 2",
        "seqdata plan labelled/ unlabelled/ --zip 16,64 --lead labelled --batching bucketed",
    )
)
@click.argument("stores", nargs=-1, required=True, metavar="STORE...")
@backend_option
@click.option(
    "--mix", callback=parse_weights, metavar="WEIGHTS", help="Weights of several stores: 0.7,0.3."
)
@click.option(
    "--zip",
    "sizes",
    callback=parse_batch_sizes,
    metavar="SIZES",
    help="A batch of each store in every step: its --max-tokens, or --batch-size: 16,64.",
)
@click.option("--lead", metavar="NAME", help="Store whose epochs are those of the steps (--zip).")
@click.option("--by", help="What their shares are of: batches, timesteps or sequences (--mix).")
@click.option("--batches", type=int, help="Batches of an epoch (--mix, --curriculum).")
@click.option("--temperature", type=float, help="Weights are multiplied by n^(1/T) (--mix).")
@click.option(
    "--batches-per-update",
    type=click.IntRange(min=1),
    help="Batches of an optimizer update over all ranks: the order is then the same on any world.",
)
@click.option(
    "--curriculum",
    callback=parse_rules,
    metavar="RULES",
    help="Most timesteps of a row by epoch, or by --segment: 0:256,2:1024,5:none.",
)
@click.option("--segment", type=int, help="Batches of a segment; counts by it (--curriculum).")
@click.option("--batching", help="Name of a policy [default: token-budget].")
@click.option("--max-tokens", type=int, help="Most timesteps of a batch, padding included.")
@click.option("--batch-size", type=int, help="Rows of a batch.")
@click.option("--max-length", type=int, help="Most timesteps of a row.")
@click.option("--too-long", help="error, split, truncate or drop.")
@click.option("--keep", help="first or last: the part of a truncated sequence that is kept.")
@click.option("--lanes", type=int, help="Lanes of all ranks together (tbptt).")
@click.option("--chunk", type=int, help="Most timesteps of a lane's row (tbptt).")
@click.option("--advance", type=int, help="Timesteps from one chunk to the next (tbptt).")
@_make_flag("--continuous", help="One stream in equal columns (tbptt).")
@_make_flag("--segments", help="Rows continue with the lane's next sequence (tbptt).")
@_make_flag("--jitter", help="Chunk lengths vary from step to step (tbptt).")
@click.option("--rows", type=int, help="Rows of a batch, each of several sequences (packed).")
@click.option("--row-length", type=int, help="Timesteps of a row (packed).")
@click.option("--size", type=int, help="Timesteps of a window (windows).")
@click.option("--stride", type=int, help="Timesteps from one window to the next (windows).")
@click.option("--horizon", type=int, help="Timesteps after a window that are its future (windows).")
@_make_flag("--random", help="Windows at random positions (windows).")
@click.option("--per-sequence", type=int, help="Random windows of each sequence (windows).")
@click.option("--axis", help="The axis to plan on.")
@click.option(
    "--shift", type=int, default=0, show_default=True, help="Timesteps from inputs to targets."
)
@click.option("--no-shuffle", is_flag=True, help="Plan in the order of evaluation.")
@click.option(
    "--shuffle",
    type=click.Choice(["all", "blocks"]),
    help="Over all data [default], or in blocks of neighbours, for data larger than memory.",
)
@click.option(
    "--balance-ranks",
    type=int,
    help="Consecutive batches of like lengths [default: the ranks of --world]; 1: none.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--epoch", type=int, default=0, show_default=True)
@click.option(
    "--world", callback=_parse_sizes, default="1", show_default=True, help="Numbers of ranks."
)
@click.option(
    "--tail",
    type=click.Choice(get_args(Tail)),
    default="fill",
    show_default=True,
    help="What a rank receives that has no batch in the last step.",
)
@click.option(
    "--ledger",
    "target",
    type=click.Path(dir_okay=False, allow_dash=True),
    help=(
        "Write what is dropped, split, truncated, left out or repeated, by id: lines of "
        "JSON; - is stdout."
    ),
)
@json_option
@click.option(
    "--plot",
    type=click.Path(dir_okay=False),
    help="Plot lengths and padding, or what each lane reads, as a PNG.",
)
@report_errors
def plan(
    stores: tuple[str, ...],
    backend: str | None,
    mix: tuple[float, ...] | None,
    batching: str | None,
    seed: int,
    epoch: int,
    shift: int,
    world: tuple[int, ...],
    tail: Tail,
    no_shuffle: bool,
    shuffle: str | None,
    batches_per_update: int | None,
    as_json: bool,
    target: str | None,
    plot: str | None,
    **options: Any,
) -> None:
    """Plan an epoch over STORE: steps per world size, padding, balance, the worst batch.

    Several stores are planned as one. With --mix they are the parts of a mixture, with --zip each
    step has a batch of every one; what an epoch draws of each is shown.
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    chosen |= _choose_shuffle(shuffle, no_shuffle=no_shuffle)
    if batches_per_update is not None and mix is not None:
        chosen["batches_per_update"] = batches_per_update
    _check_stdout(target, as_json=as_json)
    label = batching or _DEFAULT
    rule, index = _open_data(stores, backend, mix, label, chosen)
    if shift:
        index = index.shifted(rule.axis, shift)
    rules = {size: balance_ranks(rule, batches_per_update or size) for size in world}
    plans = _plan_worlds(rules, index, seed, epoch)
    measured = {size: _measure(rules[size], index, plans[size], seed, epoch) for size in plans}
    epoch_plan, (batches, padded, parts) = plans[world[0]], measured[world[0]]
    worlds = [compute_world_stats(plans[k], measured[k][0], [k], tail)[0] for k in plans]
    written = target and write_ledger(iter_ledger(index, plans, rule.axis, tail), target)
    if target == STDOUT:
        return
    info = {"policy": describe_policy(rule), "seed": seed, "epoch": epoch}
    info |= _describe_plan(epoch_plan, batches, padded)
    lists = _list_sequences(epoch_plan, index)
    if plot is not None:
        _draw(Path(plot), rule, index, epoch_plan, label, seed)
    tables = {"worlds": worlds, **({"parts": parts} if parts else {})}
    as_dicts = {name: list(map(asdict, cast(Any, rows))) for name, rows in tables.items()}
    more: list[str | Table] = [make_parts_table(parts)] if parts else []
    if target is not None:
        more.append(f"ledger: {target}, {written:,} lines")
    if plot is not None:
        more.append(f"drawn: {plot}")
    lines = itertools.chain(_iter_lines(info, lists, worlds, tail), more)
    print_report({**info, **lists, **as_dicts}, lines, as_json=as_json)


def _choose_shuffle(shuffle: str | None, *, no_shuffle: bool) -> dict[str, Any]:
    """Return the option of the policy; empty for the default."""
    if no_shuffle and shuffle is not None:
        raise ConfigError("plan: `--shuffle` and `--no-shuffle` are both given. Pass one of them.")
    if no_shuffle:
        return {"shuffle": False}
    return {"shuffle": "blocks"} if shuffle == "blocks" else {}


def _plan_worlds(
    rules: Mapping[int, Policy], index: SequenceIndex, seed: int, epoch: int
) -> dict[int, Plan]:
    """Return the plan of an epoch that begins on each number of ranks; equal ones are made once."""
    plans: dict[int, Plan] = {}
    for size, rule in rules.items():
        same = next((plans[other] for other in plans if rules[other] == rule), None)
        plans[size] = same or rule.plan(index, seed=seed, epoch=epoch)
    return plans


def _check_stdout(target: str | None, *, as_json: bool) -> None:
    """Raise if two outputs would be written to stdout."""
    if as_json and target == STDOUT:
        raise ConfigError(
            "plan: `--json` and `--ledger -` cannot both write to stdout. Pass a file to "
            "`--ledger`."
        )


def _open_data(
    stores: tuple[str, ...],
    backend: str | None,
    weights: tuple[float, ...] | None,
    label: str,
    options: dict[str, Any],
) -> tuple[Policy, SequenceIndex]:
    """Return the policy, and the lengths of the stores, joined or as parts of a mixture."""
    if {"sizes", "lead"} & options.keys():
        return _open_zip(stores, backend, weights, label, options)
    of_curriculum = take_curriculum_options(options, has_mix=weights is not None)
    of_mix = {name: options.pop(name) for name in MIX_OPTIONS if name in options}
    if weights is not None:
        mix = make_mixture(stores, weights, of_mix, lambda: resolve_policy(label, options))
        return limit_lengths(mix, of_curriculum), open_parts(mix, stores, backend)
    if of_mix:
        flags = ", ".join(f"`--{name.replace('_', '-')}`" for name in of_mix)
        raise ConfigError(
            f"plan: {flags} must come with `--mix`, but there is none. Pass a weight for each "
            f"store, e.g. --mix {','.join(['1'] * max(2, len(stores)))}, or leave it out."
        )
    rule = limit_lengths(resolve_policy(label, options), of_curriculum)
    return rule, SequenceIndex.from_store(open_store(join_locations(stores), backend=backend))


def _open_zip(
    stores: tuple[str, ...],
    backend: str | None,
    weights: tuple[float, ...] | None,
    label: str,
    options: dict[str, Any],
) -> tuple[Policy, SequenceIndex]:
    """Return the policy of zipped stores, and their lengths."""
    sizes, lead = options.pop("sizes", None), options.pop("lead", None)
    if sizes is None:
        raise ConfigError(
            "plan: `--lead` must come with `--zip`, but there is none. Pass a size for each store, "
            "e.g. --zip 16,64."
        )
    others = {*MIX_OPTIONS, *CURRICULUM_OPTIONS} & options.keys()
    conflicts = [*(["mix"] if weights is not None else []), *sorted(others)]
    if conflicts:
        raise ConfigError(
            f"plan: `--{conflicts[0].replace('_', '-')}` cannot be combined with `--zip`. Leave "
            "one of them out."
        )
    size_name = "max_tokens" if label == _DEFAULT else "batch_size"
    rule = make_zip(
        stores, sizes, lead, lambda size: resolve_policy(label, {**options, size_name: size})
    )
    index = open_parts(rule, stores, backend)
    return rule, replace(index, digest=SequenceIndex.from_parts(index.parts).digest, _memo={})


def _measure(
    rule: Policy, index: SequenceIndex, epoch_plan: Plan, seed: int, epoch: int
) -> tuple[BatchMeasures, NDArray[np.int64], list[PartStats]]:
    """Return the sizes of batches, their timesteps after padding, and the draws from parts."""
    if isinstance(rule, Zip):
        zipped = measure_parts(rule, index, seed=seed, epoch=epoch)
        padded: NDArray[np.int64] = np.sum([part.padded for part in zipped.values()], axis=0)
        return join_measures(zipped), padded, compute_zip_stats(rule, index, zipped)
    batches = epoch_plan.measures
    parts = compute_part_stats(rule, index, epoch_plan, batches) if isinstance(rule, Mix) else []
    return batches, batches.padded, parts


def _draw(
    path: Path, rule: Policy, index: SequenceIndex, epoch_plan: Plan, label: str, seed: int
) -> None:
    """Draw an epoch as a PNG."""
    if isinstance(rule, Zip):
        raise ConfigError(
            "plan: `--plot` cannot be combined with `--zip`. Plot each store by itself."
        )
    if epoch_plan.lanes:
        draw_lanes(path, epoch_plan)
    else:
        draw_plan(path, index, epoch_plan, label=label, axis=rule.axis, seed=seed)


def _describe_plan(
    epoch_plan: Plan, batches: BatchMeasures, padded_sizes: NDArray[np.int64]
) -> dict[str, Any]:
    real, padded = int(batches.timesteps.sum()), int(padded_sizes.sum())
    worst = int(np.argmax(padded_sizes)) if len(epoch_plan) else None
    return {
        "fingerprint": epoch_plan.fingerprint,
        "order": epoch_plan.order,
        "repeats": epoch_plan.report.repeats,
        "batches": len(epoch_plan),
        "lanes": epoch_plan.lanes,
        "idle": compute_idle_share(epoch_plan),
        "timesteps": real,
        "padded": padded,
        "waste": padded / real if real else 1.0,
        "worst": None
        if worst is None
        else {
            "batch": worst,
            "rows": int(batches.rows[worst]),
            "longest": int(batches.longest[worst]),
        },
    }


def _list_sequences(epoch_plan: Plan, index: SequenceIndex) -> dict[str, dict[str, Any]]:
    report = epoch_plan.report

    def summarize(numbers: NDArray[np.int64]) -> dict[str, Any]:
        first = numbers[:_LISTED].tolist()
        names = list(index.keys(first)) if index.keys is not None else first
        return {"count": len(numbers), "first": names}

    return {
        "dropped": summarize(report.dropped),
        "split": summarize(report.split),
        "truncated": summarize(report.truncated),
    }


def _iter_lines(
    info: dict[str, Any],
    lists: dict[str, dict[str, Any]],
    worlds: list[WorldStats],
    tail: Tail,
) -> Iterator[str | Table]:
    yield f"{info['policy']}, seed {info['seed']}, epoch {info['epoch']}"
    yield (
        f"{info['batches']:,} batches, {info['timesteps']:,} timesteps, {info['padded']:,} with "
        f"padding: {100 * (1 - 1 / info['waste']):.2f} % is padding (waste {info['waste']:.4f})"
    )
    if info["order"]:
        yield f"order: {info['order']}"
    if info["repeats"]:
        rows = f"{info['repeats']:,} rows repeat another row of their batch"
        yield f"repeats: {rows} ({info['repeats'] / info['batches']:.2f} a batch)"
    if info["lanes"]:
        yield f"{info['lanes']:,} lanes: {100 * info['idle']:.2f} % of the rows are idle"
    uneven = {"fill": "filler batches", "drop": "left out", "repeat": "repeated"}[tail]
    table = Table("ranks", "steps", uneven, "balance", title="Worlds")
    for world in worlds:
        batches = str(world.filler + world.left_out + world.repeated)  # two of them are 0
        table.add_row(str(world.size), f"{world.steps:,}", batches, f"{world.balance:.4f}")
    yield table
    yield "balance: sum(max)/sum(mean) of the ranks' longest rows over the steps; 1 is even"
    yield "each row is of an epoch that begins on so many ranks"
    worst = info["worst"]
    if worst is not None:
        yield (
            f"most expensive: batch {worst['batch']:,}, {worst['rows']:,} rows of up to "
            f"{worst['longest']:,} timesteps"
        )
    for name, found in lists.items():
        if found["count"]:
            more = ", ..." if found["count"] > _LISTED else ""
            yield f"{name}: {found['count']:,} sequences: {', '.join(found['first'])}{more}"
