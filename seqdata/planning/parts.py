"""What is drawn of one part of a mixture: its weight and policy, its seed, and its size."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from seqdata.errors import ConfigError, must_be
from seqdata.index import SequenceIndex
from seqdata.planning.randomness import Draw, Purpose
from seqdata.protocols import Policy, SupportsPlannedCounts


@dataclass(frozen=True, slots=True)
class Part:
    """What is drawn of one part of a mixture.

    Args:
        weight: Its share, relative to the weights of the others; 0: nothing is drawn of it.
        policy: How its batches are made; None: by the policy of the mixture.

    Raises:
        ConfigError: If an argument is invalid.
    """

    weight: float
    policy: Policy | None = None

    def __post_init__(self) -> None:
        _check_weight("a `weight`", self.weight)


def as_part(name: Any, part: Any) -> Part:
    """Return a part that may be given by its weight alone.

    Raises:
        ConfigError: If the name is not a text, or the weight is invalid.
    """
    if not isinstance(name, str):
        raise ConfigError(must_be("policy 'mix': a part's name", "a text", f"{name!r}"))
    if isinstance(part, Part):
        return part
    _check_weight(f"the weight of part {name!r}", part)
    return Part(part)


def _check_weight(name: str, weight: Any) -> None:
    is_number = isinstance(weight, int | float | np.integer | np.floating | Fraction)
    if isinstance(weight, bool) or not is_number or not math.isfinite(weight) or weight < 0:
        raise ConfigError(
            must_be(
                f"policy 'mix': {name}", "a finite number of at least 0", f"{weight!r}",
                "Pass 0 to leave a part out",
            )
        )  # fmt: skip


def derive_part_seed(seed: int, name: str) -> int:
    """Return the seed of a part: another for every name."""
    block = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return int(Draw(seed, 0).raw(Purpose.PARTS, 1, block)[0])


def count_planned(policy: Policy, index: SequenceIndex) -> tuple[int, int]:
    """Return the rows' sequences and the scored timesteps of one epoch of a part."""
    if isinstance(policy, SupportsPlannedCounts):
        return policy.count_planned(index)
    plan = policy.plan(index, seed=0, epoch=0)
    report = plan.report
    return report.sequences, report.timesteps
