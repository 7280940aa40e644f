"""Training over lanes under the Trainer is what a plain loop over columns of the stream does."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from seqdata_models import StatefulLM, StatefulTagger
from torch import Tensor, nn

from seqdata import TBPTT, ConfigError, LaneStates, Loader, RescaleLearningRate, SequenceDataModule

TOKENS, LANES, CHUNK = 11, 4, 8
RANDOM = np.random.default_rng(0)
TEXT = RANDOM.integers(0, TOKENS, LANES * CHUNK * 7 + 1)  # 7 whole chunks of each lane
VAL = RANDOM.integers(0, TOKENS, 200)


class Recording(StatefulLM):
    """A StatefulLM that keeps its losses, as they were before the Trainer divides them."""

    losses: list[Tensor]

    def training_step(self, batch):
        loss = super().training_step(batch)
        self.losses.append(loss.detach().clone())
        return loss


def model_of(**options: Any) -> Recording:
    torch.manual_seed(0)
    model = Recording(TOKENS, 6, 10, 2, **options)
    model.losses = []
    return model


def data_of(text: np.ndarray = TEXT, **options: Any) -> SequenceDataModule:
    return SequenceDataModule(
        train=[text],
        val=[VAL],
        batching=TBPTT(LANES, CHUNK, continuous=True),
        eval_batching=TBPTT(1, 50, continuous=True),
        shift=1,
        **options,
    )


def plain_loop(
    steps: int, *, epochs: int = 2, accumulate: int = 1, clip: float | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """Train as one would by hand: columns, states detached, the mean over each update's tokens."""
    model = model_of()
    optimizer = torch.optim.Adam(model.parameters(), 4e-3)
    inputs = torch.as_tensor(TEXT[:-1]).view(LANES, -1)
    targets = torch.as_tensor(TEXT[1:]).view(LANES, -1)
    losses = []
    for _ in range(epochs):
        state: Any = None
        for step in range(steps):
            here = slice(step * CHUNK, (step + 1) * CHUNK)
            out, state = model.rnn(model.embedding(inputs[:, here]), state)
            state = tuple(one.detach() for one in state)
            logits = model.head(out).flatten(0, 1)
            nll = F.cross_entropy(logits, targets[:, here].flatten(), reduction="none")
            first = step - step % accumulate
            tokens = LANES * CHUNK * (min(first + accumulate, steps) - first)
            loss = nll.view(LANES, CHUNK).sum() * (accumulate / tokens)
            losses.append(loss.detach())
            if step == first:
                optimizer.zero_grad()
            (loss / accumulate).backward()
            if step + 1 in (first + accumulate, steps):
                if clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
    return losses, list(model.parameters())


@pytest.mark.parametrize(
    ("trainer", "loop", "data"),
    [
        ({}, {}, {}),
        ({"accumulate_grad_batches": 3}, {"accumulate": 3}, {}),
        ({"gradient_clip_val": 0.05}, {"clip": 0.05}, {}),
        ({"val_check_interval": 3, "num_sanity_val_steps": 2}, {}, {}),
        ({"limit_train_batches": 5}, {"steps": 5}, {}),
        ({"max_epochs": 3, "precision": "32-true"}, {"epochs": 3}, {}),
        ({}, {}, {"num_workers": 2, "start_method": "fork"}),
        (
            {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1, "val_check_interval": 2,
             "limit_train_batches": 5},
            {"accumulate": 2, "clip": 0.1, "steps": 5},
            {},
        ),
    ],
    ids=["plain", "accumulation", "clipping", "mid-epoch validation", "limit", "epochs", "workers",
         "together"],
)  # fmt: skip
def test_a_fit_is_bitwise_the_plain_loop(trainer, loop, data, trainer_of):
    losses, parameters = plain_loop(**{"steps": 7, **loop})
    model = model_of()
    trainer_of(**{"max_epochs": 2, **trainer}).fit(model, data_of(**data))
    assert len(model.losses) == len(losses)
    for found, expected in zip(model.losses, losses, strict=True):
        assert torch.equal(found, expected)
    for found, expected in zip(model.parameters(), parameters, strict=True):
        assert torch.equal(found, expected)


def test_without_the_carried_state_it_would_be_another_run(trainer_of):
    class Forgetting(Recording):
        def forward(self, batch):
            self.lanes = LaneStates()
            batch.number, batch.start = 0, torch.zeros_like(batch.start)
            return super().forward(batch)

    losses, _ = plain_loop(7)
    torch.manual_seed(0)
    model = Forgetting(TOKENS, 6, 10, 2)
    model.losses = []
    trainer_of(max_epochs=1).fit(model, data_of())
    assert torch.equal(model.losses[0], losses[0])
    assert not torch.equal(model.losses[1], losses[1])


@pytest.mark.filterwarnings("ignore:.*callbacks used to create the checkpoint")
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.slow
def test_a_run_goes_on_from_every_checkpoint_with_the_losses_of_the_whole(
    tmp_path, trainer_of, accumulate
):
    options = {"max_epochs": 2, "accumulate_grad_batches": accumulate, "val_check_interval": 4}
    saving = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
    whole = model_of(dropout=0.0, cosine=True)
    trainer = trainer_of(callbacks=saving, enable_checkpointing=True, **options)
    trainer.fit(whole, data_of())
    updates = trainer.global_step
    places = range(1, updates) if accumulate == 2 else (1, 3, 7, 12)
    for update in places:
        resumed = model_of(dropout=0.0, cosine=True)
        trainer_of(**options).fit(resumed, data_of(), ckpt_path=tmp_path / f"step={update}.ckpt")
        assert resumed.losses
        rest = whole.losses[-len(resumed.losses) :]
        assert all(map(torch.equal, resumed.losses, rest))
        per_epoch = -(-7 // accumulate)
        done = update // per_epoch * 7 + update % per_epoch * accumulate
        assert len(resumed.losses) == len(whole.losses) - done
        for one, other in zip(resumed.parameters(), whole.parameters(), strict=True):
            assert torch.equal(one, other)


def test_with_jitter_it_is_the_plain_loop_over_the_drawn_chunks_and_rescaled_rates(trainer_of):
    policy = TBPTT(LANES, 16, continuous=True, jitter=True)
    data = SequenceDataModule(train=[TEXT], val=[VAL], batching=policy, shift=1, seed=3)
    model = model_of()
    trainer_of(max_epochs=2, callbacks=[RescaleLearningRate()]).fit(model, data)

    plain = model_of()
    optimizer = torch.optim.Adam(plain.parameters(), 4e-3)
    inputs = torch.as_tensor(TEXT[:-1]).view(LANES, -1)
    targets = torch.as_tensor(TEXT[1:]).view(LANES, -1)
    losses, lengths, loader = [], [], Loader([TEXT], policy, shift=1, seed=3)
    for _ in range(2):
        state, begin = None, 0
        for batch in loader:
            (length,) = set(batch.lengths.tolist())
            here = slice(begin, begin + length)
            out, state = plain.rnn(plain.embedding(inputs[:, here]), state)
            state, begin = tuple(one.detach() for one in state), begin + length
            logits = plain.head(out).flatten(0, 1)
            nll = F.cross_entropy(logits, targets[:, here].flatten(), reduction="none")
            loss = nll.view(LANES, length).sum() * (1 / (LANES * length))
            optimizer.zero_grad()
            loss.backward()
            (group,) = optimizer.param_groups
            group["lr"] = 4e-3 * (length / 16)
            optimizer.step()
            losses.append(loss.detach())
            lengths.append(length)
        assert begin == inputs.shape[1]
    assert len(set(lengths)) > 1
    assert len(losses) == len(model.losses)
    for found, expected in zip(model.losses, losses, strict=True):
        assert torch.equal(found, expected)


MIXED = [
    pytest.param(
        "bf16-mixed",
        "cpu",
        marks=pytest.mark.skipif(
            not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
            reason="PyTorch's LSTM takes no bfloat16 under autocast on this processor",
        ),
    ),
    *(
        pytest.param(
            precision,
            "cuda",
            marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
        )
        for precision in ("bf16-mixed", "16-mixed")
    ),
]


@pytest.mark.parametrize(("precision", "device"), MIXED)
def test_under_mixed_precision_states_are_float32_and_losses_are_near(
    precision, device, trainer_of
):
    exact, _ = plain_loop(7)
    model = model_of()
    trainer = trainer_of(max_epochs=2, precision=precision, accelerator=device)
    trainer.fit(model, data_of())
    table = model.lanes.state_dict()["tables"]["train"]
    assert {one.dtype for one in table["state"]} == {torch.float32}
    for found, expected in zip(model.losses, exact, strict=True):
        assert float(found) == pytest.approx(float(expected), rel=5e-3)


def test_validation_and_test_report_exact_figures_and_leave_training_alone(trainer_of):
    model = model_of().double()
    data = data_of()
    trainer = trainer_of(precision="64-true")
    (found,) = trainer.validate(model, data, verbose=False)
    tokens = torch.as_tensor(VAL)[None]
    with torch.no_grad():
        out, _ = model.rnn(model.embedding(tokens[:, :-1]))
        nats = float(F.cross_entropy(model.head(out)[0], tokens[0, 1:]))
    assert found["val_loss"] == pytest.approx(nats, abs=1e-12)
    assert found["val_perplexity"] == pytest.approx(np.exp(nats), abs=1e-9)
    assert found["val_bits_per_token"] == pytest.approx(nats / np.log(2), abs=1e-12)
    tested = SequenceDataModule(test=[VAL], eval_batching=TBPTT(1, 7, continuous=True), shift=1)
    (found,) = trainer.test(model, tested, verbose=False)
    assert found["test_loss"] == pytest.approx(nats, abs=1e-12)
    assert found["test_perplexity"] == pytest.approx(np.exp(nats), abs=1e-9)


def test_a_model_that_was_validated_before_trains_and_validates_as_one_that_was_not(trainer_of):
    found = []
    for validates in (False, True):
        model, data = model_of(), data_of()
        if validates:
            trainer_of().validate(model, data, verbose=False)
        trainer = trainer_of(max_epochs=1)
        trainer.fit(model, data)
        found.append(float(trainer.callback_metrics["val_loss"]))
    assert found[0] == found[1]


def test_tied_weights_are_one_parameter_and_are_trained(trainer_of):
    torch.manual_seed(0)
    model = StatefulLM(TOKENS, None, 10)
    assert model.head.weight is model.embedding.weight
    before = model.head.weight.detach().clone()
    trainer_of(max_epochs=1).fit(model, data_of())
    assert model.head.weight is model.embedding.weight
    assert not torch.equal(model.head.weight, before)


def test_cosine_falls_to_nothing_over_the_whole_fit(trainer_of):
    model = model_of(cosine=True, learning_rate=0.5)
    trainer = trainer_of(max_epochs=2)
    trainer.fit(model, data_of())
    (group,) = trainer.optimizers[0].param_groups
    assert group["lr"] == pytest.approx(0.0, abs=1e-9)


def test_without_an_end_in_sight_the_learning_rate_stays(trainer_of):
    model = model_of(cosine=True)
    model.trainer = trainer_of(max_epochs=-1)
    assert isinstance(model.configure_optimizers(), torch.optim.Adam)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: StatefulLM(5, cell="rnn"),
            "language model: `cell` must be 'lstm' or 'gru', but is 'rnn'",
        ),
        (
            lambda: StatefulTagger(1, 2, cell=3),
            "stateful tagger: `cell` must be 'lstm' or 'gru', but is 3",
        ),
    ],
)
def test_an_unknown_cell_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


class Saving:
    """Counts what is held for backward passes, in bytes, and lets one look whether it still is."""

    def __init__(self) -> None:
        self.held = self.peak = 0
        self.kept: list[weakref.ref[Any]] = []

    def hooks(self) -> Any:
        return torch.autograd.graph.saved_tensors_hooks(self.keep, lambda kept: kept.tensor)

    def keep(self, tensor: Tensor) -> Any:
        kept = Kept(tensor, self)
        self.held += tensor.nbytes
        self.peak = max(self.peak, self.held)
        self.kept.append(weakref.ref(kept))
        return kept


class Kept:
    def __init__(self, tensor: Tensor, saving: Saving) -> None:
        self.tensor, self.saving = tensor, saving

    def __del__(self) -> None:
        self.saving.held -= self.tensor.nbytes


def zeros(length: int) -> list[dict[str, np.ndarray]]:
    return [{"x": np.zeros((length, 3), np.float32), "y": np.zeros(length, np.int64)}]


def test_activations_are_those_of_a_chunk_however_long_the_sequence():
    peaks = []
    for length in (1_000, 10_000):
        model, saving = StatefulTagger(3, 2, hidden=4), Saving()
        for batch in Loader(zeros(length), TBPTT(1, 500)):
            with saving.hooks():
                loss = model(batch).sum()
            loss.backward()
        peaks.append(saving.peak)
    assert peaks[0] > 500 * 4 * 4  # a hidden state of float32 for each timestep of a chunk
    assert abs(peaks[1] - peaks[0]) <= 0.1 * peaks[0]


def test_the_graph_of_a_chunk_is_gone_once_it_has_been_trained_and_the_state_has_none():
    model, saving = StatefulTagger(3, 2, hidden=4), Saving()
    batches = list(Loader(zeros(40), TBPTT(1, 10)))
    for batch, following in itertools.pairwise(batches):
        with saving.hooks():
            loss = model(batch).sum()
        assert any(one() for one in saving.kept)
        loss.backward()
        del loss
        assert not any(one() for one in saving.kept)
        hidden, cell = model.lanes.take(following)
        assert hidden.grad_fn is None is cell.grad_fn
        assert not hidden.requires_grad


# The label of a timestep is the last mark so far, and one timestep of ten has a mark. A
# chunk of 6 alone knows the label at three of ten timesteps, and is right at half of the others.


def marked(count: int, seed: int) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(seed)
    rows = []
    for length in random.integers(60, 120, count):
        marks = random.choice(3, length, p=[0.9, 0.05, 0.05])
        marks[0] = random.integers(1, 3)
        last = np.maximum.accumulate(np.where(marks > 0, np.arange(length), 0))
        rows.append({"x": np.eye(3, dtype=np.float32)[marks], "y": marks[last] - 1})
    return rows


def accuracy_of(model: StatefulTagger, trainer_of: Any, **options: bool) -> float:
    data = SequenceDataModule(
        train=marked(50, 0), val=marked(20, 1), batching=TBPTT(8, 6, **options), seed=0
    )
    trainer = trainer_of(max_epochs=3)
    trainer.fit(model, data)
    return float(trainer.callback_metrics["val_accuracy"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, pytest.param({"segments": True}, marks=pytest.mark.nightly)], ids=str
)
def test_a_tagger_remembers_what_was_said_many_chunks_ago(options, trainer_of):
    torch.manual_seed(0)
    model = StatefulTagger(3, 2, hidden=8, learning_rate=0.03)
    assert accuracy_of(model, trainer_of, **options) >= 0.99


@pytest.mark.slow
def test_a_tagger_that_begins_each_chunk_with_zeros_does_not(trainer_of):
    class Forgetting(StatefulTagger):
        def forward(self, batch):
            out, _ = self.rnn(batch["x"])
            return self.head(out)

    torch.manual_seed(0)
    assert accuracy_of(Forgetting(3, 2, hidden=8, learning_rate=0.03), trainer_of) <= 0.75
