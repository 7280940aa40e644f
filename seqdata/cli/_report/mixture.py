"""Several stores for ``seqdata plan``: as parts of a mixture, and zipped.

The report shows the draws of an epoch from each part. With zipped stores each step has a batch of
every store.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

import click
import numpy as np
from rich.text import Text

from seqdata.api import open_store
from seqdata.cli._report.console import iter_table
from seqdata.errors import ConfigError, did_you_mean, must_be
from seqdata.index import SequenceIndex
from seqdata.plan import Plan
from seqdata.planning.parts import derive_part_seed
from seqdata.policies.fixed import Fixed
from seqdata.policies.mix import Mix
from seqdata.policies.zip import Zip
from seqdata.protocols import Policy
from seqdata.report import BatchMeasures
from seqdata.resolve import resolve_parts
from seqdata.storage.local_files import is_remote
from seqdata.storage.remote.urls import redact_secrets, redact_url

MIX_OPTIONS = ("by", "batches", "temperature", "batches_per_update")
"""Options of the command for the mixture; the others are for the policy of its parts."""


def parse_batch_sizes(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> tuple[int, ...] | None:
    """Parse sizes such as ``16,64``."""
    if text is None:
        return None
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError:
        raise click.BadParameter(f"must be sizes like 16,64, but is {text!r}") from None


def make_zip(
    locations: Sequence[str],
    sizes: Sequence[int],
    lead: str | None,
    make_policy: Callable[[int], Policy],
) -> Zip:
    """Return the policy of steps with a batch of each of several stores.

    Args:
        locations: Locations of the stores.
        sizes: Batch size of each store.
        lead: Name or location of the store that determines the epochs; None: the longest.
        make_policy: Function of a batch size that returns the policy of a store.

    Raises:
        ConfigError: If the number of sizes is not that of stores, or no store has the name.
    """
    if len(sizes) != len(locations):
        raise ConfigError(
            f"plan: `--zip` must have a size for each of {len(locations)} stores, but has "
            f"{len(sizes)}. Pass e.g. --zip {','.join(['16'] * len(locations))}."
        )
    names = name_parts(locations)
    lead_name = None if lead is None else _find_lead(lead, locations, names)
    policies = zip(names, map(make_policy, sizes), strict=True)
    return Zip(dict(policies), lead=lead_name)


def _find_lead(lead: str, locations: Sequence[str], names: Sequence[str]) -> str:
    """Return the name of the part with a name or location.

    Raises:
        ConfigError: If there is none, or several.
    """
    if lead in names:
        return lead
    pairs = zip(names, locations, strict=True)
    found = [name for name, location in pairs if lead in (location, PurePath(location).name)]
    if len(found) == 1:
        return found[0]
    shown = redact_secrets(lead)
    if any(map(is_remote, locations)):
        shown = shown.partition("?")[0]  # the last part of a URL may have a signature
    needed = f"one of {', '.join(map(repr, names))}"
    hint = did_you_mean(shown, names) or "Pass the last part of a store's path"
    raise ConfigError(must_be("plan: `--lead`", needed, repr(shown), hint))


def measure_parts(
    rule: Zip, index: SequenceIndex, *, seed: int, epoch: int
) -> dict[str, BatchMeasures]:
    """Return the sizes of the batches of each part."""
    return {
        name: part.plan(index.parts[name], seed=derive_part_seed(seed, name), epoch=epoch).measures
        for name, part in rule.split(index).items()
    }


def join_measures(parts: Mapping[str, BatchMeasures]) -> BatchMeasures:
    """Return the sizes of steps: sums of rows, timesteps and longest rows over all parts.

    The longest rows are added, since a model runs over one part after another.
    """
    joined: list[Any] = [
        np.sum([getattr(measures, name) for measures in parts.values()], axis=0)
        for name in ("rows", "longest", "timesteps")
    ]
    return BatchMeasures(*joined)


def compute_zip_stats(
    rule: Zip, index: SequenceIndex, parts: Mapping[str, BatchMeasures]
) -> list[PartStats]:
    """Return the draws of an epoch from each zipped part.

    Args:
        rule: Policy of the parts.
        index: Lengths of all parts.
        parts: Sizes of the batches of each part.
    """
    timesteps = {name: int(measures.timesteps.sum()) for name, measures in parts.items()}
    policies = rule.policies
    return [
        PartStats(
            part=name,
            batches=len(measures.rows),
            share=1 / len(parts),
            timesteps=timesteps[name],
            timestep_share=timesteps[name] / max(1, sum(timesteps.values())),
            passes=len(measures.rows) / max(1, policies[name].num_batches(index.parts[name])),
        )
        for name, measures in parts.items()
    ]


@dataclass(frozen=True, slots=True)
class PartStats:
    """Draws of an epoch from one part.

    Attributes:
        part: Name of the part.
        batches: Number of batches.
        share: Fraction of the batches of the epoch.
        timesteps: Number of real timesteps.
        timestep_share: Fraction of all real timesteps.
        passes: Number of passes over the part.
    """

    part: str
    batches: int
    share: float
    timesteps: int
    timestep_share: float
    passes: float


def parse_weights(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> tuple[float, ...] | None:
    """Parse weights such as ``0.7,0.3``."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"must be weights like 0.7,0.3, but is {text!r}") from None


def make_mixture(
    locations: Sequence[str],
    weights: Sequence[float],
    options: Mapping[str, Any],
    make_policy: Callable[[], Policy],
) -> Mix:
    """Return the mixture of several stores.

    Args:
        locations: Locations of the stores.
        weights: Weight of each store.
        options: Options of the mixture.
        make_policy: Function that returns the policy of the parts, called after all other checks.

    Raises:
        ConfigError: If the number of weights is not that of stores, or an option is invalid.
    """
    if len(weights) != len(locations):
        raise ConfigError(
            f"plan: `--mix` must have a weight for each of {len(locations)} stores, but has "
            f"{len(weights)}. Pass e.g. --mix {','.join(['1'] * len(locations))}."
        )
    parts = dict(zip(name_parts(locations), weights, strict=True))
    mix = Mix(parts, Fixed(1), **options)
    return replace(mix, policy=make_policy())


def open_parts(rule: Mix | Zip, locations: Sequence[str], backend: str | None) -> SequenceIndex:
    """Return the lengths of the parts of a mixture, or of zipped parts.

    Raises:
        ConfigError: If the parts do not fit together.
    """
    stores = [open_store(location, backend=backend) for location in locations]
    return SequenceIndex.from_store(resolve_parts(dict(zip(rule.parts, stores, strict=True)), rule))


def compute_part_stats(
    mix: Mix, index: SequenceIndex, plan: Plan, measures: BatchMeasures
) -> list[PartStats]:
    """Return the draws of an epoch from each part of a mixture.

    Args:
        mix: The mixture.
        index: Lengths of all parts.
        plan: Plan of the epoch.
        measures: Measures of the batches.
    """
    names = list(index.parts)
    labels = plan.label_parts(range(len(plan))) or []
    numbers = np.array([names.index(str(label.part)) for label in labels], dtype=np.int64)
    batches = np.bincount(numbers, minlength=len(names))
    timesteps = np.bincount(numbers, weights=measures.timesteps, minlength=len(names))
    return [
        PartStats(
            part=name,
            batches=int(batches[number]),
            share=float(batches[number] / max(1, len(plan))),
            timesteps=int(timesteps[number]),
            timestep_share=float(timesteps[number] / max(1, timesteps.sum())),
            passes=float(batches[number] / max(1, mix.policies[name].num_batches(part))),
        )
        for number, (name, part) in enumerate(index.parts.items())
    ]


def iter_parts_table(stats: Sequence[PartStats]) -> Iterator[Text]:
    """Yield the figures of the parts as a table."""
    titles = ("part", "batches", "share", "timesteps", "share of timesteps", "passes")
    rows = [
        (
            part.part, f"{part.batches:,}", f"{100 * part.share:.2f} %", f"{part.timesteps:,}",
            f"{100 * part.timestep_share:.2f} %", f"{part.passes:.2f}",
        )
        for part in stats
    ]  # fmt: skip
    return iter_table(titles, rows, left=("part",))


def name_parts(locations: Sequence[str]) -> list[str]:
    """Return unique names of locations: the last part of a path, or all of it if two are equal.

    Users, passwords and queries of URLs are omitted. Names that are still equal are numbered.
    """
    shown = [redact_url(location) if is_remote(location) else location for location in locations]
    last = [PurePath(location).name or location for location in shown]
    names = [
        location if last.count(name) > 1 else name
        for name, location in zip(last, shown, strict=True)
    ]
    for at, name in enumerate(names):
        if name in names[:at]:
            numbered = (f"{name}-{number}" for number in itertools.count(2))
            names[at] = next(other for other in numbered if other not in names)
    return names
