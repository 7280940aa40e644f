"""Zipped stores for ``seqdata plan``: each step has a batch of every one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
import numpy as np

from seqdata.cli._report.mixture import PartStats, name_parts
from seqdata.errors import ConfigError, did_you_mean, must_be
from seqdata.index import SequenceIndex
from seqdata.planning.parts import derive_part_seed
from seqdata.policies.zip import Zip
from seqdata.protocols import Policy
from seqdata.report import BatchMeasures


def parse_batch_sizes(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> tuple[int, ...] | None:
    """Return the numbers of ``16,64``."""
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
    """Return the policy of a step with a batch of each of several stores.

    Args:
        locations: Of the stores.
        sizes: Of a batch of each.
        lead: Name of the store whose epochs are those of the steps; None: the longest.
        make_policy: Returns the policy of a store, from the size of its batches.

    Raises:
        ConfigError: If there are not as many sizes as stores, or none has the name of the lead.
    """
    if len(sizes) != len(locations):
        raise ConfigError(
            f"plan: `--zip` must have a size for each of {len(locations)} stores, but has "
            f"{len(sizes)}. Pass e.g. --zip {','.join(['16'] * len(locations))}."
        )
    names = name_parts(locations)
    if lead is not None and lead not in names:
        needed = f"one of {', '.join(map(repr, names))}"
        hint = did_you_mean(lead, names) or "Pass the last part of a store's path"
        raise ConfigError(must_be("plan: `--lead`", needed, repr(lead), hint))
    policies = zip(names, map(make_policy, sizes), strict=True)
    return Zip(dict(policies), lead=lead)


def measure_parts(
    rule: Zip, index: SequenceIndex, *, seed: int, epoch: int
) -> dict[str, BatchMeasures]:
    """Return the sizes of the batches of each part."""
    return {
        name: part.plan(index.parts[name], seed=derive_part_seed(seed, name), epoch=epoch).measures
        for name, part in rule.split(index).items()
    }


def join_measures(parts: Mapping[str, BatchMeasures]) -> BatchMeasures:
    """Return the sizes of steps: rows and timesteps of all parts, and their longest rows in turn.

    The longest rows are added up, since a model goes through one part after another.
    """
    joined: list[Any] = [
        np.sum([getattr(measures, name) for measures in parts.values()], axis=0)
        for name in ("rows", "longest", "timesteps")
    ]
    return BatchMeasures(*joined)


def compute_zip_stats(
    rule: Zip, index: SequenceIndex, parts: Mapping[str, BatchMeasures]
) -> list[PartStats]:
    """Return what an epoch draws of each part.

    Args:
        rule: How parts are batched.
        index: The lengths of all parts.
        parts: Sizes of the batches of each.
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
