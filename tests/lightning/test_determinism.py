"""One seed, one run: bit by bit, whatever else is running, is resumed, or makes the batches."""

import pytest
import torch

from tests.lightning.crashing import noisy
from tests.lightning.harness import data_of, fit
from tests.lightning.noise import Digesting, Dropping, many_steps


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _seeds_of_its_own(monkeypatch):
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "")  # so that what is set below is taken back
        monkeypatch.delenv(name)


@pytest.mark.slow
def test_two_runs_of_200_steps_are_bitwise_equal():
    one, two = (many_steps(Dropping(), 200) for _ in range(2))
    assert len(one.losses) == 200
    assert one.losses == two.losses
    assert one.parameters_of() == two.parameters_of()
    assert len(set(one.losses)) > 190  # dropout and noise are at work


def digests(folder=None, ckpt=None, **options) -> dict:
    model = Digesting()
    options = {"transform": noisy, **options}
    fit(data_of(**options), model=model, max_epochs=2, folder=folder, every=1, ckpt=ckpt)
    return model.seen


def test_augmentation_is_the_same_with_workers_and_after_a_resume(tmp_path):
    whole = digests(tmp_path)
    assert len(whole) == 2 * 23
    assert len(set(whole.values())) == 2 * 23  # no two draws are alike
    assert digests(num_workers=2, start_method="fork") == whole
    rest = digests(ckpt=tmp_path / "step=8.ckpt")
    assert len(rest) in {15, 16}  # of the second epoch, after two batches of 4 or fewer
    assert rest.items() <= whole.items()
    assert digests(seed=4).items().isdisjoint(whole.items())
