"""E9, E11, E13: states of lanes under the Trainer, saved and gone on with."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seqdata.errors import PeerFailedError, ResumeError, SeqDataWarning
from seqdata.lightning.ranks.coordinator import RankCoordinator
from seqdata.lightning.train_run import LANES_KEY
from seqdata.loading.loader import Loader
from seqdata.policies.tbptt import TBPTT
from seqdata.recurrent.lane_states import LaneStates
from seqdata.recurrent.lane_table import NO_BATCH
from tests.lightning.carrying import Carrying, Stacked, lanes_of, series
from tests.lightning.harness import fit

POLICIES = {
    "rows": TBPTT(4, 8),
    "overlapping": TBPTT(4, 8, advance=6),
    "segments": TBPTT(4, 8, segments=True),
    "stream": TBPTT(4, 8, continuous=True),
}


def saved_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.ckpt"), key=lambda path: int(path.stem.split("=")[1]))


def state_of(path: Path) -> dict[str, Any]:
    return torch.load(path, weights_only=True)["SequenceDataModule"]


def check_every_resume(folder, *, model=None, data=None, every=1, places=None, **trainer):
    """Resume from each checkpoint of a run; the rest of its losses must be the same bit by bit."""
    model, data = model or {}, {"count": 9, **(data or {})}
    trainer = {"max_epochs": 2, **trainer}
    whole = fit(
        lanes_of(**data), model=Carrying(**model), folder=folder, every=every, **trainer
    ).model
    paths = saved_in(folder)
    for path in paths[:: max(1, len(paths) // (places or len(paths)))]:
        again = fit(lanes_of(**data), model=Carrying(**model), ckpt=path, **trainer).model
        rest = len(again.did.losses)
        assert again.did.losses == whole.did.losses[len(whole.did.losses) - rest :]
        assert again.parameters_of() == whole.parameters_of()
    return whole, paths


@pytest.mark.slow
def test_e9_every_step_is_a_place_to_go_on_bitwise(tmp_path):
    whole, paths = check_every_resume(tmp_path)
    assert len(paths) == len(whole.did.losses) == 10


@pytest.mark.parametrize("policy", list(POLICIES.values())[1:], ids=list(POLICIES)[1:])
@pytest.mark.slow
def test_e9_holds_for_every_kind_of_lanes(policy, tmp_path):
    check_every_resume(tmp_path, data={"batching": policy}, places=3)


@pytest.mark.parametrize(
    "options",
    [
        {"data": {"num_workers": 2}},
        {"model": {"learned": True}},
        {"trainer": {"accumulate_grad_batches": 2}, "every": 1},
        {"trainer": {"gradient_clip_val": 0.05}},
        {"trainer": {"val_check_interval": 3, "num_sanity_val_steps": 2}},
        {"trainer": {"limit_train_batches": 4}},
        pytest.param(
            {"trainer": {"precision": "bf16-mixed"}, "model": {"dtype": torch.float32}},
            marks=pytest.mark.skipif(
                not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
                reason="PyTorch's LSTM takes no bfloat16 under autocast on this processor",
            ),
        ),
        {"trainer": {"precision": "bf16-true"}, "model": {"dtype": torch.float32}},
    ],
    ids=lambda options: "-".join(map(str, options)) if isinstance(options, dict) else None,
)
@pytest.mark.slow
def test_e9_holds_whatever_else_the_trainer_does(options, tmp_path):
    given = {name: value for name, value in options.items() if name != "trainer"}
    check_every_resume(tmp_path, places=3, **given, **options.get("trainer", {}))


class Bad:
    """A transform that cannot do sequences that begin or go on with one of these values."""

    def __init__(self, sequences: list[np.ndarray]) -> None:
        self.values = {value for one in sequences for value in one[:, 0].tolist()}

    def __call__(self, sequence, rng):
        if not self.values.isdisjoint(sequence["x"][:, 0].tolist()):
            raise ValueError("told to be bad")
        return sequence


@pytest.mark.parametrize("policy", ["rows", "segments"])
def test_e9_holds_where_a_lane_reads_a_sequence_that_is_masked(policy, tmp_path):
    data = {
        "count": 17, "batching": POLICIES[policy], "transform": Bad(series(17)[::3]),
        "on_error": "mask", "max_errors": 1000,
    }  # fmt: skip
    options = {"max_epochs": 1, "default_root_dir": tmp_path / "logs"}
    _, paths = check_every_resume(tmp_path, data=data, places=3, **options)
    never = [state_of(path)["lanes"]["lanes"]["put"] == NO_BATCH for path in paths[:1]]
    assert any(one.any() for one in never)  # a lane that has read nothing else so far


@pytest.mark.parametrize("hook", ["after put", "in backward"])
def test_a_step_that_fails_after_put_is_trained_again(hook, tmp_path, monkeypatch):
    whole = fit(lanes_of(), model=Carrying(), max_epochs=1).model
    model = Carrying(fail_at=(0, 5) if hook == "after put" else None)
    if hook == "in backward":

        def backward(loss):
            if model.did.losses[-1][:2] == (0, 5):
                raise OSError("told to fail")
            loss.backward()

        model.backward = backward
    run = fit(lanes_of(), model=model, folder=tmp_path, every=100, max_epochs=1)
    assert run.error is not None
    (path,) = saved_in(tmp_path)
    assert state_of(path)["position"] == 5
    again = fit(lanes_of(), model=Carrying(), ckpt=path, max_epochs=1).model
    assert again.did.losses == whole.did.losses[5:]


@pytest.mark.parametrize("accumulate", [1, 2, 4])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_e11_losses_are_those_of_a_loop_by_hand(accumulate, clip):
    trainer = {"accumulate_grad_batches": accumulate, "gradient_clip_val": clip}
    found = fit(lanes_of(9), model=Carrying(), max_epochs=2, **trainer).model
    model = Carrying()
    optimizer = model.configure_optimizers()
    loader = Loader(series(9), TBPTT(4, 8), fields=("x",), shift=1, seed=3, accumulate=accumulate)
    losses = []
    for _ in range(2):
        for batch in loader:
            errors = model.errors(batch)
            losses.append((batch.epoch, batch.number, float(errors.detach().sum())))
            (errors.sum() * batch.loss_scale).backward()
            if (batch.number + 1) % accumulate == 0 or batch.number + 1 == len(loader):
                if clip is not None:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
    assert [one[:2] for one in found.did.losses] == [one[:2] for one in losses]
    difference = [a[2] - b[2] for a, b in zip(found.did.losses, losses, strict=True)]
    assert max(map(abs, difference)) <= 1e-12


@pytest.mark.slow
def test_e13_sanity_check_and_validation_leave_the_training_states_alone():
    plain = fit(lanes_of(), model=Carrying(), max_epochs=2, limit_val_batches=0).model
    for trainer in ({"val_check_interval": 2, "num_sanity_val_steps": 3}, {}):
        given = {"one": series(3, 1), "two": series(9, 2)}
        model = fit(lanes_of(val=given), model=Carrying(), max_epochs=2, **trainer).model
        assert model.did.losses == plain.did.losses
        assert model.did.val
        names = set(model.lanes.state_dict()["tables"])
        assert names == {"train", "val/one", "val/two"}


def test_e13_a_validation_is_the_same_wherever_it_falls():
    data = {"val": series(9, 2)}
    trainer = {"max_epochs": 1, "limit_train_batches": 12, "val_check_interval": 4}
    often = fit(lanes_of(**data), model=Carrying(), **trainer).model
    last = often.did.val[-len(often.did.val) // 3 :]
    with torch.no_grad():
        states = Loader(series(9, 2), TBPTT(4, 8, shuffle=False), fields=("x",), shift=1)
        alone = Carrying()
        alone.load_state_dict(often.state_dict())
        wanted = [float(alone.errors(batch).sum()) for batch in states]
    assert [value for _, _, value in last] == wanted


def test_a_loader_says_its_name():
    data = lanes_of(val={"one": series(3, 1), "two": series(3, 2)})
    names = {}

    class Told(Carrying):
        def training_step(self, batch, batch_idx):
            names["train"] = batch.loader
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            names[dataloader_idx] = batch.loader

    fit(data, model=Told(), max_epochs=1)
    assert names == {"train": "train", 0: "val/one", 1: "val/two"}
    assert data.replay(epoch=0, batch=1).loader == "train"


def test_what_a_checkpoint_holds_of_lanes_is_by_lane_and_the_rest_is_small(tmp_path):
    fit(lanes_of(), model=Carrying(), folder=tmp_path, every=3, max_epochs=1)
    state = state_of(saved_in(tmp_path)[0])
    lanes = state.pop(LANES_KEY)
    assert list(lanes) == ["lanes"]
    table = lanes["lanes"]
    assert table["lanes"].tolist() == [0, 1, 2, 3]
    assert [tuple(one.shape) for one in table["state"]] == [(1, 4, 4), (1, 4, 4)]
    assert (table["epoch"], table["number"]) == (0, 2)
    assert len(str(state)) < 1000
    assert all(isinstance(value, int | str) for value in state.values())


def test_lanes_of_ranks_that_stand_at_different_places_are_not_mixed(monkeypatch):
    together, places = RankCoordinator(), [(0, 5), (0, 6)]
    monkeypatch.setattr(together, "_all_gather", lambda mine, ranks: [(one, 0) for one in places])
    with pytest.raises(
        PeerFailedError,
        match=(
            r"ranks: all must be at the same \(epoch, position\), but are at \[\(0, 5\), \(0, "
            r"6\)\]"
        ),
    ):
        together.all_gather(0, 2, (0, 5))


def test_between_epochs_a_checkpoint_holds_no_lanes(tmp_path):
    fit(lanes_of(), model=Carrying(), folder=tmp_path, max_epochs=1)
    assert LANES_KEY not in state_of(saved_in(tmp_path)[0])


KEYS = {
    "list": ["lanes[0]", "lanes[1]"],
    "dict": ["lanes['lower']", "lanes[1]"],
    "tuple": ["lanes[0][1]", "lanes[1][1]"],
    "table": ["lanes:train/0", "lanes:train/1"],
}


@pytest.mark.parametrize("kept", list(KEYS))
def test_states_of_several_layers_are_saved_however_they_are_kept(kept, tmp_path):
    def fit_stacked(**options):
        options = {"max_epochs": 2, "val_check_interval": 2, **options}
        return fit(lanes_of(9), model=Stacked(kept), **options).model

    whole = fit_stacked(folder=tmp_path, every=2)
    for path in saved_in(tmp_path)[:3:2]:
        assert list(state_of(path)[LANES_KEY]) == KEYS[kept]
        again = fit_stacked(ckpt=path)
        assert 0 < len(again.did.losses) < len(whole.did.losses)
        assert again.did.losses == whole.did.losses[-len(again.did.losses) :]
        assert again.parameters_of() == whole.parameters_of()


def test_tables_of_a_name_are_told_and_forgiven_where_they_are_lost(tmp_path):
    class Forgetful(Stacked):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) if batch.number < 4 else None

    warnings.filterwarnings("ignore", message="`training_step` returned `None`")
    with pytest.warns(SeqDataWarning, match="has no lane states: the last `put` was for another"):
        fit(lanes_of(), model=Forgetful("table"), folder=tmp_path, every=6, max_steps=7)
    path = saved_in(tmp_path)[0]
    with pytest.warns(SeqDataWarning, match="resume: the checkpoint has no lane states"):
        again = fit(lanes_of(), model=Stacked("table"), ckpt=path, max_epochs=1).model
    assert again.did.losses[0][:2] == (0, state_of(path)["position"])


def test_a_table_of_an_epoch_that_has_ended_is_not_in_use(tmp_path):
    class ByEpoch(Stacked):
        def layers(self, loader):
            return [(self.lanes, f"{self.current_epoch}/{layer}") for layer in range(2)]

    options = {"max_epochs": 2, "limit_val_batches": 0}
    fit(lanes_of(), model=ByEpoch("table"), folder=tmp_path, every=5, **options)
    second = next(path for path in saved_in(tmp_path) if state_of(path)["epoch"])
    assert list(state_of(second)[LANES_KEY]) == ["lanes:1/0", "lanes:1/1"]


def test_a_table_that_is_put_back_to_no_longer_is_not_in_use(tmp_path):
    class Warming(Carrying):
        def training_step(self, batch, batch_idx):
            if batch.number < 3:
                self.lanes.put(batch, torch.zeros(1, len(batch), 1), table="first")
            return super().training_step(batch, batch_idx)

    whole = fit(lanes_of(), model=Warming(), folder=tmp_path, every=5, max_epochs=1).model
    path = saved_in(tmp_path)[0]
    assert list(state_of(path)[LANES_KEY]) == ["lanes"]
    again = fit(lanes_of(), model=Warming(), ckpt=path, max_epochs=1).model
    assert again.did.losses == whole.did.losses[5:]


def test_lane_states_that_training_does_not_use_are_left_out(tmp_path):
    class Two(Carrying):
        def __init__(self):
            super().__init__()
            self.spare = LaneStates()

    fit(lanes_of(), model=Two(), folder=tmp_path, every=3, max_epochs=1)
    assert list(state_of(saved_in(tmp_path)[0])[LANES_KEY]) == ["lanes"]


def test_a_step_that_puts_nothing_back_is_told_of_where_states_are_saved(tmp_path):
    class Forgetful(Carrying):
        def training_step(self, batch, batch_idx):
            if batch.number < 4:
                return super().training_step(batch, batch_idx)
            return None

    text = "has no lane states: the last `put` was for another batch; call `put`"
    warnings.filterwarnings("ignore", message="`training_step` returned `None`")
    with pytest.warns(SeqDataWarning, match=text):
        fit(lanes_of(), model=Forgetful(), folder=tmp_path, every=6, max_steps=7)
    path = saved_in(tmp_path)[0]
    assert "`put` once" in state_of(path)[LANES_KEY]
    with pytest.warns(
        SeqDataWarning, match="resume: the checkpoint has no lane states: the last `put` was"
    ):
        again = fit(lanes_of(), model=Carrying(), ckpt=path, max_epochs=1).model
    assert again.did.losses[0][:2] == (0, state_of(path)["position"])


def test_a_checkpoint_of_before_lane_states_is_refused_in_mid_epoch(tmp_path):
    fit(lanes_of(), model=Carrying(), folder=tmp_path, every=3, max_epochs=1)
    path = saved_in(tmp_path)[0]
    whole = torch.load(path, weights_only=True)
    del whole["SequenceDataModule"][LANES_KEY]
    torch.save(whole, path)
    with pytest.raises(ResumeError, match="lanes: table 'train' has no state, but batch 3 of"):
        fit(lanes_of(), model=Carrying(), ckpt=path, max_epochs=1)


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.slow
def test_the_four_lines_of_a_users_module_train_on_sequences_of_tokens(tmp_path, monkeypatch):
    import lightning as L
    import torch.nn.functional as F

    from seqdata import TBPTT, LaneStates, SequenceDataModule, write_store
    from tests.lightning.harness import QUIET

    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    lengths = draw.integers(2, 900, 80)
    write_store("recordings/", ({"tokens": draw.integers(0, 60, n, "u1")} for n in lengths))

    class Embedded(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(60, 4)
            self.lstm = torch.nn.LSTM(4, 8, batch_first=True)

        def forward(self, tokens, state):
            return self.lstm(self.embedding(tokens.long()), state)

    class Mine(L.LightningModule):
        def __init__(self, lstm):
            super().__init__()
            self.lstm = lstm
            self.head = torch.nn.Linear(8, 60)
            self.lanes = LaneStates()
            self.scored = 0

        def training_step(self, batch, _):
            state = self.lanes.take(batch)
            out, state = self.lanes.run(self.lstm, batch, "tokens", state)
            self.lanes.put(batch, state)
            logits = self.head(out).flatten(0, 1)
            nll = F.cross_entropy(logits, batch["targets"].flatten().long(), reduction="none")
            self.scored += int(batch.score.sum())
            return (nll.view_as(batch.score) * batch.score).sum() * batch.loss_scale

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    for lstm in (Embedded(), torch.nn.LSTM(1, 8, batch_first=True)):
        model = Mine(lstm)
        data = SequenceDataModule(train="recordings/", batching=TBPTT(lanes=64, chunk=256), shift=1)
        L.Trainer(**QUIET, max_epochs=1, enable_checkpointing=False).fit(model, datamodule=data)
        assert model.scored == (lengths - 1).sum()
