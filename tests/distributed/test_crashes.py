"""Chains of crashes: any hook, any way to save, any world; the end is that of one run."""

import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.distributed.crashes import HOOKS, LANES, SAVES

pytestmark = pytest.mark.distributed

CLOSE = 1e-12


@dataclass(frozen=True)
class Part:
    """A part of a run: on how many ranks, where it crashes (None: never), and how it is saved."""

    world: int
    hook: str | None
    at: int
    save: str


@dataclass(frozen=True)
class Run:
    """What all parts of a run have in common."""

    lanes: int
    kind: str
    masked: str
    count: int
    trainer: tuple[tuple[str, Any], ...] = ()


@dataclass
class Told:
    """What one run did, over all its ranks."""

    steps: list[tuple[int, int, list[int]]]
    last: dict[str, Any]


def merged(told: list[dict[str, Any]]) -> list[tuple[int, int, list[int]]]:
    """Return the batches that were trained, in the order of the plan, without padding rows."""
    found: dict[tuple[int, int], list[int]] = {}
    for one in told:
        for epoch, number, ids in one["steps"]:
            found.setdefault((epoch, number), []).extend(ids)
    return [(*place, sorted(found[place])) for place in sorted(found)]


class Player:
    """Plays chains, and each undisturbed run once."""

    def __init__(self, ranks: Any, folder: Path) -> None:
        self.ranks, self.folder = ranks, folder
        self.wholes: dict[Run, Told] = {}

    def part(self, run: Run, part: Part, folder: Path, ckpt: Path | None) -> list[dict[str, Any]]:
        spec = {**asdict(run), **asdict(part), "trainer": dict(run.trainer)}
        paths = {"folder": str(folder), "ckpt": None if ckpt is None else str(ckpt)}
        return self.ranks.play("crash_part", part.world, {**spec, **paths})

    def whole(self, run: Run) -> Told:
        if run not in self.wholes:
            folder = Path(tempfile.mkdtemp(dir=self.folder))
            told = self.part(run, Part(1, None, 0, "hand"), folder, None)
            self.wholes[run] = Told(merged(told), told[0])
        return self.wholes[run]

    def check(self, run: Run, parts: list[Part]) -> None:
        """Assert that a run in parts is the run that was not disturbed."""
        whole, ckpt, exact = self.whole(run), None, True
        last = replace(parts[-1], hook=None)
        for number, part in enumerate([*parts, last]):
            folder = Path(tempfile.mkdtemp(dir=self.folder))
            begun = 0
            if ckpt is not None:
                state = torch.load(ckpt, weights_only=True)["SequenceDataModule"]
                place = state["epoch"], state["position"]
                begun = sum(one[:2] < place for one in whole.steps)
                exact &= bool(run.lanes or not state["position"] % 2)
            told = self.part(run, part, folder, ckpt)
            assert len({one["crashed"] for one in told}) == 1, (number, told)
            found = merged(told)
            assert found == whole.steps[begun : begun + len(found)], (number, ckpt)
            if not told[0]["crashed"]:
                assert begun + len(found) == len(whole.steps)
                self.check_end(whole, told, exact=exact)
                return
            paths = sorted(folder.glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
            ckpt = paths[-1] if paths else ckpt
        raise AssertionError("the last part crashed")

    def check_end(self, whole: Told, told: list[dict[str, Any]], *, exact: bool) -> None:
        for one in told:
            assert one["global_step"] == whole.last["global_step"]
            assert one["rate"] == whole.last["rate"]
            if exact:
                difference = torch.tensor(one["parameters"]) - torch.tensor(
                    whole.last["parameters"]
                )
                assert difference.abs().max() <= CLOSE, difference.abs().max()


@pytest.fixture(scope="module")
def player(ranks, tmp_path_factory):
    return Player(ranks, tmp_path_factory.mktemp("crashes"))


def runs() -> st.SearchStrategy[Run]:
    trainers = st.sampled_from(
        [(), (("val_check_interval", 0.5),), (("limit_train_batches", 0.7),)]
    )
    masked = st.sampled_from(["", "sequences", "chunks"])
    lanes = st.builds(
        Run, lanes=st.sampled_from([1, 2, 3]), kind=st.sampled_from(list(LANES)), masked=masked,
        count=st.sampled_from([7, 12]), trainer=trainers,
    )  # fmt: skip
    rows = st.builds(
        Run, lanes=st.just(0), kind=st.just("rows"), masked=masked, count=st.just(22),
        trainer=trainers,
    )  # fmt: skip
    return st.one_of(lanes, rows)


def chains(run: Run, most: int) -> st.SearchStrategy[list[Part]]:
    worlds = [1, 2, 3] if run.lanes else [1, 2]
    part = st.builds(
        Part, world=st.sampled_from(worlds), hook=st.sampled_from(HOOKS),
        at=st.integers(1, 6), save=st.sampled_from(list(SAVES)),
    )  # fmt: skip
    return st.lists(part, min_size=1, max_size=most)


def drawn(most: int) -> st.SearchStrategy[tuple[Run, list[Part]]]:
    return runs().flatmap(lambda run: st.tuples(st.just(run), chains(run, most)))


QUIETLY = {
    "derandomize": True, "deadline": None, "database": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
}  # fmt: skip


CASES = {
    "a failed step, then saved every step": (
        Run(2, "rows", "", 7),
        [Part(1, "training_step", 3, "exception"), Part(1, "on_train_batch_end", 3, "step")],
    ),
    "all ranks at once, then other ranks than lanes": (
        Run(2, "segments", "", 7),
        [Part(2, "on_after_backward", 4, "exception"), Part(3, "training_step", 3, "exception")],
    ),
    "masked lanes, and padding rows": (
        Run(1, "rows", "sequences", 7),
        [Part(2, "training_step", 5, "step"), Part(1, "on_validation_start", 1, "exception")],
    ),
    "rows": (
        Run(0, "rows", "chunks", 22),
        [Part(1, "on_before_optimizer_step", 2, "exception"), Part(2, "training_step", 2, "step")],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_crashed_is_the_run_that_did_not(player, case):
    player.check(*CASES[case])


@pytest.mark.nightly
@settings(max_examples=300, **QUIETLY)
@given(chain=drawn(4))
def test_a_run_that_crashed_anywhere_any_number_of_times_is_the_run_that_did_not(player, chain):
    player.check(*chain)
