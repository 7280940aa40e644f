"""Determinism over ranks, and ranks that are told apart before the first step."""

import pytest

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("world", [pytest.param(2, marks=pytest.mark.nightly), 3])
def test_augmentation_is_the_same_on_any_number_of_ranks(ranks, world):
    (alone,) = ranks.play("augmented", 1, {"count": 23})
    told = ranks.play("augmented", world, {"count": 23})
    joined = {place: digest for one in told for place, digest in one.items()}
    assert sum(map(len, told)) == len(joined) == 2 * 23
    assert joined == alone


@pytest.mark.parametrize("world", [2, 4])
def test_the_gradient_of_ranks_with_uneven_timesteps_is_that_of_one_process(ranks, world):
    """Updates of 4 batches, the last one of 3."""
    spec = {"count": 27, "naive": False}
    (alone,) = ranks.play("gradient", 1, spec)
    assert len(alone) == 2 * 2
    for one in ranks.play("gradient", world, spec):
        assert one == pytest.approx(alone, rel=1e-12)


def test_the_mean_of_the_ranks_means_is_another_gradient(ranks):
    naive = {"count": 27, "naive": True}
    (alone,) = ranks.play("gradient", 1, naive)
    assert ranks.play("gradient", 2, naive)[0] != pytest.approx(alone, rel=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize("deterministic", [False, True])
def test_two_runs_of_200_steps_on_two_ranks_are_bitwise_equal(ranks, deterministic):
    spec = {"steps": 200, "deterministic": deterministic}
    one, two = (ranks.play("losses", 2, spec) for _ in range(2))
    assert one == two
    assert one[0]["parameters"] == one[1]["parameters"]
    assert len(one[0]["losses"]) == 200


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"data": {"count": 24}}, "`data of train 0` is '"),
        ({"data": {"seed": 4}}, "`seed of train 0` is 3 on ranks 0, 1 but 4 on rank 2"),
        ({"data": {"shift": 1}}, "`shift of train 0` is 0 on ranks 0, 1 but 1 on rank 2"),
        ({"data": {"val": 6}}, "`data of val 0` is '"),
        ({"data": {"val": None}}, "`data of val 0` is '"),
        ({"data": {"tail": "drop"}}, "`tail` is 'fill' on ranks 0, 1 but 'drop' on rank 2"),
        (
            {"trainer": {"accumulate_grad_batches": 2}},
            "`accumulate_grad_batches` is 1 on ranks 0, 1 but 2",
        ),
        (
            {"trainer": {"limit_train_batches": 1}},
            "`limit_train_batches` is 1.0 on ranks 0, 1 but 1 on",
        ),
    ],
)
def test_ranks_that_were_given_other_things_are_named_before_the_first_step(ranks, other, named):
    told = ranks.play("prepared", 3, {}, ranks={2: other})
    assert len({one["refused"] for one in told}) == 1
    assert named in told[0]["refused"]
    assert told[0]["refused"].startswith("PlanError: ranks: ")
    assert "must be equal. Give every rank the same packages, data" in told[0]["refused"]


@pytest.mark.parametrize("package", ["torch", "lightning", "lightning-seqdata", "numpy"])
def test_ranks_with_other_releases_are_named(ranks, tmp_path, package):
    other = {"package": [package, "0.0.1"], "folder": str(tmp_path / "release")}
    told = ranks.play("prepared", 2, {}, ranks={1: other})
    assert told[0] == told[1]
    name = package.removeprefix("lightning-")
    assert f"`{name}` is '" in told[0]["refused"]
    assert " on rank 0 but '0.0.1' on rank 1, which must be equal" in told[0]["refused"]


def test_all_that_differs_is_named_at_once(ranks, tmp_path):
    release = {"package": ["torch", "0.0.1"], "folder": str(tmp_path / "release")}
    told = ranks.play("prepared", 2, {}, ranks={1: {**release, "data": {"seed": 4}}})
    assert "`torch` is '" in told[0]["refused"]
    assert "; `seed of train 0` is 3 on rank 0 but 4 on rank 1" in told[0]["refused"]


def test_settings_that_differ_are_warned_of_on_every_rank(ranks):
    other = {"precision": "high", "variables": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}}
    own = {"variables": {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}}
    told = ranks.play("prepared", 2, {}, ranks={0: own, 1: other})
    assert told[0] == told[1]
    (message,) = told[0]["warned"]
    assert message == (
        "ranks: `float32 matmul precision` is 'highest' on rank 0 but 'high' on rank 1; "
        "`CUBLAS_WORKSPACE_CONFIG` is ':16:8' on rank 0 but ':4096:8' on rank 1; results may "
        "differ between ranks. Configure every rank alike"
    )


def test_drivers_that_differ_are_named_before_the_first_step(ranks, tmp_path):
    drivers = [f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {one}\nGCC 12" for one in (1, 2)]
    for rank, driver in enumerate(drivers):
        (tmp_path / str(rank)).write_text(driver)
    others = {rank: {"driver": str(tmp_path / str(rank))} for rank in range(2)}
    told = ranks.play("prepared", 2, {}, ranks=others)
    assert told[0] == told[1]
    (message,) = told[0]["warned"]
    named = [driver.partition("\n")[0] for driver in drivers]
    assert f"`driver` is {named[0]!r} on rank 0 but {named[1]!r} on rank 1; results" in message


def test_ranks_that_are_alike_are_not_warned(ranks):
    assert ranks.play("prepared", 2, {}) == [{"warned": []}] * 2
