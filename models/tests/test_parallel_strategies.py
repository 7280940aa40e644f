"""The strategies: one run over one process, layers, time and data in turn is one run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import StochasticWeightAveraging
from seqdata_models import StatefulLM
from seqdata_models.parallel import Mesh, Ring, RingStrategy, WavefrontStrategy

from seqdata import ConfigError, Feedback, LossRecord, RankConsistency, SeqDataWarning
from seqdata_testing.waiting import patient
from tests.preloaded import python

sys.path.insert(0, str(Path(__file__).parent))
import on_ranks_parallel
from parallel_cases import difference, make_updates

CHAINS = {
    "all": (("one", 1), ("wave", 2), ("ring", 2), ("data", 2), ("hybrid", 4), ("one", 1)),
    "rings": (("ring hybrid", 4), ("ring", 2), ("one", 1)),
    "torch": (("torch", 2), ("wave", 2), ("one", 1)),
}  # fmt: skip
COUNTS = ("counted", "counted_by_metric")
STEPS = 2  # of each link of the chain


def fit(folder: Path, **spec: Any) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the checkpoint and the metrics of a fit."""
    if spec["devices"] == 1:  # no need of another process
        on_ranks_parallel.fit(spec)
    else:
        ended = subprocess.run(
            [python(), on_ranks_parallel.__file__, json.dumps(spec)],
            capture_output=True, text=True, timeout=patient(100), check=False, cwd=folder,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr[-3000:]
    checkpoint = torch.load(spec["save"], weights_only=False)
    return checkpoint, json.loads(Path(spec["save"] + ".json").read_text())


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "chain", [pytest.param(one, marks=[pytest.mark.nightly] * (one != "all")) for one in CHAINS]
)
def test_a_run_that_changes_its_strategy_is_the_undisturbed_run(chain, tmp_path):
    steps = STEPS * len(CHAINS[chain])
    save = str(tmp_path / "undisturbed.ckpt")
    expected, metrics = fit(tmp_path, strategy="one", devices=1, steps=steps, save=save)
    resume, counts = None, []
    for number, (strategy, devices) in enumerate(CHAINS[chain], 1):
        save = str(tmp_path / f"{number}.ckpt")
        spec = {"strategy": strategy, "devices": devices, "steps": STEPS * number, "save": save}
        found, found_metrics = fit(tmp_path, **spec, resume=resume)
        resume = save
        counts += [found_metrics[name] for name in COUNTS if name in found_metrics]
    assert len(counts) >= len(CHAINS[chain])  # not each link comes to a validation
    assert set(counts) == {metrics[name] for name in COUNTS}
    assert found["global_step"] == expected["global_step"] == steps
    for part in ("state_dict", "optimizer_states"):
        assert difference(found[part], expected[part]) <= 1e-12
    lanes = [saved["SequenceDataModule"]["lanes"]["lanes"] for saved in (found, expected)]
    assert difference(lanes[0]["state"], lanes[1]["state"]) <= 1e-12
    assert difference(found_metrics, metrics) <= 1e-12


def test_a_ring_asks_for_its_part_of_rows_unless_it_wants_them_whole():
    parts = [RingStrategy(2).time_part, RingStrategy(3, whole_rows=True).time_part]
    assert parts == [(0, 2), (0, 1)]


def test_devices_that_do_not_make_the_mesh_are_refused(trainer_of):
    for strategy in (WavefrontStrategy(2, chunks=2), RingStrategy(2)):
        trainer = trainer_of(strategy=strategy, max_steps=1)
        with pytest.raises(ConfigError, match="number of processes must be a multiple of 2"):
            trainer.strategy.setup_environment()


def test_an_engine_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match="`engine` must be 'seqdata' or 'torch', but is 'gpipe'"):
        WavefrontStrategy(2, engine="gpipe")
    with pytest.raises(ConfigError, match="`schedule` must be one of 'GPipe', '1F1B', 'ZBV'"):
        WavefrontStrategy(2, engine="torch", schedule="wave")
    with pytest.raises(ConfigError, match="`split_backward` must be False with engine='torch'"):
        WavefrontStrategy(2, engine="torch", split_backward=True)


def test_a_trainer_that_cannot_be_split_is_refused(trainer_of):
    strategy = WavefrontStrategy(1, chunks=2)
    with pytest.raises(ConfigError, match="`accumulate_grad_batches` must be `chunks`, 2, but is"):
        strategy.check_update(4)
    model = StatefulLM(7, 4, 6, 2)
    trainer = trainer_of(strategy=RingStrategy(1), max_steps=1)
    trainer.strategy.connect(model)
    model.trainer = trainer
    model.automatic_optimization = False
    with pytest.raises(ConfigError, match="`automatic_optimization` of the module must be True"):
        trainer.strategy.check_trainer(trainer)
    with pytest.raises(ConfigError, match="a training step must be part of a fit, but is not"):
        trainer.strategy.training_step(None)


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (
            StochasticWeightAveraging(0.1),
            r"not average weights.* is a StochasticWeightAveraging\. L",
        ),
        (
            RankConsistency(),
            r"not compare the weights of ranks.* there is a RankConsistency\. Leave",
        ),
    ],
)
def test_callbacks_that_need_whole_weights_are_refused_where_stages_step_their_own(
    callback, message, trainer_of
):
    trainer = trainer_of(callbacks=[callback])
    model = StatefulLM(7, 4, 6, 2)
    trainer.strategy.connect(model)
    model.trainer = trainer
    RingStrategy(1).check_trainer(trainer)
    with pytest.raises(ConfigError, match=message):
        WavefrontStrategy(1).check_trainer(trainer)


def connect_ring(trainer: Any) -> StatefulLM:
    """Return the model of a Trainer's strategy, with an engine of one process."""
    model = StatefulLM(7, 4, 6, 2)
    trainer.strategy.connect(model)
    model.trainer = trainer
    model.log = lambda *_, **__: None
    trainer.strategy.engine = Ring(model, Mesh(1))
    return model


@pytest.mark.parametrize("callback", [LossRecord(), Feedback()])
@pytest.mark.parametrize(("every", "replicas"), [(2, 1), (1, 2)])
def test_callbacks_that_record_losses_are_refused_where_an_update_has_several_batches(
    callback, every, replicas, trainer_of
):
    for batches, message in [
        (1, "must be SequenceBatch"),
        (
            2,
            rf"have one batch with {type(callback).__name__}, .* but has 2 \(accumulated batches x",
        ),
    ]:
        trainer = trainer_of(strategy=RingStrategy(1), callbacks=[callback])
        connect_ring(trainer)
        if batches == 2:
            trainer.accumulate_grad_batches, trainer.strategy.engine.mesh.data = every, replicas
        with pytest.raises(ConfigError, match=message):
            trainer.strategy.training_step({})


def test_gradients_of_an_update_outlive_that_an_optimizer_sets_them_to_zero(trainer_of):
    trainer = trainer_of(strategy=RingStrategy(1))
    model = connect_ring(trainer)
    (batch, *_), *_ = make_updates("lstm")
    loss = trainer.strategy.training_step(batch)
    optimizer = torch.optim.SGD(model.parameters())
    optimizer.zero_grad(set_to_none=False)
    trainer.strategy.backward(loss, optimizer)
    assert all(float(parameter.grad.abs().max()) > 0 for parameter in model.parameters())


def test_a_checkpoint_in_the_middle_of_an_update_is_warned_of(trainer_of):
    trainer = trainer_of(strategy=RingStrategy(1), accumulate_grad_batches=2)
    model = connect_ring(trainer)
    trainer.fit_loop.epoch_loop.batch_progress.current.ready = 1  # the first batch of an epoch
    trainer.strategy.training_step(make_updates("lstm")[0][0])
    with pytest.warns(SeqDataWarning, match="is saved while 1 wait for the others.* Save after a"):
        saved = trainer.strategy.lightning_module_state_dict()
    assert saved.keys() == model.state_dict().keys()


def test_an_optimizer_that_asks_for_gradients_again_is_refused(trainer_of):
    trainer = trainer_of(strategy=RingStrategy(1))
    model = connect_ring(trainer)
    trainer.strategy.optimizers = [torch.optim.LBFGS(model.parameters())]
    with pytest.raises(ConfigError, match="must be SequenceBatch"):
        trainer.strategy.training_step({})
    with pytest.raises(ConfigError, match="its closure once for each update, but LBFGS calls it"):
        trainer.strategy.training_step({})


def test_a_strategy_clips_what_the_optimizer_steps():
    model, strategy = StatefulLM(7, 4, 6, 2), RingStrategy(1)
    strategy.engine = Ring(model, Mesh(1))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    strategy._clip_gradients(torch.optim.SGD(model.head.parameters()), 0.5)
    head = torch.cat([parameter.grad.flatten() for parameter in model.head.parameters()])
    assert abs(head.norm() - 0.5) < 1e-4
    assert float(model.embedding.weight.grad.min()) == 1.0
