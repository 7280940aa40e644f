"""Checks of a run's settings: common mistakes, each with its remedy."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from seqdata.cli._doctor.finding import DoctorFinding, FindingState
from seqdata.detect import detect_backend
from seqdata.errors import SeqDataError
from seqdata.index import SequenceIndex
from seqdata.loading.error_log import read_error_list
from seqdata.planning.policy import resolve_seconds
from seqdata.policies.tbptt import TBPTT
from seqdata.protocols import Store
from seqdata.runs.class_paths import CLASS_PATH, INIT_ARGS, ArgumentReader, list_import_paths
from seqdata.runs.run_file import RunFile
from seqdata.runs.run_record import find_installed_versions
from seqdata.sharing import World, count_steps

_CODE_ARGUMENTS = ("batching", "eval_batching", "transform", "collator")
_WEIGHT_FIELDS = {"weight", "score"}
_CASTING_PRECISIONS = {"16-true", "bf16-true", "64-true", "16", "bf16", "64"}


def check_settings(file: RunFile, path: Path, train: Store | None) -> Iterator[DoctorFinding]:
    """Yield findings about settings of a run that have unexpected effects.

    Args:
        file: The run file.
        path: Path of the run file.
        train: The training data; None if it could not be opened.
    """
    where = str(path)
    for name, state, seen, fix in (
        *_check_versions(file),
        *_check_code(file),
        *_check_workers(file),
        *_check_output(file.data),
        *_check_launch(file),
        *_check_ranks(file, train),
        *_check_trainer(file),
        *_check_errors(file, path.parent),
    ):
        yield DoctorFinding(where, name, state, seen, fix)


FindingRow = tuple[str, FindingState, str, str]


def _check_versions(file: RunFile) -> Iterator[FindingRow]:
    now = find_installed_versions()
    differing = [
        f"{name} {was} (now {now.get(name, 'none')})"
        for name, was in file.versions.items()
        if now.get(name) != was
    ]
    if differing:
        yield (
            "versions", "note", f"the run had {', '.join(differing)}",
            "install these versions to rebuild batches bit for bit",
        )  # fmt: skip


def _check_code(file: RunFile) -> Iterator[FindingRow]:
    """Report arguments that were not saved, and modules that cannot be found; import none."""
    for reason in file.missing:
        yield (
            "replay", "note", f"not from the file: {reason}",
            "in the program that trains, data.replay(epoch=, batch=)",
        )  # fmt: skip
    for argument in _CODE_ARGUMENTS:
        if file.get_missing_reason(argument) is not None:
            continue
        for name in list_import_paths(file.get_plain(argument)):
            script = file.script if name.startswith("__main__.") else None
            is_found = Path(script).is_file() if script else _is_importable(name, file.roots)
            if not is_found:
                yield (
                    argument, "bad", f"{name} cannot be found here",
                    "run this where the training ran, or put its folder on PYTHONPATH",
                )  # fmt: skip


def _is_importable(name: str, roots: list[str]) -> bool:
    top = name.partition(".")[0]
    is_installed = top in sys.modules or importlib.util.find_spec(top) is not None
    return is_installed or PathFinder.find_spec(top, roots) is not None


def _check_workers(file: RunFile) -> Iterator[FindingRow]:
    data, count = file.data, int(file.data.get("num_workers") or 0)
    method = data.get("start_method")
    if not count:
        return
    for argument in ("transform", "collator"):
        reason = file.get_missing_reason(argument)
        if reason is not None and method != "fork":
            yield (
                argument, "bad", f"{reason}: it cannot be sent to {count} workers",
                "define it in a module, or start_method='fork'",
            )  # fmt: skip
    if data.get("transform") is None and data.get("collator") is None and _is_own_store(file):
        yield (
            "num_workers", "note", f"{count}, but there is no Python code to run in them",
            "num_workers=0: a thread reads as fast and costs nothing",
        )  # fmt: skip
    if method != "fork":
        return
    foreign = [path for path in file.list_store_paths("train") if detect_backend(path) == "foreign"]
    if foreign:
        yield (
            "start_method",
            "bad",
            (
                f"'fork', and {foreign[0]} is read by pyarrow, whose threads do not survive "
                "a fork: workers can hang"
            ),
            "start_method=None, or write it as a store",
        )
    else:
        yield (
            "start_method",
            "warn",
            (
                "'fork' copies a process that has threads (torch, Lightning, loggers): a "
                "worker can wait forever for a lock that a thread held"
            ),
            "start_method=None",
        )


def _is_own_store(file: RunFile) -> bool:
    paths = file.list_store_paths("train")
    return bool(paths) and all(detect_backend(path) == "arrow" for path in paths)


def _check_output(data: Mapping[str, Any]) -> Iterator[FindingRow]:
    names = {name for argument in ("as_tuple", "as_dict") for name in data.get(argument) or ()}
    if "lengths" in names:
        yield (
            "lengths",
            "note",
            (
                "part of a tuple or dict: the Trainer moves them to the device, but "
                "pack_padded_sequence needs them on the CPU"
            ),
            ("lengths.cpu() in the model, or use whole batches: batch.packed(name)"),
        )
    if names and not names & _WEIGHT_FIELDS and data.get("tail", "fill") == "fill":
        yield (
            "weight",
            "note",
            (
                "not part of the output: padding rows of several ranks cannot be recognised, "
                "and raise an error"
            ),
            "add 'weight'; in training tail='drop' does, too",
        )


def _check_ranks(file: RunFile, train: Store | None) -> Iterator[FindingRow]:
    size, data = file.geometry.world_size, file.data
    batches_per_update = data.get("batches_per_update")
    if batches_per_update is not None and batches_per_update % size:
        yield (
            "batches_per_update", "bad", f"{batches_per_update}, no multiple of {size} ranks",
            f"{-(-batches_per_update // size) * size}, or another number of ranks",
        )  # fmt: skip
    try:
        planned = None if train is None else _count_batches(data, train)
    except SeqDataError as error:
        yield "batching", "bad", str(error), "see the message's end"
        return
    if planned is None:
        return
    batches, lanes = planned
    if lanes:
        uneven = bool(lanes % size)
        yield (
            "lanes", "warn" if uneven else "ok", f"{lanes} lanes on {size} ranks",
            f"choose a multiple of {size}: the load is uneven" if uneven else "",
        )  # fmt: skip
        return
    tail = data.get("tail", "fill")
    steps, over = count_steps(batches, World(0, size), tail), batches % size
    summary = f"{batches:,} batches are {steps:,} steps of {size} ranks"
    if batches < size:
        yield (
            "batches", "warn", f"{summary}: {size - batches} ranks have none of their own",
            "smaller batches, or fewer ranks",
        )  # fmt: skip
    elif over and tail == "drop":
        yield "batches", "note", f"{summary}; {over} are dropped each epoch", "tail='fill'"
    elif over:
        yield (
            "batches", "ok", f"{summary}; in the last one {size - over} ranks have padding rows of "
                             "weight 0",
            "",
        )  # fmt: skip
    else:
        yield "batches", "ok", summary, ""


def _count_batches(data: Mapping[str, Any], train: Store) -> tuple[int, int] | None:
    """Return the batches and lanes of an epoch; with a transform or shift only lanes are known.

    None if they are unknown, or the policy needs code of others.
    """
    policy = data.get("batching")
    if not isinstance(policy, Mapping):
        return None
    options = policy.get(INIT_ARGS)
    if not str(policy.get(CLASS_PATH)).startswith("seqdata.") or list_import_paths(options):
        return None
    resolved, lanes = ArgumentReader("").from_plain(policy, "batching"), 0
    if isinstance(resolved, TBPTT):
        lanes = resolved.lanes
    if data.get("transform") is not None or data.get("shift"):
        return (0, lanes) if lanes else None  # lengths differ from the stored ones
    resolved = resolve_seconds(resolved, train)
    return resolved.num_batches(SequenceIndex.from_store(train)), lanes


def _check_launch(file: RunFile) -> Iterator[FindingRow]:
    """Yield a finding about processes and replicas; processes of one replica share batches."""
    trainer, replicas = file.trainer, file.geometry.world_size
    processes = trainer.get("processes", replicas)
    replicas_text = (
        f" in {replicas} replicas of {processes // replicas}" if processes > replicas else ""
    )
    yield (
        "strategy", "ok", (f"{trainer.get('strategy', 'unknown')} on "
                f"{trainer.get('accelerator', 'unknown')}: {processes} processes{replicas_text} "
                f"on {trainer.get('nodes', 1)} nodes; the batches of one plan are divided among "
                f"{replicas}, each sequence once"), "",
    )  # fmt: skip


def _check_trainer(file: RunFile) -> Iterator[FindingRow]:
    trainer = file.trainer
    yield (
        "use_distributed_sampler",
        "ok",
        "either value: the loaders of seqdata have no sampler",
        "",
    )
    limit, every = trainer.get("limit_train_batches"), trainer.get("val_check_interval")
    if type(limit) is int:
        yield (
            "limit_train_batches",
            "note",
            (
                f"{limit} steps: the batches depend on the number of ranks, and resuming "
                "with another number is refused"
            ),
            "pass a fraction",
        )
    if type(every) is int and every % file.geometry.accumulate:
        yield (
            "val_check_interval", "warn", f"{every} steps, no multiple of the "
            f"{file.geometry.accumulate} of an update: checkpoints there lose half-made gradients",
            f"{-(-every // file.geometry.accumulate) * file.geometry.accumulate}",
        )  # fmt: skip
    if trainer.get("precision") in _CASTING_PRECISIONS:
        yield (
            "precision",
            "note",
            (
                f"{trainer['precision']!r} casts every floating field, including time stamps "
                "and weights"
            ),
            "store those as integers, or use mixed precision",
        )
    if file.geometry.frozen:
        yield "overfit_batches", "note", "every epoch is epoch 0, not shuffled", ""


def _check_errors(file: RunFile, folder: Path) -> Iterator[FindingRow]:
    lists = {path: read_error_list(path) for path in folder.glob("seqdata-errors-rank*.jsonl")}
    files = sorted((path for path in lists if lists[path]), key=lambda path: path.stat().st_mtime)
    if files:
        latest, count = files[-1], sum(map(len, lists.values()))
        yield (
            "on_error", "warn", f"{count} sequences could not be used, the last one: "
            f"{json.dumps(lists[latest][-1]):.300}", f"look at {latest}, repair the data",
        )  # fmt: skip
    elif file.data.get("on_error", "raise") != "raise":
        yield "on_error", "ok", f"{file.data['on_error']!r}, and no errors are listed", ""
