"""Mixtures and weights on 1, 2 and 4 ranks, killed anywhere: the run of one process."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.drawn import CASES, GROUP

pytestmark = pytest.mark.distributed

CLOSE = 1e-12


class Leg:
    """One part of a run.

    Args:
        ranks: Plays it.
        case: Name of what is drawn.
        world: Number of ranks.
        folder: Where it saves.
        ckpt: Checkpoint that it begins from.
        after: Steps after which one of its ranks is killed; None: it trains to the end.
    """

    def __init__(
        self,
        ranks: Any,
        case: str,
        world: int,
        folder: Path,
        ckpt: Path | None = None,
        after: int | None = None,
    ) -> None:
        self.folder, self.world = folder, world
        spec = {
            "case": case, "folder": str(folder), "after": after,
            "ckpt": None if ckpt is None else str(ckpt),
        }  # fmt: skip
        numbers = {rank: {"rank": rank} for rank in range(world)}
        if after is None:
            self.made = ranks.play("draw_epochs", world, spec, ranks=numbers)
            return
        answer, _, logs = ranks.ends("draw_epochs", world, spec, ranks=numbers, seconds=60)
        assert answer["exits"][str(world - 1)] == -9, logs
        assert not answer["overran"], logs

    def trained(self) -> list[tuple[Any, ...]]:
        """Return update, place, part and ids of all batches, in the order of the plan."""
        lines = [
            json.loads(line)
            for path in sorted(self.folder.glob("rank-*.jsonl"))
            for line in path.read_text().splitlines()
        ]
        found = [tuple(told.values()) for told in lines if told["ids"]]
        return sorted(found, key=lambda told: told[1])

    def last_saved(self, begun: int) -> tuple[Path, int] | None:
        """Return the last checkpoint after an update of this part, and its number of updates."""
        saved = {int(path.stem.split("=")[1]): path for path in self.folder.glob("step=*.ckpt")}
        last = max(saved, default=0)
        return (saved[last], last) if last > begun else None


def check_chain(ranks: Any, case: str, folder: Path, parts: list[tuple[int, int]]) -> None:
    """Assert that parts of (world, steps until one is killed) make the run of one process."""
    whole = Leg(ranks, case, 1, folder / "whole")
    due, trained = whole.trained(), []
    ckpt, begun = None, 0
    for number, (world, after) in enumerate(parts):
        leg = Leg(ranks, case, world, folder / str(number), ckpt, after)
        saved = leg.last_saved(begun)
        if saved is not None:
            ckpt, begun_before, begun = saved[0], begun, saved[1]
            trained += [told for told in leg.trained() if begun_before <= told[0] < begun]
    last = Leg(ranks, case, parts[-1][0], folder / "last", ckpt)
    trained += last.trained()
    assert begun > 0
    assert trained == due
    for made in last.made:
        assert made["updates"] == whole.made[0]["updates"]
        assert made["parameters"] == pytest.approx(whole.made[0]["parameters"], rel=0, abs=CLOSE)


@pytest.mark.shows("I5", by="processes")
def test_weighted_parts_of_a_mixture_killed_on_1_2_and_4_ranks_are_one_run(ranks, tmp_path):
    check_chain(ranks, "mix of weighted", tmp_path, [(1, 2 * GROUP + 1), (4, 2), (2, 3)])


@pytest.mark.shows("I5", by="processes")
@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(5))
def test_any_draw_killed_anywhere_on_any_ranks_is_one_run(ranks, tmp_path, case, seed):
    draw = random.Random(f"{case} {seed}")
    worlds = [draw.choice([1, 2, 4]) for _ in range(3)]
    parts = [(world, draw.randint(1, 12 // world)) for world in worlds]
    parts.insert(0, (1, GROUP + draw.randint(1, 3)))  # at least one update
    check_chain(ranks, case, tmp_path, parts)


@pytest.mark.shows("I5", by="processes")
@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES)
def test_ranks_are_doubled_twice(ranks, tmp_path, case):
    check_chain(ranks, case, tmp_path, [(1, 9), (2, 5), (4, 2)])
