"""``seqdata doctor --model``: what is worth using to train a model on this machine, and why."""

from __future__ import annotations

from dataclasses import dataclass, replace

from seqdata.cli._doctor.machine import inspect_machine
from seqdata.cli._doctor.model_source import load_model
from seqdata.cli._doctor.parallel_options import (
    OptionTable,
    UpdateShape,
    choose_option,
    require_memory,
)
from seqdata.cli._doctor.parallel_report import ParallelReport
from seqdata.cli._doctor.stack_counts import StackCounts, count_model
from seqdata.errors import ConfigError, must_be
from seqdata.index import SequenceIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelQuery:
    """What the user asks about.

    Attributes:
        model: As ``load_model`` takes it.
        store: Location of the data, for lengths; None: not given.
        backend: That opens it.
        lanes: Of all ranks together.
        chunk: Timesteps of a lane's row.
        batch_size: Rows of whole sequences.
        max_length: Timesteps of a row of whole sequences.
        chunks: Batches of an update.
        devices: How many to compute for; None: those of this machine, but at least 2.
        measure: Whether to run a few timesteps.
    """

    model: str
    store: str | None
    backend: str | None
    lanes: int | None
    chunk: int | None
    batch_size: int | None
    max_length: int | None
    chunks: int
    devices: int | None
    measure: bool


def advise_on_model(query: ParallelQuery) -> ParallelReport:
    """Return the options for a model.

    Raises:
        ConfigError: If the model cannot be imported or has no recurrent part, or the shape of
            batches does not follow from the query.
    """
    shape = _find_shape(query)
    import torch

    gpus = torch.cuda.device_count()
    accelerator = "gpu" if gpus else "cpu"
    found, memory = _inspect_gpus(gpus) if gpus else _inspect_cores()
    counts = count_model(load_model(query.model), query.model, is_cpu=not gpus)
    devices = query.devices or max(2, found)
    table = OptionTable(counts, shape, accelerator)
    options = [require_memory(option, memory) for option in table.list_options(devices)]
    if found < devices and query.devices is None:
        lacking = f"this machine has {found} device{'s' * (found != 1)}"
        options[1:] = [replace(o, why_not=o.why_not or lacking) for o in options[1:]]
    measured = _measure(table, counts, devices) if query.measure else None
    if measured is not None:
        speeds = zip(options, measured, strict=True)
        chosen = choose_option([replace(o, speedup=speedup) for o, speedup in speeds])
        chosen = options[[o.code for o in options].index(chosen.code)]
    else:
        chosen = choose_option(options)
    return ParallelReport(
        counts=counts, shape=shape, accelerator=accelerator, devices=devices, found=found,
        memory=memory, options=options, chosen=chosen, measured=measured,
    )  # fmt: skip


def _find_shape(query: ParallelQuery) -> UpdateShape:
    """Return the shape of batches, of lanes or of whole sequences."""
    for name in ("lanes", "chunk", "batch_size", "max_length", "chunks", "devices"):
        value = getattr(query, name)
        if value is not None and value < 1:
            raise ConfigError(must_be(f"doctor: `{name}`", "at least 1", str(value)))
    if query.lanes and query.chunk and not query.batch_size:
        return UpdateShape(query.lanes, query.chunk, query.chunks, True)
    if query.batch_size and not query.lanes and not query.chunk:
        timesteps = query.max_length or _find_longest(query)
        if timesteps:
            return UpdateShape(query.batch_size, timesteps, query.chunks, False)
        raise ConfigError(
            must_be(
                "doctor: the length of rows", "known", "not given",
                "Pass the store, or `max_length`",
            )
        )  # fmt: skip
    raise ConfigError(
        must_be(
            "doctor: the shape of batches",
            "either `lanes` and `chunk`, or `batch_size`",
            "neither or both of them",
            "Pass e.g. --lanes 64 --chunk 128",
        )
    )


def _find_longest(query: ParallelQuery) -> int:
    """Return the timesteps of the longest sequence of the store; 0 without one."""
    from seqdata.api import open_store

    if query.store is None:
        return 0
    index = SequenceIndex.of_store(open_store(query.store, backend=query.backend))
    return int(index.lengths.max(initial=0))


def _inspect_cores() -> tuple[int, int | None]:
    """Return the cores of this machine, and the free bytes for each."""
    machine = inspect_machine()
    cores = machine.cores if machine.core_limit is None else int(machine.core_limit)
    cores = max(1, min(machine.cores, cores))
    return cores, None if machine.memory is None else machine.memory // cores


def _inspect_gpus(gpus: int) -> tuple[int, int]:
    """Return the number of GPUs, and the free bytes of the one that has least."""
    import torch

    return gpus, min(torch.cuda.mem_get_info(number)[0] for number in range(gpus))


def _measure(table: OptionTable, counts: StackCounts, devices: int) -> list[float]:
    """Return the speedups of all options with measured costs."""
    import torch

    from seqdata.cli._doctor.stack_timing import StackTimer

    dtype = {8: torch.float64, 4: torch.float32, 2: torch.bfloat16}[counts.itemsize]
    threads = torch.get_num_threads()
    timer = StackTimer("cuda" if table.accelerator == "gpu" else "cpu", dtype)
    torch.set_num_threads(1)
    try:
        return [option.speedup for option in replace(table, cost=timer).list_options(devices)]
    finally:
        torch.set_num_threads(threads)
