"""``seqdata plan``: the figures of an epoch, before it is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast, get_args

import click
import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from seqdata.api import open_store
from seqdata.cli._report.console import (
    backend_option,
    complete_name,
    format_examples,
    iter_table,
    join_locations,
    json_option,
    print_report,
    report_errors,
    stores_argument,
)
from seqdata.cli._report.grouped_help import GroupedCommand
from seqdata.cli._report.ledger import STDOUT, iter_ledger, write_ledger
from seqdata.cli._report.mixture import (
    MIX_OPTIONS,
    PartStats,
    compute_part_stats,
    compute_zip_stats,
    iter_parts_table,
    join_measures,
    make_mixture,
    make_zip,
    measure_parts,
    name_parts,
    open_parts,
    parse_batch_sizes,
    parse_weights,
)
from seqdata.cli._report.plan_page import PlanPage
from seqdata.cli._report.plots import draw_plan
from seqdata.cli._report.statistics import (
    WorldStats,
    compute_idle_share,
    compute_random_padding,
    compute_world_stats,
)
from seqdata.errors import ConfigError
from seqdata.index import SequenceIndex
from seqdata.plan import Plan
from seqdata.planning.build import describe_policy
from seqdata.planning.policy import balance_ranks, resolve_seconds
from seqdata.policies.curriculum import Curriculum
from seqdata.policies.fixed import Fixed
from seqdata.policies.mix import Mix
from seqdata.policies.windows import Windows
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
    """Parse pairs of epoch and limit, such as ``0:256,5:none``; ``none`` removes the limit."""
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
        ConfigError: If ``--segment`` is given without ``--curriculum``.
    """
    of_epoch = ("batches",) if "curriculum" in options and not has_mix else ()
    names = (*CURRICULUM_OPTIONS, *of_epoch)
    curriculum_options = {name: options.pop(name) for name in names if name in options}
    if curriculum_options and "curriculum" not in curriculum_options:
        raise ConfigError(
            "plan: `--segment` requires `--curriculum`, but there is none. Pass e.g. "
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
_MANY_IDLE = 0.5  # fraction of idle rows for which a remedy is shown
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


_GROUPS = {
    "Data": ("backend", "axis", "shift"),
    "Policy": ("batching",),
    "Batches of whole sequences (token-budget, bucketed, sorted, fixed)": (
        "max-tokens", "batch-size", "max-length", "too-long", "keep",
    ),
    "Packed rows (packed)": ("rows", "row-length"),
    "Lanes of chunks (tbptt)": (
        "lanes", "chunk", "advance", "continuous", "segments", "jitter",
    ),
    "Windows (windows)": ("size", "stride", "horizon", "random", "per-sequence"),
    "Time on linked axes (windows, tbptt)": ("seconds", "stride-seconds", "horizon-seconds"),
    "Several stores mixed": ("mix", "by", "batches", "temperature"),
    "A batch of each store in every step": ("zip", "lead"),
    "Lengths that rise during the run": ("curriculum", "segment"),
    "Order": ("seed", "epoch", "shuffle", "no-shuffle", "balance-ranks", "batches-per-update"),
    "GPUs": ("world", "tail"),
    "Output": ("ledger", "plot", "report", "json", "h"),
}  # fmt: skip


@click.command(
    cls=GroupedCommand,
    option_groups=_GROUPS,
    short_help="Show steps and padding of an epoch before training.",
    epilog=format_examples(
        "seqdata plan store/ --max-tokens 16384 --world 1,2,8",
        "seqdata plan store/ --batching bucketed --batch-size 64 --plot plan.png",
        "seqdata plan store/ --max-tokens 16384 --max-length 512 --too-long split",
        "seqdata plan store/ --max-tokens 16384 --world 8 --ledger dropped.jsonl",
        "seqdata plan store/ --batching tbptt --lanes 64 --chunk 256 --plot lanes.png",
        "seqdata plan store/ --batching packed --rows 8 --row-length 1024",
        "seqdata plan store/ --batching windows --size 96 --horizon 24",
        "seqdata plan books-1/ books-2/ --max-tokens 16384",
        "seqdata plan books/ code/ --mix 0.7,0.3 --by timesteps --max-tokens 16384",
        "seqdata plan store/ --max-tokens 16384 --curriculum 0:256,9:none --epoch 2",
        "seqdata plan labeled/ unlabeled/ --zip 16,64 --batching bucketed",
    ),
)
@stores_argument
@backend_option
@click.option("--axis", help="Axis to plan on.")
@click.option(
    "--shift", type=int, default=0, show_default=True, help="Timesteps from inputs to targets."
)
@click.option(
    "--batching",
    metavar="NAME",
    shell_complete=complete_name("policy"),
    help="Name of a policy [default: token-budget].",
)
@click.option("--max-tokens", type=int, help="Maximum timesteps of a batch, with padding.")
@click.option("--batch-size", type=int, help="Rows of a batch.")
@click.option("--max-length", type=int, help="Maximum timesteps of a row.")
@click.option("--too-long", metavar="RULE", help="error, split, truncate or drop.")
@click.option(
    "--keep", metavar="END", help="first or last: the part of a truncated sequence that is kept."
)
@click.option("--rows", type=int, help="Rows of a batch, each of several sequences.")
@click.option("--row-length", type=int, help="Timesteps of a row.")
@click.option("--lanes", type=int, help="Lanes of all GPUs together.")
@click.option("--chunk", type=int, help="Maximum timesteps of a lane in one step.")
@click.option("--advance", type=int, help="Timesteps from one chunk to the next.")
@_make_flag("--continuous", help="One stream in equal columns.")
@_make_flag("--segments", help="Rows continue with the lane's next sequence.")
@_make_flag("--jitter", help="Chunk lengths vary from step to step.")
@click.option("--size", type=int, help="Timesteps of a window.")
@click.option("--stride", type=int, help="Timesteps from one window to the next.")
@click.option("--horizon", type=int, help="Timesteps after a window that are its future.")
@_make_flag("--random", help="Windows at random positions.")
@click.option("--per-sequence", type=int, help="Random windows of each sequence.")
@click.option("--seconds", metavar="TIME", help="Duration of a window or chunk.")
@click.option("--stride-seconds", metavar="TIME", help="Time from one window to the next.")
@click.option("--horizon-seconds", metavar="TIME", help="Duration of the future of a window.")
@click.option(
    "--mix", callback=parse_weights, metavar="WEIGHTS", help="A weight for each store: 0.7,0.3."
)
@click.option("--by", metavar="UNIT", help="Unit of the shares: batches, timesteps or sequences.")
@click.option("--batches", type=int, help="Batches of an epoch; also with --curriculum.")
@click.option(
    "--temperature", type=float, help="Multiply the weight of a store of n sequences by n^(1/T)."
)
@click.option(
    "--zip",
    "sizes",
    callback=parse_batch_sizes,
    metavar="SIZES",
    help="--max-tokens or --batch-size of each store: 16,64.",
)
@click.option("--lead", metavar="NAME", help="Store whose epochs set the number of steps.")
@click.option(
    "--curriculum",
    callback=parse_rules,
    metavar="RULES",
    help="Maximum timesteps of a row by epoch, or by --segment: 0:256,2:1024,5:none.",
)
@click.option("--segment", type=int, help="Batches of a segment; --curriculum counts these.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the order.")
@click.option("--epoch", type=int, default=0, show_default=True, help="Epoch to plan.")
@click.option(
    "--shuffle",
    type=click.Choice(["all", "blocks"]),
    help="Over all data [default], or in blocks of neighbors, for data larger than memory.",
)
@click.option("--no-shuffle", is_flag=True, help="Plan in the order of evaluation.")
@click.option(
    "--balance-ranks",
    type=int,
    help="Consecutive batches of similar lengths [default: --batches-per-update, or else the GPUs "
    "of --world]; 1: none.",
)
@click.option(
    "--batches-per-update",
    type=click.IntRange(min=1),
    metavar="N",
    help="Batches of an optimizer update over all GPUs: the order is then the same on any number.",
)
@click.option(
    "--world",
    metavar="GPUS",
    callback=_parse_sizes,
    default="1",
    show_default=True,
    help="Numbers of GPUs (ranks): 1,2,8.",
)
@click.option(
    "--tail",
    type=click.Choice(get_args(Tail)),
    default="fill",
    show_default=True,
    help="The last step, if it has fewer batches than GPUs.",
)
@click.option(
    "--ledger",
    "target",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="Write JSON lines with the id of each sequence that is dropped, split, truncated, left "
    "out of the last step or repeated there; - is stdout.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False),
    help="Plot lengths and padding, or the sequences of lanes, as a PNG.",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False),
    help="Write all pictures and figures as one page of HTML.",
)
@json_option
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
    report: str | None,
    **options: Any,
) -> None:
    """Plan an epoch over STORE and show steps, padding and the batches of each number of GPUs.

    Several stores are planned as one. With --mix they are the parts of a mixture, with --zip each
    step has a batch from each of them; the share of each is shown.
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
        draw_plan(Path(plot), rule, index, epoch_plan, label=label, seed=seed)
    if report is not None:
        PlanPage(
            title=f"Plan of {', '.join(name_parts(stores))}", rules=rules, index=index, plans=plans,
            policy=describe_policy(rule, brief=True), label=label, seed=seed, epoch=epoch,
            tail=tail, info=info, lists=lists, worlds=worlds, parts=parts,
        ).write(Path(report))  # fmt: skip
    tables = {"worlds": worlds, **({"parts": parts} if parts else {})}
    as_dicts = {name: list(map(asdict, cast(Any, rows))) for name, rows in tables.items()}
    files = {"drawn": plot, "report": report}
    made = [f"{name}: {path}" for name, path in files.items() if path is not None]
    if target is not None:
        made.insert(0, f"ledger: {target}, {written:,} lines")
    lines = _iter_lines(rule, epoch_plan, batches, info, lists, worlds, parts, tail, made)
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
        with_ = "`--mix` or `--curriculum`" if list(of_mix) == ["batches"] else "`--mix`"
        raise ConfigError(
            f"plan: {flags} can only be used with {with_}, but there is none. Pass a weight for "
            f"each store, e.g. --mix {','.join(['1'] * len(stores))}, or leave "
            f"{'it' if len(of_mix) == 1 else 'them'} out."
        )
    rule = limit_lengths(resolve_policy(label, options), of_curriculum)
    store = open_store(join_locations(stores), backend=backend)
    return resolve_seconds(rule, store), SequenceIndex.from_store(store)


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
            "plan: `--lead` requires `--zip`, but there is none. Pass a size for each store, "
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
    rule: Policy,
    epoch_plan: Plan,
    batches: BatchMeasures,
    info: dict[str, Any],
    lists: dict[str, dict[str, Any]],
    worlds: list[WorldStats],
    parts: list[PartStats],
    tail: Tail,
    made: list[str],
) -> Iterator[str | Text]:
    """Yield the report: the plan, the files that were made, and the figures at the end."""
    yield from _iter_policy_lines(describe_policy(rule, brief=True), info, worlds)
    yield from _iter_sequence_lines(lists)
    if parts:
        yield from iter_parts_table(parts)
    yield from made
    yield ""
    random = _compare_with_random(rule, epoch_plan, batches, info["seed"])
    yield from _iter_figure_lines(info, worlds, tail, random)


def _compare_with_random(
    rule: Policy, epoch_plan: Plan, batches: BatchMeasures, seed: int
) -> float | None:
    """Return the padding of the same rows in random batches; None if there is no such figure."""
    if isinstance(rule, Zip | Fixed | Windows):
        return None
    return compute_random_padding(epoch_plan, batches, seed)


def _iter_policy_lines(
    policy: str, info: dict[str, Any], worlds: list[WorldStats]
) -> Iterator[str | Text]:
    """Yield the policy with its non-default options, and its effects on the order and rows."""
    chosen = [f"{name} {info[name]}" for name in ("seed", "epoch") if info[name]]
    yield ", ".join([policy, *chosen])
    if info["order"]:
        yield f"order: {info['order']}"
    if info["repeats"]:
        rows = f"{info['repeats']:,} rows repeat another row of their batch"
        yield f"repeats: {rows} ({info['repeats'] / info['batches']:.2f} a batch)"
    if info["lanes"]:
        many = "; try fewer --lanes, or --continuous for few long sequences"
        yield (
            f"{info['lanes']:,} lanes: {100 * info['idle']:.2f} % of the rows are idle"
            f"{many if info['idle'] >= _MANY_IDLE else ''}"
        )
    worst = info["worst"]
    if worst is not None:
        yield (
            f"most expensive: batch {worst['batch']:,}, {worst['rows']:,} rows of up to "
            f"{worst['longest']:,} timesteps"
        )
    balances = [f"{world.balance:.2f} on {world.size} GPUs" for world in worlds if world.size > 1]
    if balances and not info["lanes"]:
        yield (
            f"imbalance: {', '.join(balances)} (how much longer the slowest GPU's rows are than "
            "the average; 1.00 = none)"
        )


def _iter_sequence_lines(lists: dict[str, dict[str, Any]]) -> Iterator[str]:
    for name, found in lists.items():
        if found["count"]:
            more = ", ..." if found["count"] > _LISTED else ""
            noun = "sequence" if found["count"] == 1 else "sequences"
            yield f"{name}: {found['count']:,} {noun}: {', '.join(map(str, found['first']))}{more}"


def _iter_figure_lines(
    info: dict[str, Any], worlds: list[WorldStats], tail: Tail, random: float | None
) -> Iterator[str | Text]:
    """Yield the figures of the epoch, and its steps on each number of GPUs."""
    compared = "" if random is None else f"    (random batches of this size: {100 * random:.0f} %)"
    batches, timesteps = f"{info['batches']:,} batches", f"{info['timesteps']:,} timesteps"
    padding = f"{100 * (1 - 1 / info['waste']):.1f} % padding"
    yield f"{batches} · {timesteps} · {padding}{compared}"
    title, hint = {
        "fill": ("padding batches in the last step", 'tail="drop" skips the last step'),
        "drop": ("dropped batches", 'tail="fill" trains them'),
        "repeat": ("repeated batches in the last step", 'tail="fill" repeats none'),
    }[tail]
    counts = [world.filler + world.left_out + world.repeated for world in worlds]
    width = max(len(f"{count:,}") for count in counts)
    rows = []
    for world, count in zip(worlds, counts, strict=True):
        total = info["batches"] if tail == "drop" else world.steps * world.size
        share = f"{100 * count / max(1, total):.0f}".replace("0", "< 1", 1 if count else 0)
        remark = f"   ({share} % of the epoch; {hint})" if count else ""
        rows.append((f"{world.size}", f"{world.steps:,}", f"{count:>{width},}{remark}"))
    yield from iter_table(("GPUs", "steps", title), rows, left=(title,))
