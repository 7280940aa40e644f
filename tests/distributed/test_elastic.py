"""A run that goes on with another number of ranks is the same run."""

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.dealing import list_dealt
from tests.lightning.harness import Run, data_of, fit

pytestmark = pytest.mark.distributed

COUNT, EPOCHS = 27, 3  # 7 batches of 4: an odd number, so that the last update is short
BATCHES = 7


def alone(**trainer: Any) -> Run:
    return fit(data_of(COUNT), max_epochs=EPOCHS, **trainer)


def validated(told: list[dict[str, Any]]) -> dict[int, list[int]]:
    """Return the ids that were validated, by global step."""
    found: dict[int, list[int]] = {}
    for one in told:
        for step, ids in one["val"]:
            found.setdefault(step, []).extend(ids)
    return {step: sorted(ids) for step, ids in found.items()}


def saved(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.ckpt"), key=lambda path: int(path.stem.split("=")[1]))


def batches_behind(path: Path) -> int:
    """Return the plan batches, over all epochs, that a checkpoint's state says are trained."""
    import torch

    state = torch.load(path)["SequenceDataModule"]
    return state["epoch"] * BATCHES + state["position"]


@pytest.mark.shows("I5", by="processes")
@pytest.mark.parametrize(
    ("before", "after", "each"),
    [
        (2, 1, 6),
        (1, 2, 13),
        (2, 2, 11),
        *(pytest.param(*both, 1, marks=pytest.mark.nightly) for both in ((2, 1), (1, 2), (2, 2))),
    ],
)
def test_every_step_is_a_place_to_go_on_with_other_ranks(ranks, tmp_path, before, after, each):
    whole = alone()
    spec = {"data": {"count": COUNT}, "trainer": {"max_epochs": EPOCHS}}
    ranks.play("fit", before, {**spec, "folder": str(tmp_path), "every": 1})
    for path in saved(tmp_path)[each // 2 : -1 : each]:
        done = batches_behind(path)
        told = ranks.play("fit", after, {**spec, "ckpt": str(path)})
        assert list_dealt(told) == whole.log.train[done:]
        epochs = [epoch for epoch in range(EPOCHS) if epoch * BATCHES >= done]
        assert [one["epochs"] for one in told] == [epochs] * after
        # Saved with the last step of an epoch, before its validation: that is run, too.
        assert len(validated(told)) == EPOCHS - (done - 1) // BATCHES
        assert all(ids == [0, 1, 2, 3, 4] for ids in validated(told).values())


@pytest.mark.parametrize(("before", "after"), [("fill", "drop"), ("drop", "fill")])
def test_a_run_goes_on_with_another_tail(ranks, tmp_path, before, after):
    """Seven batches on two ranks are four steps, or three."""
    spec = {"trainer": {"max_epochs": 2}, "folder": str(tmp_path), "every": 2}
    ranks.play("fit", 2, {**spec, "data": {"count": COUNT, "tail": before}})
    path = str(tmp_path / "step=2.ckpt")
    again = {"trainer": {"max_epochs": 2}, "ckpt": path}
    told = ranks.play("fit", 2, {**again, "data": {"count": COUNT, "tail": after}})
    left_out = BATCHES - 1 if after == "drop" else BATCHES
    wanted = [one for one in alone().log.train[4 : 2 * BATCHES] if one[1] != left_out]
    assert list_dealt(told) == wanted
    assert [one["epochs"] for one in told] == [[1], [1]]
    steps = [1, 4] if after == "drop" else [2, 6]
    assert sorted(validated(told)) == [2 + step for step in steps]


def test_a_run_at_an_odd_batch_goes_on_with_another_tail(ranks, tmp_path):
    """Three batches are two of four steps where the tail is filled, one of three where dropped."""
    spec = {"trainer": {"max_epochs": 2}, "every": 1}
    filled = {"count": COUNT, "tail": "fill"}
    ranks.play("fit", 1, {**spec, "folder": str(tmp_path / "1"), "data": filled})
    path = str(tmp_path / "1" / "step=1.ckpt")
    ranks.play("fit", 2, {**spec, "folder": str(tmp_path / "2"), "data": filled, "ckpt": path})
    path = str(tmp_path / "2" / "step=2.ckpt")
    dropped = {**filled, "tail": "drop"}
    told = ranks.play("fit", 2, {"trainer": {"max_epochs": 2}, "data": dropped, "ckpt": path})
    assert list_dealt(told) == alone().log.train[3 : 2 * BATCHES - 1]


def same_run(
    ranks, folder: Path, worlds: tuple[int, ...], cuts: tuple[int, ...], group: int
) -> None:
    """Assert that a run over ``worlds``, cut at these global steps, is the run of one process.

    Every part but the first goes on from a checkpoint of the part before, and is played to the end.
    """
    data = {"count": COUNT, "batches_per_update": group}
    whole = fit(data_of(COUNT, batches_per_update=group), max_epochs=EPOCHS)
    updates = -(-BATCHES // group)
    spec: dict[str, Any] = {"data": data, "trainer": {"max_epochs": EPOCHS}}
    path, done, cut = None, 0, 0
    for number, world in enumerate(worlds):
        at = folder / str(number)
        part = {**spec, "folder": str(at), "every": 1, **({"ckpt": str(path)} if path else {})}
        told = ranks.play("fit", world, part)
        assert list_dealt(told) == whole.log.train[done:]
        epochs = [epoch for epoch in range(EPOCHS) if epoch * updates >= cut]
        for one in told:
            assert one["epochs"] == epochs
            assert one["global_step"] == whole.trainer.global_step == updates * EPOCHS
            assert one["rate"] == whole.trainer.optimizers[0].param_groups[0]["lr"]
            assert one["parameters"] == pytest.approx(whole.model.parameters_of(), rel=0, abs=1e-12)
        ends = [updates * (epoch + 1) for epoch in range(EPOCHS)]
        assert validated(told) == {end: [0, 1, 2, 3, 4] for end in ends if end >= cut}
        if number < len(cuts):
            cut = cuts[number]
            path = at / f"step={cut}.ckpt"
            done = batches_behind(path)


@pytest.mark.shows("I5", by="processes")
@pytest.mark.filterwarnings("ignore:.*inside an update.*:seqdata.errors.SeqDataWarning")
@pytest.mark.parametrize(
    ("worlds", "cuts"),
    [
        ((2, 1, 2), (2, 6)),  # in mid-epoch, twice
        ((1, 2, 1), (4, 8)),  # on the last batch, twice
        *(
            pytest.param(*chain, marks=pytest.mark.nightly)
            for chain in (
                ((1, 1, 1), (2, 6)),
                ((2, 1, 2), (4, 8)),
                ((1, 2, 1), (4, 6)),
                ((2, 2, 2), (3, 8)),
                ((1, 2), (1,)),
                ((2, 1), (5,)),
            )
        ),
    ],
)
def test_batches_per_update_makes_any_chain_of_worlds_one_run(ranks, tmp_path, worlds, cuts):
    same_run(ranks, tmp_path, worlds, cuts, group=2)


@pytest.mark.shows("I5", by="processes")
@pytest.mark.nightly
@pytest.mark.parametrize("cuts", [(1, 3), (2, 4), (2, 3), (1, 4), (4, 5)])
@pytest.mark.parametrize(
    "worlds", [(4, 2, 1), (1, 4, 2), (2, 1, 4), (1, 1, 1), (2, 2, 2), (4, 4, 1)]
)
def test_longer_chains_of_up_to_four_ranks_are_one_run(ranks, tmp_path, worlds, cuts):
    same_run(ranks, tmp_path, worlds, cuts, group=4)


@pytest.mark.parametrize(
    ("before", "after", "steps"),
    [
        (2, 1, (3,)),
        (1, 2, (5,)),
        *(pytest.param(*both, (1, 3, 5), marks=pytest.mark.nightly) for both in ((2, 1), (1, 2))),
    ],
)
def test_a_failed_step_is_trained_again_by_other_ranks(ranks, tmp_path, before, after, steps):
    whole = alone()
    spec = {"data": {"count": COUNT}, "trainer": {"max_epochs": EPOCHS}}
    for failing in steps:
        folder = tmp_path / str(failing)
        cut = {**spec, "model": {"fail_at": failing}, "folder": str(folder), "every": 100}
        assert {one["error"] for one in ranks.play("fit", before, cut)} == {"told to fail"}
        (path,) = saved(folder)
        told = ranks.play("fit", after, {**spec, "ckpt": str(path)})
        assert list_dealt(told) == whole.log.train[batches_behind(path) :]
        assert len(validated(told)) == EPOCHS - batches_behind(path) // BATCHES


def test_a_limit_in_steps_is_refused_on_another_world(ranks, tmp_path):
    fit(data_of(COUNT), folder=tmp_path, every=1, max_epochs=1, limit_train_batches=4)
    trainer = {"max_epochs": 1, "limit_train_batches": 4}
    spec = {"data": {"count": COUNT}, "trainer": trainer, "ckpt": str(tmp_path / "step=2.ckpt")}
    told = ranks.play("fit", 2, spec)
    assert {one["refused"] for one in told} == {"ResumeError"}
    assert (
        "`limit_train_batches` must be a fraction, but is 4 steps, which have other batches on 2"
        in told[0]["text"]
    )


@pytest.mark.parametrize(("cut", "begins"), [(2, (0, 2)), (4, (1, 0))])
def test_a_fraction_of_an_epoch_goes_on_or_ends_by_the_new_worlds_count(
    ranks, tmp_path, cut, begins
):
    """Half of 10 batches: 5 steps alone, 2 steps of 2 ranks, which hold 4 batches."""
    trainer = {"max_epochs": 3, "limit_train_batches": 0.5}
    fit(data_of(40), folder=tmp_path, every=1, **trainer)
    spec = {"data": {"count": 40}, "trainer": trainer, "ckpt": str(tmp_path / f"step={cut}.ckpt")}
    told = ranks.play("fit", 2, spec)
    places = [entry[:2] for entry in list_dealt(told)]
    assert places[0] == begins
    rest = [(0, 2), (0, 3)] if begins == (0, 2) else []
    assert places == rest + [(epoch, number) for epoch in (1, 2) for number in range(4)]
    assert told[0]["epochs"] == [1, 2]


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_lanes_go_on_with_other_ranks(ranks, tmp_path, before, after):
    trainer = {"max_epochs": 2}
    data = {"count": 9, "lanes": 4, "val": None, "batches_per_update": 3}
    spec = {"data": data, "trainer": trainer}
    whole = ranks.play("fit", 1, spec)[0]
    ranks.play("fit", before, {**spec, "folder": str(tmp_path), "every": 1})
    for path in saved(tmp_path)[:-1][before - 1 :: 2]:  # one of them even, one odd
        told = ranks.play("fit", after, {**spec, "ckpt": str(path)})
        rest = whole["train"][-len(told[0]["train"]) :]
        joined = [
            (*step[0][:2], sum((entry[2] for entry in step), ()))
            for step in zip(*(one["train"] for one in told), strict=True)
        ]
        assert joined == rest
        for one in told:
            assert one["parameters"] == pytest.approx(whole["parameters"], rel=0, abs=1e-12)


def chained(ranks, folder: Path, worlds: tuple[int, ...], cuts: tuple[int, ...], spec) -> None:
    """Assert that worlds changed after these updates give the one-process run: all that it does."""
    (whole,) = ranks.play("updates", 1, {**spec, "ckpt": None, "folder": str(folder / "whole")})
    path, done = None, 0
    for number, world in enumerate(worlds):
        at = folder / str(number)
        told = ranks.play("updates", world, {**spec, "ckpt": path, "folder": str(at)})
        begun = 0 if path is None else placed(Path(path))
        assert list_dealt(told) == whole["train"][begun:]
        later = {"val": [entry for entry in whole["val"] if entry[0] >= max(done, 1)]}
        assert validated(told) == validated([later])
        for one in told:
            assert one["parameters"] == pytest.approx(whole["parameters"], rel=0, abs=1e-12)
            assert one["rates"] == whole["rates"][done:]
            assert one["global_step"] == whole["global_step"]
            assert one["epochs"] == (whole["epochs"] if path is None else whole["epochs"][1:])
        if number < len(cuts):
            done = cuts[number]
            path = str(at / f"step={done}.ckpt")


def placed(path: Path) -> int:
    """Return the position of a checkpoint that lies in the first epoch."""
    import torch

    state = torch.load(path)["SequenceDataModule"]
    assert state["epoch"] == 0
    return state["position"]


HALVES = {"val_check_interval": 0.5}


@pytest.mark.parametrize(
    "worlds",
    [
        (2, 1, 2),
        pytest.param((4, 2, 1), marks=pytest.mark.nightly),
        pytest.param((1, 2, 4), marks=pytest.mark.nightly),
    ],
)
def test_worlds_that_change_twice_in_one_epoch_end_as_one_process_does(ranks, tmp_path, worlds):
    """16 batches, 4 of them in an update; validated after the second and the fourth."""
    spec = {"count": 32, "group": 4, "trainer": HALVES}
    chained(ranks, tmp_path, worlds, (1, 3), spec)


@pytest.mark.nightly
@pytest.mark.parametrize("cuts", [(1, 2), (2, 3), (1, 3)])
@pytest.mark.parametrize(
    ("worlds", "count", "group", "trainer"),
    [
        ((4, 2, 1), 32, 4, HALVES),
        ((1, 2, 4), 32, 4, HALVES),
        ((2, 4, 2), 32, 4, HALVES),
        ((4, 1, 4), 32, 4, HALVES),
        ((4, 2, 1), 27, 4, {}),  # a short last update of 2 batches
        ((1, 2, 4), 27, 4, {}),
        ((4, 3, 2), 96, 12, {}),
        ((3, 1, 4), 93, 12, {}),
        ((2, 3, 1), 93, 12, {}),
    ],
)
def test_any_worlds_that_change_in_one_epoch_end_as_one_process_does(
    ranks, tmp_path, worlds, count, group, trainer, cuts
):
    spec = {"count": count, "group": group, "trainer": trainer, "num_workers": len(cuts) - 1}
    chained(ranks, tmp_path, worlds, cuts, spec)
