"""The parts of named data: weight, policy, seed and size of each."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, advise_on_copy, did_you_mean, must_be
from seqdata.index import SequenceIndex
from seqdata.planning.part_order import compute_root
from seqdata.planning.policy import as_policy, find_base_policy, find_planned
from seqdata.planning.randomness import Draw, Purpose
from seqdata.protocols import Policy


@dataclass(frozen=True, slots=True)
class Part:
    """Weight and policy of one part of a mixture.

    Args:
        weight: Weight of the part, relative to the weights of other parts; 0: nothing is drawn from
            the part.
        policy: Policy that makes the batches of the part; None: the policy of the mixture.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> from seqdata import Bucketed, Mix, Part, TokenBudget
        >>> books = Part(0.7, TokenBudget(1_024))
        >>> Mix({"books": books, "code": Part(0.3, Bucketed(8))}).parts["books"].weight
        0.7
    """

    weight: float
    policy: Policy | None = None

    def __post_init__(self) -> None:
        _check_weight("a `weight`", self.weight)
        weight: Any = self.weight
        if isinstance(weight, np.generic):  # a Fraction does not take all of NumPy's numbers
            plain = int(weight) if isinstance(weight, np.integer) else float(weight)
            object.__setattr__(self, "weight", plain)


def as_part(name: Any, part: Any, *, has_lanes: bool = False) -> Part:
    """Return a part that may be given by its weight alone, or by a policy with lanes alone.

    Args:
        name: The name of the part.
        part: The part.
        has_lanes: Whether another part is a policy with lanes.

    Raises:
        ConfigError: If the name is not a string, the weight is invalid, or the part is a policy
            without lanes.
    """
    if not isinstance(name, str):
        raise ConfigError(must_be("policy 'mix': a part's name", "a string", f"{name!r}"))
    if isinstance(part, Part):
        return part
    if hasattr(part, "plan") and getattr(part, "lanes", 0) > 0:
        return Part(part.lanes, part)
    if hasattr(part, "plan"):
        if has_lanes:
            raise _make_no_lanes_error(name, part)
        raise ConfigError(
            f"policy 'mix': part {name!r} must have a weight, but is {part!r} alone, which has no "
            "lanes. Write Part(weight, policy)"
        )
    _check_weight(f"the weight of part {name!r}", part)
    return Part(part)


def _check_weight(name: str, weight: Any) -> None:
    is_number = isinstance(weight, int | float | np.integer | np.floating | Fraction)
    if isinstance(weight, bool) or not is_number or not math.isfinite(weight) or weight < 0:
        raise ConfigError(
            must_be(
                f"policy 'mix': {name}", "a finite number of at least 0", f"{weight!r}",
                advise_on_copy(weight) or "Pass 0 to leave a part out",
            )
        )  # fmt: skip


def weigh_part(weight: Any, count: int, temperature: float | None) -> Fraction:
    """Return the weight of a part of ``count`` sequences.

    Args:
        weight: The declared weight.
        count: Number of sequences of the part.
        temperature: Temperature of the mixture.
    """
    exact = Fraction(weight if isinstance(weight, int | Fraction) else repr(float(weight)))
    return exact * compute_root(count, temperature) if count and temperature is not None else exact


def derive_part_seed(seed: int, name: str) -> int:
    """Return the seed of a part, which depends on its name."""
    block = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return int(Draw(seed, 0).raw(Purpose.PARTS, 1, block)[0])


def count_planned(policy: Policy, index: SequenceIndex, *, whole: bool = False) -> tuple[int, int]:
    """Return the number of sequences and of scored timesteps of one epoch of a part.

    Args:
        policy: Policy of the part.
        index: Lengths of the part.
        whole: Whether each sequence that is not left out counts once; else each piece of a sequence
            counts, as often as an epoch has it.
    """
    pieces, timesteps = as_policy(policy).count_planned(index)
    return int(find_planned(index, policy).sum()) if whole else pieces, timesteps


def number_part_crops(
    policy: Policy,
    index: SequenceIndex,
    spans: NDArray[np.int64],
    *,
    seed: int,
    epoch: int,
) -> NDArray[np.int64]:
    """Return the index of each span of a part among its sequence's windows, int64 (n,).

    Args:
        policy: Policy of the part, or one around it.
        index: Lengths of the part, or of the sequences that were drawn from it.
        spans: int64 (n, 3): sequence, start, stop.
        seed: Seed of the part.
        epoch: Epoch of the part.
    """
    base: Any = find_base_policy(policy)
    if not as_policy(base).cuts_windows:
        return np.zeros(len(spans), dtype=np.int64)
    numbers: NDArray[np.int64] = base.crop_numbers(index, spans, seed=seed, epoch=epoch)
    return numbers


def check_part_policy(rule: str, name: str, policy: Any, advice: str) -> None:
    """Raise if the batches of a part cannot be combined with those of others.

    Args:
        rule: Name of the policy that combines them, for messages.
        name: Name of the part.
        policy: Policy of the part.
        advice: Advice if epochs have unequal numbers of batches.

    Raises:
        ConfigError: If it is not a policy, its batches have lanes, or their number varies.
    """
    missing = {"axis", "plan", "num_batches"} - set(dir(policy))
    if isinstance(policy, type) or missing:
        where = f"policy {rule!r}: the policy of part {name!r}"
        raise ConfigError(must_be(where, "a policy", f"{policy!r}", advise_on_copy(policy)))
    if getattr(policy, "lanes", 0):
        raise ConfigError(
            f"policy {rule!r}: the batches of part {name!r} must be independent, but those of "
            f"{type(policy).__name__} have lanes, whose state is carried from batch to batch. "
            "Train on such a policy alone."
        )
    if as_policy(policy).varies:
        raise ConfigError(
            f"policy {rule!r}: the epochs of part {name!r} must all have the same number of "
            f"batches, but those of {type(policy).__name__} vary. {advice}"
        )


def check_lane_policies(policies: Mapping[str, Policy]) -> None:
    """Raise if the lanes of parts cannot be steps of one mixture.

    Args:
        policies: Name -> policy of the part, of those that get lanes.

    Raises:
        ConfigError: If a part has no lanes, the number of its steps varies, or the rows of parts
            are not read alike.
    """
    for name, policy in policies.items():
        if not getattr(policy, "lanes", 0):
            raise _make_no_lanes_error(name, policy)
        if getattr(policy, "jitter", False):
            raise ConfigError(
                f"policy 'mix': part {name!r} must be without `jitter`, which scales the "
                "learning rate of a whole batch. Leave it out."
            )
        if as_policy(policy).varies:
            raise ConfigError(
                f"policy 'mix': the epochs of part {name!r} must all have the same number of "
                f"steps, but those of {type(policy).__name__} vary. Pass an integer as `chunk`."
            )
    kinds = {name: _describe_lanes(policy) for name, policy in policies.items()}
    if len(set(kinds.values())) > 1:
        raise ConfigError(
            "policy 'mix': the lanes of all parts must have the same overlap (`chunk` - "
            f"`advance`), and all or none be `continuous`, but are {kinds}. Pass the same to "
            "their policies."
        )


def _make_no_lanes_error(name: str, policy: Any) -> ConfigError:
    return ConfigError(
        f"policy 'mix': all parts of a mixture must have lanes, or none, but part {name!r} has "
        f"none, and others have: {type(policy).__name__} makes independent batches. Give it a "
        "policy with lanes, e.g. TBPTT(lanes, chunk), or the others one without, e.g. "
        "Part(weight, Bucketed(batch_size))."
    )


def _describe_lanes(policy: Any) -> str:
    chunk, advance = getattr(policy, "chunk", 0) or 0, getattr(policy, "advance", None)
    overlap = 0 if advance is None else chunk - advance
    kind = "continuous" if getattr(policy, "continuous", False) else "not continuous"
    return f"overlap {overlap}, {kind}"


def allot_lanes(total: int, weights: Mapping[str, Fraction]) -> dict[str, int]:
    """Return the number of lanes of each part, by weight: at least 1, and ``total`` together.

    What is left after whole lanes goes to the largest remainders, in the order of the parts.

    Args:
        total: Number of lanes.
        weights: Name -> weight; those of weight 0 get none.

    Raises:
        ConfigError: If there are more parts than lanes.
    """
    drawn = {name: weight for name, weight in weights.items() if weight}
    if len(drawn) > total:
        raise ConfigError(
            f"policy 'mix': each of {len(drawn)} parts must have a lane, but there are {total}. "
            "Raise `lanes`, or pass weight 0 to leave a part out."
        )
    lanes = dict.fromkeys(drawn, 1)
    spare, left = total - len(drawn), dict(drawn)
    while spare:  # parts whose share is below one lane keep the one that they have
        share = {name: weight * (spare + sum(lanes[each] for each in left)) / sum(left.values())
                 for name, weight in left.items()}  # fmt: skip
        small = [name for name in left if share[name] < lanes[name]]
        if not small:
            wanted = {name: int(exact) for name, exact in share.items()}
            rest = sum(lanes[name] for name in left) + spare - sum(wanted.values())
            order = sorted(left, key=lambda name: wanted[name] - share[name])  # stable
            for name in order[:rest]:
                wanted[name] += 1
            lanes |= wanted
            break
        for name in small:
            del left[name]
    return {name: lanes.get(name, 0) for name in weights}


def match_parts(
    rule: str, names: Iterable[str], index: SequenceIndex, needed: str, advice: str
) -> dict[str, SequenceIndex]:
    """Return the index of each part, in the data's order.

    Args:
        rule: Name of the policy that combines them, for messages.
        names: Names of the parts of the policy.
        index: The lengths of the data.
        needed: Entry that the policy must have for each part of the data.
        advice: Advice if a part of the data has no such entry.

    Raises:
        ConfigError: If the data has no names, or others than the policy.
    """
    names = list(names)
    if not index.parts:
        raise ConfigError(
            f"policy {rule!r}: the data must be several named stores, but is one. Pass them by "
            f"name: {{{', '.join(f'{name!r}: ...' for name in names)}}}."
        )
    for name in names:
        if name not in index.parts:
            hint = did_you_mean(name, index.parts)
            raise ConfigError(
                f"policy {rule!r}: part {name!r} must be in the data, but the data has "
                f"{', '.join(map(repr, index.parts))}. {hint or 'Pass its store.'}"
            )
    for name in index.parts:
        if name not in names:
            raise ConfigError(
                f"policy {rule!r}: {name!r} of the data must have {needed}, but has none. {advice}"
            )
    return dict(index.parts)
