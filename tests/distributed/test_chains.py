"""One run in parts on other worlds and workers, each told to stop: nothing lost or repeated."""

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.chains import POLICIES
from tests.lightning.crashing import FAILING

pytestmark = pytest.mark.distributed

EPOCHS = 2


def dealt(told: list[dict[str, Any]]) -> list[tuple[int, int, list[Any]]]:
    """Return what all ranks of a part were handed, in order of the plan, without padding rows."""
    found: dict[tuple[int, int], list[Any]] = {}
    for step in zip(*(one["seen"] for one in told), strict=True):
        for ((epoch, number, rows),) in step:
            found.setdefault((epoch, number), []).extend(rows)
    return [(*place, rows) for place, rows in found.items() if rows]


def validated(told: list[dict[str, Any]]) -> dict[int, list[int]]:
    """Return the ids that were validated, by epoch."""
    found: dict[int, list[int]] = {}
    for one in told:
        for epoch, ids in one["validated"]:
            found.setdefault(epoch, []).extend(ids)
    return {epoch: sorted(ids) for epoch, ids in found.items()}


def played(ranks, folder: Path, policy: str, parts: list[tuple[int, int, int | None]]) -> Any:
    """Play parts of (world, workers, steps until it is told to stop); give all that was seen."""
    batches: list[Any] = []
    validations: dict[int, list[int]] = {}
    begun: list[int] = []
    ckpt = None
    for number, (world, workers, after) in enumerate(parts):
        spec = {
            "policy": policy, "num_workers": workers, "after": after, "ckpt": ckpt,
            "epochs": EPOCHS, "folder": str(folder / str(number)),
        }  # fmt: skip
        told = ranks.play("part", world, spec)
        assert {one["stopped"] for one in told} == {after is not None}
        assert max(one["state"] for one in told) < 1000
        batches += dealt(told)
        found = validated(told)
        assert not validations.keys() & found.keys()
        validations |= found
        begun += told[0]["begun"]
        ckpt = str(folder / str(number) / "saved.ckpt")
    return batches, validations, begun


CHAINS = {
    "short": [(2, 2, 1), (1, 1, 2), (3, 0, None)],
    "a": [(3, 0, 1), (2, 2, 1), (4, 1, 1), (1, 0, None)],
    "b": [(1, 1, 2), (4, 0, 1), (3, 2, 1), (2, 0, None)],
    "c": [(2, 0, 2), (3, 0, 1), (1, 2, 4), (4, 0, None)],
    "d": [(4, 2, 2), (1, 0, 1), (1, 1, 1), (3, 0, None)],
}


def assert_one_run(ranks, folder: Path, policy: str, chain: str) -> None:
    whole = played(ranks, folder / "whole", policy, [(1, 0, None)])
    parts = played(ranks, folder / "parts", policy, CHAINS[chain])
    assert parts[0] == whole[0]
    assert parts[1] == whole[1] == {epoch: [0, 1, 2, 3, 4] for epoch in range(EPOCHS)}
    assert parts[2] == list(range(EPOCHS))


@pytest.mark.parametrize("policy", ["bucketed", "continuous lanes"])
def test_a_run_goes_on_with_any_number_of_ranks_and_workers(ranks, tmp_path, policy):
    assert_one_run(ranks, tmp_path, policy, "short")


def test_errors_gone_on_from_are_counted_over_all_ranks_and_worlds(ranks, tmp_path):
    """Every state says the same on all ranks: the errors of the batches that are trained."""
    logs = {"logs": str(tmp_path / "logs")}
    (whole,) = ranks.play("mended", 1, {"folder": str(tmp_path / "whole"), **logs})
    ckpt, done, updates = None, 0, 0
    for number, (world, steps) in enumerate([(3, 2), (1, 3), (2, None)]):
        folder = tmp_path / str(number)
        told = ranks.play("mended", world, {"folder": str(folder), "ckpt": ckpt, **logs})
        assert all(one["states"] == told[0]["states"] for one in told)
        after = [min(10, done + world * (step + 1)) for step in range(-(-(10 - done) // world))]
        due = [whole["states"][batches - 1] for batches in after]
        assert told[0]["states"][: len(due)] == due
        assert told[0]["states"][-1] == whole["states"][-1] == 2 * FAILING
        if steps is not None:
            done, updates = after[steps - 1], updates + steps
            ckpt = str(folder / f"step={updates}.ckpt")


def test_the_cap_of_errors_is_for_all_ranks_together(ranks, tmp_path):
    spec = {"folder": str(tmp_path), "logs": str(tmp_path), "max_errors": FAILING + 1}
    told = ranks.play("mended", 3, spec)
    for one in told:
        assert f"`max_errors` allows ({FAILING + 1}). Repair the data, or raise" in one["error"]
    assert {len(one["states"]) for one in told} == {len(told[0]["states"])}
    assert 4 <= len(told[0]["states"]) < 8  # after the first epoch, before the second one's end


@pytest.mark.nightly
@pytest.mark.parametrize("chain", "abcd")
@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_of_any_policy_goes_on_with_any_number_of_ranks_and_workers(
    ranks, tmp_path, policy, chain
):
    assert_one_run(ranks, tmp_path, policy, chain)
