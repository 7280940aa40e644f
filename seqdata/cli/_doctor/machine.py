"""Checks of the machine: resources that decide whether loading works and is fast."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from seqdata.cli._doctor.finding import DoctorFinding
from seqdata.cli._report.console import format_bytes
from seqdata.kernel.dispatch import get_kernel, get_kernel_name
from seqdata.storage.limits import free_memory, read_number

_SECTION = "machine"
_SPARE_FILES, _FILES_OF_A_WORKER = 256, 8
_SPARE_MAPS = 4_096  # mappings of Python, torch and other files
_SPARE_PROCESSES = 512  # threads are counted as well
_LITTLE_MEMORY = 1 << 30
_AUTOCAST = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Resources and limits of the system; None if there is no limit, or it is unknown.

    Attributes:
        cores: Number of processor cores that this process may use.
        core_limit: Processor time that the control group may use, in cores.
        memory: Bytes that are free for this process.
        shared: Bytes of ``/dev/shm``.
        open_files: Largest number of descriptors of one process.
        processes: Largest number of processes and threads of this user.
        mappings: Largest number of memory mappings of one process.
        methods: Start methods of workers.
        kernel: ``c`` or ``numpy``.
        algorithms: Checksums that can be computed.
        processor: Instructions of the processor that torch uses; empty without torch.
        autocast: Dtypes in which an LSTM runs here under autocast.
    """

    cores: int
    core_limit: float | None
    memory: int | None
    shared: int | None
    open_files: int | None
    processes: int | None
    mappings: int | None
    methods: tuple[str, ...]
    kernel: str
    algorithms: tuple[str, ...]
    processor: str
    autocast: tuple[str, ...]


def inspect_machine() -> Machine:
    """Return the resources and limits of this machine."""
    processor, autocast = _inspect_processor()
    return Machine(
        cores=len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1,
        core_limit=_core_limit(),
        memory=free_memory(),
        shared=_filesystem_bytes("/dev/shm"),
        open_files=_soft_limit(resource.RLIMIT_NOFILE),
        processes=_soft_limit(resource.RLIMIT_NPROC),
        mappings=read_number("/proc/sys/vm/max_map_count"),
        methods=tuple(multiprocessing.get_all_start_methods()),
        kernel=get_kernel_name(),
        algorithms=tuple(get_kernel().algorithms()),
        processor=processor,
        autocast=autocast,
    )


def check_machine(machine: Machine, *, shards: int, workers: int) -> Iterator[DoctorFinding]:
    """Yield findings about the resources of a machine.

    Args:
        machine: Resources of the machine.
        shards: Number of files of the largest dataset; 0: unknown.
        workers: Number of worker processes of a loader.
    """
    limit = machine.core_limit
    cores = machine.cores if limit is None else min(machine.cores, limit)
    summary = f"{machine.cores}" + ("" if limit is None else f", of which {limit:g} may be used")
    if workers > cores:
        yield _make_finding(
            "cores", "warn", f"{summary}; {workers} workers", f"num_workers={max(1, int(cores))}"
        )
    else:
        yield _make_finding("cores", "ok", summary)
    if machine.memory is not None:
        is_low = machine.memory < _LITTLE_MEMORY
        yield _make_finding(
            "memory", "warn" if is_low else "ok", f"{format_bytes(machine.memory)} free",
            "end other programs, or use smaller batches and prefetch=0" if is_low else "",
        )  # fmt: skip
    if machine.shared is not None:
        yield _make_finding(
            "/dev/shm",
            "ok",
            (
                f"{format_bytes(machine.shared)}; its size does not matter: workers use "
                "anonymous shared memory"
            ),
        )
    yield from _check_limits(machine, shards, workers)
    if "forkserver" in machine.methods:
        yield _make_finding(
            "start methods", "ok", f"{', '.join(machine.methods)}; forkserver is used"
        )
    else:
        yield _make_finding(
            "start methods", "note", f"{', '.join(machine.methods)}; spawn is used: workers start "
            "slowly",
        )  # fmt: skip
    yield from _check_kernel(machine)
    if machine.processor:
        yield _check_autocast(machine)


def _check_limits(machine: Machine, shards: int, workers: int) -> Iterator[DoctorFinding]:
    files = _SPARE_FILES + _FILES_OF_A_WORKER * workers
    yield _check_limit(
        "open files", machine.open_files, files, "descriptors", f"ulimit -n {4 * files}"
    )
    yield _check_limit(
        "processes", machine.processes, _SPARE_PROCESSES + 4 * workers, "processes and threads",
        "raise `ulimit -u`, or pids.max of the container",
    )  # fmt: skip
    maps = _SPARE_MAPS + 2 * shards
    fix = f"sysctl -w vm.max_map_count={2 * maps}, or write larger shards (shard_bytes=)"
    yield _check_limit(
        "vm.max_map_count", machine.mappings, maps, f"mappings for {shards} shards", fix
    )


def _check_limit(
    name: str, available: int | None, needed: int, resources: str, fix: str
) -> DoctorFinding:
    if available is None:
        return _make_finding(name, "ok", "no limit")
    if available >= needed:
        return _make_finding(name, "ok", f"{available}")
    return _make_finding(name, "bad", f"{available}, but {needed} {resources} may be needed", fix)


def _check_kernel(machine: Machine) -> Iterator[DoctorFinding]:
    if machine.kernel == "c":
        yield _make_finding("kernel", "ok", "c")
    else:
        is_chosen = os.environ.get("SEQDATA_KERNEL") == "numpy"
        yield _make_finding(
            "kernel", "warn", "numpy, which is slower: batches take several times as long",
            "unset SEQDATA_KERNEL" if is_chosen else "install a wheel for this platform, or "
            "install a C compiler and build it again: pip install --force-reinstall --no-binary "
            "lightning-seqdata lightning-seqdata",
        )  # fmt: skip
    if "crc32c" in machine.algorithms:
        yield _make_finding("checksums", "ok", ", ".join(machine.algorithms))
    else:
        yield _make_finding(
            "checksums",
            "warn",
            (f"{', '.join(machine.algorithms)}: checksums of stores (crc32c) are not compared"),
            "pip install lightning-seqdata[checksums]",
        )


def _check_autocast(machine: Machine) -> DoctorFinding:
    missing = [name for name in _AUTOCAST if name not in machine.autocast]
    if not missing:
        return _make_finding("LSTM on the CPU", "ok", f"{', '.join(_AUTOCAST)} under autocast")
    return _make_finding(
        "LSTM on the CPU", "note",
        f"{machine.processor}: no {', '.join(missing)} under autocast (precision='bf16-mixed')",
        "precision='32-true' or 'bf16-true', a GRU, or a GPU",
    )  # fmt: skip


def _inspect_processor() -> tuple[str, tuple[str, ...]]:
    if find_spec("torch") is None:
        return "", ()
    from seqdata.recurrent import autocast

    names = {str(dtype).removeprefix("torch."): dtype for dtype in autocast.DTYPES}
    usable = (name for name in _AUTOCAST if autocast.can_run(names[name]))
    return autocast.describe_processor(), tuple(usable)


def _make_finding(name: str, state: str, seen: str, fix: str = "") -> DoctorFinding:
    return DoctorFinding(_SECTION, name, state, seen, fix)  # type: ignore[arg-type]


def _soft_limit(resource_id: int) -> int | None:
    soft, _ = resource.getrlimit(resource_id)
    return None if soft == resource.RLIM_INFINITY else soft


def _core_limit() -> float | None:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text("ascii").split()
        return int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _filesystem_bytes(path: str) -> int | None:
    try:
        stats = os.statvfs(path)
    except OSError:
        return None
    return stats.f_blocks * stats.f_frsize
