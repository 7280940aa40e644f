"""What users set of torch changes no batch, state, mean or prediction.

The device "meta" stands for a GPU: whatever is made on it by mistake has no values.
"""

import pickle

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from seqdata.batch.batch import SequenceBatch
from seqdata.batch.layouts import LAYOUTS
from seqdata.lightning.callbacks.loss_record import LossRecord
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.lightning.metrics import ExactMean
from seqdata.lightning.predictions.writer import PredictionWriter
from seqdata.loading.loader import Loader
from seqdata.policies.fixed import Bucketed
from seqdata.policies.packed import Packed
from seqdata.policies.tbptt import TBPTT
from seqdata.policies.windows import Windows
from seqdata.recurrent.lane_states import LaneStates
from tests.lightning.harness import QUIET, quietly
from tests.lightning.predictions.predicting import read
from tests.torch_settings import SETTINGS

RANDOM = np.random.default_rng(0)
ROWS = [
    {"x": RANDOM.normal(size=(n, 3)), "y": np.arange(n), "label": k, "name": f"s{k}"}
    for k, n in enumerate(RANDOM.integers(2, 19, 12))
]


every_setting = pytest.mark.parametrize("setting", SETTINGS)


def compare(made, expected, tolerance=0.0):
    """Compare values of any form; tensors in dtype and device, too."""
    assert type(made) is type(expected)
    if isinstance(made, SequenceBatch):
        made, expected = made._materialize().__dict__, expected._materialize().__dict__
    if isinstance(made, Tensor) and made.layout == torch.jagged:
        made, expected = (made.values(), made.offsets()), (expected.values(), expected.offsets())
    if isinstance(made, Tensor):
        assert (made.dtype, made.device) == (expected.dtype, expected.device)
        torch.testing.assert_close(made, expected, rtol=tolerance, atol=tolerance)
    elif isinstance(made, dict):
        assert list(made) == list(expected)
        compare(list(made.values()), list(expected.values()), tolerance)
    elif isinstance(made, list | tuple):
        assert len(made) == len(expected)
        for one, other in zip(made, expected, strict=True):
            compare(one, other, tolerance)
    else:
        assert repr(made) == repr(expected)


def run_twice(setting, action, tolerance=0.0):
    """Compare what an action returns under a setting with what it returns without one."""
    expected = action()
    with SETTINGS[setting]():
        made = action()
    compare(made, expected, tolerance)


POLICIES = {
    "bucketed": (Bucketed(4), {}),
    "packed": (Packed(3, 24), {}),
    "windows": (Windows(6, 3, 4, horizon=2), {}),
    "lanes": (TBPTT(3, 7), {"fields": ["y"], "shift": 1}),
    "segments": (TBPTT(3, 7, segments=True), {}),
}


def describe(batch):
    """Return all that a user may ask of a batch."""
    parts = [
        batch,
        batch.mask,
        batch.score,
        batch.cu_seqlens,
        batch.position_ids,
        bool(repr(batch)),
    ]
    if batch.horizon:
        parts += [dict(batch.context), dict(batch.future)]
    if bool((batch.lengths > 0).all()):
        parts += [batch.packed("y")]
        parts += [batch.as_layout(name) for name in LAYOUTS]
        parts += [batch.as_layout(name).as_layout("padded") for name in LAYOUTS]
    copied = pickle.loads(pickle.dumps(batch)) if batch.layout == "padded" else batch
    return [*parts, batch.real(), batch.to("cpu"), batch.validate(), copied]


@every_setting
@pytest.mark.parametrize(
    ("policy", "layout"),
    [
        *((policy, "padded") for policy in POLICIES),  # and from there to each other one
        ("bucketed", "packed"), ("packed", "jagged"), ("segments", "varlen"),
        ("windows", "varlen"),
    ],
)  # fmt: skip
def test_an_epoch_is_the_same_in_every_layout(policy, layout, setting):
    batching, options = POLICIES[policy]

    def play():
        loader = Loader(ROWS, batching, collator=layout, seed=1, prefetch=0, **options)
        return [describe(batch) for batch in loader]

    run_twice(setting, play)


@every_setting
def test_an_epoch_is_the_same_for_a_collate_function(setting):
    run_twice(setting, lambda: list(Loader(ROWS, Bucketed(4), collator=lambda rows: rows, seed=1)))


@pytest.mark.slow
@every_setting
def test_an_epoch_is_the_same_from_workers(setting):
    def play():
        return [describe(batch) for batch in Loader(ROWS, Bucketed(4), seed=1, num_workers=1)]

    run_twice(setting, play)


RNNS = {
    "lstm": lambda: nn.LSTM(3, 4),
    "function": lambda: lambda x, state: (x.cumsum(1), x.sum(1)[None]),
    "learned": lambda: nn.GRU(3, 4, batch_first=True),
}
LANES = {
    "ragged": TBPTT(3, 5),
    "segments": TBPTT(3, 5, segments=True),
    "overlapping": TBPTT(3, 5, advance=3),
    "idle": TBPTT(20, 5),
}


@every_setting
@pytest.mark.parametrize(
    ("rnn", "lanes"),
    [
        *(("lstm", lanes) for lanes in LANES),
        ("function", "ragged"), ("function", "overlapping"), ("learned", "segments"),
        ("learned", "idle"),
    ],
)  # fmt: skip
def test_states_of_lanes_are_the_same(rnn, lanes, setting):
    torch.manual_seed(0)
    module = RNNS[rnn]()
    initial = torch.ones(1, 4) if rnn == "learned" else None

    def play():
        made, states = [], LaneStates(initial=initial)
        for batch in Loader(ROWS, LANES[lanes], fields=["x"], dtype="float32", name="train"):
            out, state = states.run(module, batch, "x", states.take(batch))
            states.put(batch, state)
            saved = states.gathered()
            states = LaneStates(initial=initial)
            states.load_state_dict(saved)
            joined = states.joined([states.saved("train", batch.epoch, batch.number + 1)] * 2)
            for table in (saved["tables"]["train"], joined):
                del table["digest"]  # of all bits
                made += [out, table]
        return made

    run_twice(setting, play, tolerance=1e-6)  # torch runs an LSTM by oneDNN in inference only


def test_a_state_of_inference_mode_is_trained_from():
    torch.manual_seed(0)
    module, states = nn.LSTM(3, 4, batch_first=True), LaneStates()
    for batch in Loader([np.ones((12, 3), "float32")], TBPTT(1, 5)):
        with torch.inference_mode(batch.number == 0):  # what comes before is context
            out, state = states.run(module, batch, "x", states.take(batch))
            states.put(batch, state)
    out.sum().backward()
    assert module.weight_hh_l0.grad.abs().max() > 0


@every_setting
def test_a_mean_is_the_same(setting):
    def add():
        mean = ExactMean()
        for total in (3.0, torch.zeros((), dtype=torch.bfloat16, device="cpu")):
            mean.update(total, 2)
        return mean.compute()

    run_twice(setting, add)


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2, device="cpu", dtype=torch.float64)

    def training_step(self, batch):
        error = self.layer(batch["x"]).square().mean(2)
        losses = torch.where(batch.score, error, 0.0).sum(1)
        return {"loss": losses.sum() * batch.loss_scale, "each": losses.detach()}

    def predict_step(self, batch):
        steps = self.layer(batch["x"]).detach()
        return {"steps": steps, "sum": torch.where(batch.mask[..., None], steps, 0.0).sum(1)}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def make_model():
    torch.manual_seed(0)
    return Model()


@every_setting
def test_predictions_are_the_same(setting, tmp_path):
    model = make_model()

    def predict():
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        data = SequenceDataModule(predict=ROWS, batching=Bucketed(4), prefetch=0)
        with quietly():
            trainer = pl.Trainer(**QUIET, callbacks=[PredictionWriter(folder)])
            trainer.predict(model, data, return_predictions=False)
        return read(folder)

    run_twice(setting, predict)


@pytest.mark.parametrize("setting", [name for name in SETTINGS if name != "inference"])
def test_a_fit_is_the_same_with_its_scores(setting, tmp_path):
    def fit():
        model, folder = make_model(), tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        record = LossRecord(folder / "losses", score="each")
        data = SequenceDataModule(train=ROWS, batching=Bucketed(4), seed=1, prefetch=0)
        with quietly():
            pl.Trainer(**{**QUIET, "max_epochs": 2}, callbacks=[record]).fit(model, data)
        return {name: value.detach() for name, value in model.state_dict().items()}

    run_twice(setting, fit)
