"""Share of an LSTM's training step that Lightning's Trainer waits for the next batch."""

from __future__ import annotations

import logging
import statistics
import time
import warnings
from typing import Any

from peers.asking import Ask, let_torchvision_load
from samples import FRAME

from bench_set.rows import OURS, Aim, Answer, Bench
from bench_set.server import LeftOut, Room, Server

ACTION = "[_TrainingEpochLoop].train_dataloader_next"
STEP = "run_training_batch"
SKIPPED = 10  # steps at the beginning
LONGEST = 64  # timesteps of a row that are trained on: a step of a few milliseconds
MOST = {"S": 1.0, "M": 2.0}  # percent
TITLES = {"S": "short tokens", "M": "frames"}
LIMIT = 100.0  # seconds


def make_model(name: str) -> Any:
    """Return an LSTM(32) over embedded tokens or frames."""
    import lightning
    import torch
    from torch import nn

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(50_000, 16, sparse=True) if name == "S" else None
            self.lstm = nn.LSTM(16 if name == "S" else FRAME, 32, batch_first=True)

        def training_step(self, batch: Any, _: int) -> Any:
            values = batch[0][:, :LONGEST]
            out, _ = self.lstm(values if self.embedding is None else self.embedding(values))
            return out.square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Model()


def train(room: Room, ask: Ask, steps: int) -> tuple[float, float]:
    """Train; return the mean seconds that a step waited, and took with its wait."""
    let_torchvision_load()
    import lightning
    from lightning.pytorch.profilers import SimpleProfiler

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    profiler, reading = SimpleProfiler(), room.peer.read(ask)
    trainer = lightning.Trainer(
        max_steps=steps, max_epochs=-1, accelerator="cpu", devices=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        profiler=profiler, use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit(make_model(ask.name), reading.loader)
    reading.close()
    waited = profiler.recorded_durations[ACTION][SKIPPED:]
    trained = profiler.recorded_durations[STEP][SKIPPED:]
    wait = statistics.fmean(waited)
    return wait, wait + statistics.fmean(trained)


def measure(bench: Bench) -> Answer:
    """Train with each loader in turn; what would begin after LIMIT is left out."""
    answer, began = Answer("% of a step"), time.monotonic()
    for number in range(1 if bench.quick else min(bench.rounds, 3)):
        for module, server in bench.servers.items():
            bench.say(f"Trainer, round {number + 1}: {server.peer.title}")
            for name in MOST:
                if module not in bench.prepare(name):
                    continue
                if time.monotonic() - began < LIMIT:
                    _train_once(bench, answer, name, module, server)
                elif not number:
                    answer.left_out[f"{server.peer.title}: {TITLES[name]}"] = "no time was left"
    for name, most in MOST.items():
        mine = answer.find(TITLES[name], OURS)
        if mine is not None:
            text = f"{TITLES[name]}: wait at most {most:g} % of a step, with defaults"
            answer.aims.append(Aim(text, f"{mine:.2f} %", mine <= most))
    return answer


def _train_once(bench: Bench, answer: Answer, name: str, module: str, server: Server) -> None:
    order = "bucketed" if "bucketed" in server.peer.orders else "random"
    key = f"{server.peer.title}: {TITLES[name]}"
    if key in answer.left_out:
        return
    try:
        ask = bench.ask_for(name, module, order=order)
        wait, step = server.ask(train, ask, 60 if bench.quick else 150)
    except LeftOut as error:
        answer.left_out[key] = str(error)
        return
    row = answer.row(TITLES[name], server.peer.title)
    row.values.append(100 * wait / step)
    row.note = f"{order}; {wait * 1e6:,.0f} of {step * 1e6:,.0f} µs"
