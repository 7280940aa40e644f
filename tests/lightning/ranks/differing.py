"""What two ranks may be given of their own: each argument, for both.

``DATA`` and ``TRAINER`` are refused before the first step, by the name that is given with them.
What is in ``DATA_FREE`` or ``TRAINER_FREE`` may differ: the ranks train the same.
"""

import functools
from typing import Any

import numpy as np
from lightning.pytorch.callbacks import (
    EarlyStopping,
    GradientAccumulationScheduler,
    ModelCheckpoint,
)
from lightning.pytorch.strategies import DDPStrategy
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

from seqdata.lightning.callbacks.consistency import RankConsistency
from seqdata.lightning.callbacks.data_monitor import DataMonitor
from seqdata.lightning.callbacks.feedback import Feedback
from seqdata.lightning.callbacks.memory_monitor import RankMemoryMonitor
from seqdata.lightning.predictions.writer import PredictionWriter
from seqdata.loading.loader import Loader
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.weighted import Weighted
from tests.lightning.harness import sequences

UNSET: Any = object()
ROWS = sequences(23)
ANY, WEIGHTED = Bucketed(4), Weighted(Bucketed(4))


class Items:
    """A torch Dataset."""

    def __len__(self):
        return 8

    def __getitem__(self, number):
        return {"x": np.zeros((3, 1))}


def add(sequence, rng, by):
    """Add a number to the values."""
    return {**sequence, "x": sequence["x"] + by}


def add_one(sequence, rng):
    return {**sequence, "x": sequence["x"] + 1}


class Adding:
    def __init__(self, by):
        self.by = by

    def __call__(self, sequence, rng):
        return add(sequence, rng, self.by)


def collate(samples):
    return samples


def collate_other(samples):
    return samples[::-1]


def as_pair(batch):
    return batch["x"], batch.weight


def as_triple(batch):
    return batch["x"], batch.lengths, batch.weight


def closure(by):
    return lambda sequence, rng: add(sequence, rng, by)


DATA: dict[str, list[tuple[Any, Any, str]]] = {
    "train": [(ROWS, ROWS[:20], "data of train 0")],
    "val": [(ROWS[:5], ROWS[:6], "data of val 0"), (UNSET, ROWS[:5], "data of val 0"),
            ({"a": ROWS[:5]}, {"b": ROWS[:5]}, "names of val")],
    "test": [(ROWS[:5], ROWS[:6], "data of test 0")],
    "predict": [(ROWS[:5], ROWS[:6], "data of predict 0")],
    "batching": [(Bucketed(4), Bucketed(3), "policy of train 0"),
                 (Fixed(4), Fixed(4, shuffle=False), "policy of train 0")],
    "eval_batching": [(Fixed(4, shuffle=False), Fixed(3, shuffle=False), "policy of val 0")],
    "batches_per_update": [(2, 4, "batches_per_update"), (UNSET, 4, "batches_per_update")],
    "lengths": [([3] * 8, [3] * 7 + [2], "data of train 0")],
    "fields": [(("x",), UNSET, "fields")],
    "as_tuple": [(("x", "weight"), UNSET, "as_tuple")],
    "as_dict": [(("x", "weight"), UNSET, "as_dict")],
    "transform": [
        (add_one, UNSET, "transform"),
        (closure(1), closure(2), "transform.by"),
        (Adding(1), Adding(2), "transform.by"),
        (functools.partial(add, by=1), functools.partial(add, by=2), "transform.by"),
        (lambda s, r: {"x": s["x"] + 1}, lambda s, r: {"x": s["x"] + 2}, "transform"),
    ],
    "eval_transform": [(Adding(1), Adding(2), "eval_transform.by")],
    "dtype": [("float32", UNSET, "dtype"), ({"x": "float32"}, {"x": "float64"}, "dtype")],
    "check_values": [(True, False, "check_values")],
    "collator": [("varlen", UNSET, "collator"), (collate, collate_other, "collator")],
    "collate_fn": [(collate, collate_other, "collator")],
    "as_batch": [(as_pair, UNSET, "as_batch"), (as_pair, as_triple, "as_batch")],
    "padding": [(0, 1, "padding"), ({"x": 0}, {"x": 1}, "padding")],
    "sort_within_batch": [(False, True, "sort_within_batch")],
    "shift": [(0, 1, "shift")],
    "tail": [("fill", "drop", "tail")],
    "on_error": [("raise", "mask", "on_error")],
    "max_errors": [(10, 11, "max_errors")],
    "on_changed": [("error", "next_epoch", "on_changed")],
    "seed": [(1, 2, "seed of train 0")],
}  # fmt: skip
LOADER: dict[str, list[tuple[Any, Any, str]]] = {
    "store": [(ROWS, ROWS[:20], "data")],
    "batching": [(Bucketed(4), Bucketed(3), "policy"), (Bucketed(4), Fixed(4), "policy")],
    "seed": [(1, 2, "seed")],
    "accumulate": [(1, 2, "accumulate")],
    "epoch": [(0, 1, "epoch")],
    **{
        name: [case for case in DATA[name] if case[0] is not UNSET]
        for name in (
            "fields", "as_tuple", "as_dict", "transform", "dtype", "check_values", "collator",
            "shift", "tail", "on_error", "max_errors", "collate_fn", "as_batch", "padding",
            "sort_within_batch",
        )
    },
    "lengths": [([3] * 8, [3] * 7 + [2], "data")],
}  # fmt: skip
DATA_FREE: dict[str, tuple[Any, Any]] = {
    "num_workers": (0, 1), "prefetch": (0, 3), "start_method": ("fork", "spawn"),
    "stall_timeout": (60.0, 120.0), "pin_memory": (None, False),
    "persistent_workers": (False, True),
}  # fmt: skip
LOADER_FREE: dict[str, tuple[Any, Any]] = {
    "error_log": (None, "errors.jsonl"), "name": ("", "other"),
    "world": (UNSET, UNSET),  # the rank itself
    **DATA_FREE, "pin_memory": (False, UNSET),
}  # fmt: skip

TRAINER: dict[str, list[tuple[Any, Any, str]]] = {
    "fast_dev_run": [(1, 2, "fast_dev_run")],
    "max_epochs": [(1, 2, "max_epochs")],
    "min_epochs": [(1, 2, "min_epochs")],
    "max_steps": [(5, 6, "max_steps")],
    "min_steps": [(1, 2, "min_steps")],
    "max_time": [("00:00:01:00", "00:00:02:00", "max_time"), (UNSET, "00:00:02:00", "max_time")],
    "limit_train_batches": [(4, 5, "limit_train_batches"), (4, 0.5, "limit_train_batches")],
    "limit_val_batches": [
        (1, 2, "limit_val_batches"), (0, 1, "limit_val_batches"), (1, 1.0, "limit_val_batches"),
    ],
    "limit_test_batches": [(1, 2, "limit_test_batches")],
    "limit_predict_batches": [(1, 2, "limit_predict_batches")],
    "overfit_batches": [(1, 2, "overfit_batches")],
    "val_check_interval": [(2, 3, "val_check_interval"), (2, "00:00:01:00", "val_check_interval")],
    "check_val_every_n_epoch": [(1, 2, "check_val_every_n_epoch")],
    "num_sanity_val_steps": [(0, 1, "num_sanity_val_steps")],
    "log_every_n_steps": [(1, 2, "log_every_n_steps")],
    "enable_checkpointing": [(True, False, "callback ModelCheckpoint")],
    "accumulate_grad_batches": [(1, 2, "accumulate_grad_batches")],
    "gradient_clip_val": [(0.5, 1.0, "gradient_clip_val"), (UNSET, 1.0, "gradient_clip_val")],
    "gradient_clip_algorithm": [("norm", "value", "gradient_clip_algorithm")],
    "barebones": [(True, False, "barebones")],
    "reload_dataloaders_every_n_epochs": [(0, 1, "reload_dataloaders_every_n_epochs")],
    "precision": [("32-true", "64-true", "precision")],
    "sync_batchnorm": [(True, False, "sync_batchnorm")],
    "strategy": [
        (DDPStrategy, lambda: DDPStrategy(static_graph=True), "static_graph of the strategy"),
        (
            DDPStrategy, lambda: DDPStrategy(ddp_comm_hook=fp16_compress_hook),
            "ddp_comm_hook of the strategy",
        ),
    ],
    "callbacks": [
        (list, lambda: [DataMonitor()], "callback DataMonitor"),
        (list, lambda: [RankConsistency()], "callback RankConsistency"),
        (list, lambda: [RankMemoryMonitor()], "callback RankMemoryMonitor"),
        (list, lambda: [EarlyStopping("loss")], "callback EarlyStopping"),
        (list, lambda: [PredictionWriter("out")], "callback PredictionWriter"),
        (lambda: [DataMonitor()], lambda: [DataMonitor(), DataMonitor()], "callback DataMonitor 2"),
        (lambda: [RankConsistency(2)], lambda: [RankConsistency(3)], "every_n_steps of callback"),
        (
            lambda: [ModelCheckpoint(every_n_train_steps=2)],
            lambda: [ModelCheckpoint(every_n_train_steps=3)],
            "every_n_train_steps of callback ModelCheckpoint",
        ),
        (
            lambda: [GradientAccumulationScheduler({0: 2})],
            lambda: [GradientAccumulationScheduler({0: 1, 1: 2})],
            "scheduling of callback GradientAccumulationScheduler",
        ),
        (
            lambda: [Feedback("losses", every=2)], lambda: [Feedback("losses", every=3)],
            "every of callback Feedback",
        ),
        (
            lambda: [Feedback("losses", weigh=lambda scores: scores + 1)],
            lambda: [Feedback("losses", weigh=lambda scores: scores + 2)],
            "weigh of callback Feedback",
        ),
    ],
}  # fmt: skip
TRAINER_FREE = {
    "accelerator": ("cpu", "auto"),  # devices that differ are a warning
    "devices": (UNSET, UNSET), "num_nodes": (UNSET, UNSET),  # the process group has them
    "logger": (False, UNSET), "enable_progress_bar": (False, True),
    "enable_model_summary": (False, True), "profiler": (UNSET, "simple"),
    "default_root_dir": (UNSET, "elsewhere"), "enable_autolog_hparams": (True, False),
    "deterministic": (False, UNSET), "benchmark": (False, UNSET),  # a warning
    "inference_mode": (True, False), "use_distributed_sampler": (True, False),
    "detect_anomaly": (False, True), "plugins": (UNSET, UNSET), "model_registry": (UNSET, UNSET),
}  # fmt: skip


def list_cases(cases: dict[str, list[tuple[Any, Any, str]]]) -> list[tuple[str, int]]:
    """Return the name and number of each case."""
    return [(name, number) for name, of_name in cases.items() for number in range(len(of_name))]


def make_options(name: str, value: Any) -> dict[str, Any]:
    """Return an argument of a call; a class or function of no argument makes its value."""
    if value is UNSET:
        return {}
    is_made = name in ("strategy", "callbacks") and callable(value)
    return {name: value() if is_made else value}


def make_loader(name: str, value: Any, **options: Any) -> Loader:
    """Return a Loader that was given one argument."""
    store = Items() if name == "lengths" else ROWS
    return Loader(**{"store": store, "batching": ANY, **make_options(name, value), **options})
