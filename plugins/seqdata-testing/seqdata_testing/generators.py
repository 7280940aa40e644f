"""Hypothesis strategies for lengths, worlds, policies and whole cases.

They prefer inputs that often break loaders: no sequences, fewer sequences than ranks, lengths of 0
and 1, one sequence with half of all timesteps. Only this module of the kit needs hypothesis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.index import SequenceIndex
from seqdata.planning.items import TooLong
from seqdata.policies.fixed import Bucketed, Fixed, Sorted
from seqdata.policies.packed import Packed
from seqdata.policies.tbptt import TBPTT, Jitter
from seqdata.policies.token_budget import TokenBudget
from seqdata.policies.windows import Windows
from seqdata.protocols import Policy
from seqdata_testing.blocks import SmallBlocks
from seqdata_testing.lanes import FewLanes

try:
    from hypothesis import strategies as st
    from hypothesis.strategies import DrawFn, SearchStrategy
except ImportError as error:
    raise ImportError(
        "seqdata_testing.generators: hypothesis is not installed. Run pip install hypothesis."
    ) from error

MOST_RANKS = 16
MOST_ROWS = 64
MOST_SEQUENCES = 5_000
PRIMES = (3, 5, 7, 13, 31, 61, 127, 257)
SHAPES = ("even", "spread", "heavy", "gaps", "giant")
FEW = st.integers(1, 100)
TREATMENTS: tuple[TooLong, ...] = ("split", "truncate", "drop")


@dataclass(frozen=True, slots=True)
class Case:
    """The inputs of a plan, and the number of ranks that share it.

    Attributes:
        policy: The policy.
        index: The lengths.
        size: Number of ranks.
        seed: Seed of the plan.
        epoch: Index of the epoch.
    """

    policy: Policy
    index: SequenceIndex
    size: int
    seed: int
    epoch: int


def world_sizes() -> SearchStrategy[int]:
    """Draw a number of ranks, 1 to 16."""
    return st.integers(1, MOST_RANKS)


def batch_sizes() -> SearchStrategy[int]:
    """Draw a number of rows, 1 to 64, often at most 8."""
    return st.one_of(st.integers(1, 8), st.integers(1, MOST_ROWS))


@st.composite
def counts(draw: DrawFn, size: int = 1, most: int = MOST_SEQUENCES) -> int:
    """Draw a number of sequences, 0 to ``most``, often close to the number of ranks, ``size``."""
    kind = draw(st.integers(0, 15))
    if kind < 4:
        return draw(st.sampled_from((0, 1, 2, max(0, size - 1), size, size + 1)))
    if kind < 6:
        return min(most, draw(st.sampled_from(PRIMES)))
    upto = (60, 60, 60, 60, 60, 250, 250, 250, 250, most)[kind - 6]
    return draw(st.integers(0, min(most, upto)))


@st.composite
def lengths(draw: DrawFn, count: int) -> NDArray[np.int64]:
    """Draw ``count`` lengths, int64 (count,): one by one if few, else from a distribution."""
    if count <= 6:
        drawn = draw(st.lists(st.integers(0, 40), min_size=count, max_size=count))
        return np.array(drawn, dtype=np.int64)
    shape, seed = draw(st.sampled_from(SHAPES)), draw(st.integers(0, 1 << 32))
    random = np.random.default_rng(seed)
    if shape == "even":
        return np.full(count, 1 + seed % 9)
    if shape == "heavy":
        return np.exp(random.normal(2.5, 1.0, count)).astype(np.int64)
    values = random.integers(0 if shape == "gaps" else 1, 30, count)
    if shape == "gaps":
        values[random.random(count) < 0.5] = 0
    if shape == "giant":
        values[seed % count] = values.sum()
    return values


@st.composite
def indexes(draw: DrawFn, size: int = 1, most: int = MOST_SEQUENCES) -> SequenceIndex:
    """Draw an index of 0 to ``most`` sequences."""
    return SequenceIndex.from_lengths(draw(lengths(draw(counts(size, most)))))


@st.composite
def policies(draw: DrawFn, *, shuffle: bool | None = None) -> Any:
    """Draw a policy of the core that plans all sequences, or splits, cuts or drops long ones."""
    mixed = draw(st.booleans()) if shuffle is None else shuffle
    limit = draw(st.one_of(st.none(), st.integers(1, 40)))
    treatment = draw(st.sampled_from(TREATMENTS))
    kind = draw(st.sampled_from((Fixed, Sorted, Bucketed, TokenBudget)))
    if kind is Fixed:
        return Fixed(draw(batch_sizes()), mixed, max_length=limit, too_long=treatment)
    worst = draw(st.booleans())
    if kind is TokenBudget:
        budget = draw(st.one_of(st.integers(1, 64), st.integers(1, 4_096)))
        return TokenBudget(
            budget,
            max_rows=draw(st.one_of(st.none(), batch_sizes())),
            min_batches=draw(st.integers(1, 4)),
            shuffle=mixed,
            max_length=None if limit is None else min(limit, budget),
            too_long=treatment,
            worst_first=worst,
        )
    return kind(draw(batch_sizes()), mixed, max_length=limit, too_long=treatment, worst_first=worst)


@st.composite
def block_policies(draw: DrawFn) -> Any:
    """Draw a policy whose plans have many small blocks."""
    policy = draw(policies())
    rows = draw(st.integers(1, 3))
    if isinstance(policy, TokenBudget):
        return SmallBlocks(policy, draw(st.integers(1, 100)), policy.worst_first)
    small = type(policy)(
        rows, policy.shuffle, max_length=policy.max_length, too_long=policy.too_long
    )
    return SmallBlocks(small, draw(st.integers(1, 256)), draw(st.booleans()))


@st.composite
def packed_policies(draw: DrawFn) -> Any:
    """Draw a policy whose rows hold several sequences, in one block or in small ones."""
    packed = Packed(
        draw(st.integers(1, 6)),
        draw(st.integers(1, 80)),
        draw(st.booleans()),
        too_long=draw(st.sampled_from(TREATMENTS)),
    )
    return draw(st.one_of(st.just(packed), st.builds(SmallBlocks, st.just(packed), FEW)))


@st.composite
def window_policies(draw: DrawFn) -> Windows:
    """Draw a policy of windows, on a grid or at random, whose plans need not cover sequences."""
    random = draw(st.booleans())
    most = draw(st.integers(1, 12))
    kind = draw(
        st.sampled_from(("one size", "least", "drawn", "one size" if random else "aligned"))
    )
    least = draw(st.integers(1, most))
    return Windows(
        (least, most) if kind == "drawn" else most,
        None if random else draw(st.one_of(st.none(), st.integers(1, 12))),
        draw(batch_sizes()),
        horizon=draw(st.integers(0, 4)),
        random=random,
        per_sequence=draw(st.integers(1, 3)) if random else 1,
        shuffle=draw(st.booleans()),
        min_size=least if kind == "least" else None,
        aligned=kind == "aligned",
    )


@st.composite
def tbptt_policies(draw: DrawFn) -> TBPTT:
    """Draw a TBPTT policy with 1 to 20 lanes, of any kind, often with overlap or jitter."""
    kind = draw(st.sampled_from(("sequences", "continuous", "segments")))
    chunk = draw(st.integers(1, 12))
    advance = None if kind == "segments" else draw(st.one_of(st.none(), st.integers(1, chunk)))
    jitter: bool | Jitter = False
    if kind != "sequences" and advance in (None, chunk) and draw(st.booleans()):
        jitter = draw(st.builds(Jitter, st.sampled_from((0.0, 0.05, 0.5)), FEW, st.integers(1, 6)))
    return TBPTT(
        draw(st.integers(1, 20)),
        chunk,
        advance=advance,
        continuous=kind == "continuous",
        segments=kind == "segments",
        jitter=jitter,
        shuffle=draw(st.booleans()),
    )


def lane_policies() -> SearchStrategy[FewLanes | TBPTT]:
    """Draw a policy with 1 to 20 lanes."""
    few = st.builds(FewLanes, st.integers(1, 20), st.integers(1, 12))
    return st.one_of(few, tbptt_policies(), tbptt_policies())


@st.composite
def cases(draw: DrawFn, most: int = MOST_SEQUENCES, *, windows: bool = False) -> Case:
    """Draw a policy of any kind, lengths, a world, a seed and an epoch.

    Args:
        draw: The draw function of hypothesis.
        most: Maximum number of sequences.
        windows: Whether to draw policies of windows as well.
    """
    size = draw(world_sizes())
    kinds = (policies(), block_policies(), lane_policies(), packed_policies(), window_policies())
    limits = (most, 400, 60, 200, 200)
    kind = (0, 0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4)[draw(st.integers(0, 11 if windows else 10))]
    policy, most = draw(kinds[kind]), min(most, limits[kind])
    index = draw(indexes(size, most))
    seed = draw(st.one_of(st.just(0), st.integers(0, (1 << 64) - 3)))
    return Case(policy, index, size, seed, draw(st.integers(0, 3)))
