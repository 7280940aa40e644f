"""``seqdata doctor --model``: options to train a model on several devices, with their speedups.

It reports all options, the one to use, and alternatives on one device.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from seqdata.cli._doctor.machine import inspect_machine
from seqdata.cli._doctor.parallel_options import (
    OptionTable,
    ParallelOption,
    UpdateShape,
    choose_option,
    require_memory,
)
from seqdata.cli._doctor.stack_counts import StackCounts, count_model
from seqdata.cli._report.console import format_bytes, iter_table, keep_whole
from seqdata.errors import ConfigError, did_you_mean, must_be
from seqdata.index import SequenceIndex

if TYPE_CHECKING:
    from torch import Tensor, nn

_WHERE = "doctor: `model`"
_FORM = re.compile(r"(?P<module>[\w.]+):(?P<name>[\w.]+)(?P<call>\(.*\))?", re.DOTALL)
_FILES = (".ckpt", ".pt", ".pth")
_EXAMPLE = "seqdata_models:StatefulLM(256, hidden=512, layers=4)"


def load_model(text: str) -> nn.Module | dict[str, Tensor]:
    """Return the module that a string names, or the tensors of a checkpoint.

    Args:
        text: ``package.module:Class``, or a function or a module object there, with literals as
            arguments, such as ``package.module:Class(256, layers=2)``; or the path of a checkpoint
            (``.ckpt``, ``.pt``, ``.pth``), of which only weights are read.

    Raises:
        ConfigError: If the string has another form, or does not name a module.
    """
    if text.endswith(_FILES):
        return _load_weights(Path(text))
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise ConfigError(
            must_be(
                _WHERE, f"'package.module:Class(arguments)' or a checkpoint {'/'.join(_FILES)}",
                repr(text), f"Write e.g. --model '{_EXAMPLE}'",
            )
        )  # fmt: skip
    value = _import_object(found["module"], found["name"])
    return _make_module(value, found["name"], found["call"])


def _import_object(module: str, name: str) -> Any:
    if os.getcwd() not in sys.path:  # as `python` does for a script there
        sys.path.append(os.getcwd())
    try:
        value: Any = importlib.import_module(module)
    except Exception as error:  # code of a user may raise anything
        raise ConfigError(
            must_be(
                _WHERE, "importable", f"not: {module!r} ({type(error).__name__}: {error})",
                "Run this where it can be imported, or put its folder on PYTHONPATH",
            )
        ) from error  # fmt: skip
    for part in name.split("."):
        if not hasattr(value, part):
            hint = did_you_mean(
                part, [member for member in dir(value) if not member.startswith("_")]
            )
            raise ConfigError(must_be(_WHERE, f"a name of {module!r}", repr(name), hint))
        value = getattr(value, part)
    return value


def _make_module(value: Any, name: str, call: str | None) -> nn.Module:
    from torch import nn

    if isinstance(value, nn.Module) and call is None:
        return value
    if not callable(value):
        raise ConfigError(must_be(_WHERE, "a class, function or module", repr(value)[:100]))
    positional, keywords = _parse_arguments(call or "()")
    try:
        module = value(*positional, **keywords)
    except Exception as error:  # code of a user may raise anything
        raise ConfigError(
            must_be(
                _WHERE, "a call that succeeds",
                f"{name}{call or '()'}, which raises {type(error).__name__}: {error}",
                f"Write its arguments as in --model '{_EXAMPLE}', or name a function without any",
            )
        ) from error  # fmt: skip
    if not isinstance(module, nn.Module):
        raise ConfigError(must_be(_WHERE, "a torch.nn.Module", f"a {type(module).__name__}"))
    return module


def _parse_arguments(call: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the literals of ``(256, layers=2)``; nothing is evaluated."""
    try:
        parsed: Any = ast.parse(f"f{call}", mode="eval").body
        keywords = {keyword.arg: ast.literal_eval(keyword.value) for keyword in parsed.keywords}
        return [ast.literal_eval(argument) for argument in parsed.args], keywords
    except (SyntaxError, ValueError, AttributeError) as error:
        raise ConfigError(
            must_be(
                f"{_WHERE}: the argument list", "of literals, such as numbers and strings", call,
                "Name a function without arguments that makes the model",
            )
        ) from error  # fmt: skip


def _load_weights(path: Path) -> dict[str, Tensor]:
    import torch

    if not path.is_file():
        raise ConfigError(must_be(_WHERE, "a file that exists", repr(str(path))))
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch, pickle and zipfile raise various errors
        raise ConfigError(
            must_be(
                f"{_WHERE}: {path}", "a checkpoint of tensors",
                f"one that torch.load(weights_only=True) refuses ({type(error).__name__})",
                "Name the class instead: --model 'package.module:Class(arguments)'",
            )
        ) from error  # fmt: skip
    weights = content.get("state_dict", content) if isinstance(content, dict) else {}
    return {name: value for name, value in weights.items() if isinstance(value, torch.Tensor)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelReport:
    """Options to train a model on several devices.

    Attributes:
        counts: Counts of the model.
        shape: Shape of an update.
        accelerator: ``cpu`` or ``gpu``.
        devices: Number of devices of the options.
        found: Number of devices of this machine.
        memory: Free bytes of a device; None: unknown.
        options: Options, one device first.
        chosen: The option to use.
        measured: Speedups of the options with measured costs; None: not measured.
    """

    counts: StackCounts
    shape: UpdateShape
    accelerator: str
    devices: int
    found: int
    memory: int | None
    options: Sequence[ParallelOption]
    chosen: ParallelOption
    measured: Sequence[float] | None

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        counts = asdict(self.counts)
        options = [asdict(option) | {"devices": option.devices} for option in self.options]
        for option, speedup in zip(options, self.measured or (), strict=False):
            option["measured_speedup"] = speedup
        number = next(n for n, option in enumerate(self.options) if option is self.chosen)
        return {
            "model": counts,
            "update": asdict(self.shape),
            "machine": {
                "accelerator": self.accelerator, "devices": self.found, "memory": self.memory,
            },
            "devices": self.devices,
            "options": options,
            "recommended": {"option": number, "code": self.chosen.code},
            "one_device": [
                {"name": name, "advice": advice} for name, advice in self.list_alternatives()
            ],
        }  # fmt: skip

    def iter_lines(self) -> Iterator[str | Text]:
        """Yield the table of options and the one to use, then the reasons."""
        yield from self._iter_table()
        speedup = self.get_speedup(self.chosen)
        reason = f", speedup {speedup:.2f}" if self.chosen.devices > 1 else ""
        yield f"\nUse: {self.chosen.axis}{reason}"
        yield from (keep_whole(f"  {line}") for line in self.chosen.code.splitlines())
        yield ""
        yield from self._iter_model_lines()
        yield ""
        for option in self.options[1:]:
            yield from self._iter_option_lines(option)
        yield "\nOn one device"
        for name, advice in self.list_alternatives():
            yield f"  {name}: {advice}"

    def get_speedup(self, option: ParallelOption) -> float:
        """Return the measured speedup of an option, or else the one from counts."""
        if self.measured is None:
            return option.speedup
        return self.measured[
            next(n for n, candidate in enumerate(self.options) if candidate is option)
        ]

    def list_alternatives(self) -> list[tuple[str, str]]:
        """Return alternatives on one device: pairs of name and advice."""
        largest = max(self.counts.layers, key=lambda layer: layer.cost)
        operations = 2 * largest.cost * self.shape.rows
        dtype = f"{8 * self.counts.itemsize}-bit"
        return [
            (
                "more lanes or rows",
                f"a timestep of the largest layer is {format_count(operations)} operations for "
                f"{self.shape.rows} rows; until a device is busy, more rows take no longer. "
                "--measure shows whether it is; tune the learning rate again",
            ),
            (
                "cuDNN",
                "nn.LSTM and nn.GRU use it on GPUs, hard to beat; its fastest kernels need 16-bit "
                f"weights (these are {dtype}) and dense rows: lanes, or buckets of equal lengths, "
                "not packed rows",
            ),
            (
                "FlashRNN",
                "fused kernels for other cells; best with block-diagonal recurrence, which is "
                "another model. Its README has nn.LSTM faster at size 768: 2.0 ms forward, not 4.9",
            ),
            (
                "minLSTM, minGRU",
                "trained by a scan, in parallel over time: 175 times as fast at 512 timesteps in "
                "its paper (arXiv 2410.01201), but gates do not see the state: another model",
            ),
        ]

    def _iter_model_lines(self) -> Iterator[str | Text]:
        counts, shape = self.counts, self.shape
        rows = "lanes" if shape.is_carried else "rows"
        yield (
            f"{counts.name}: {len(counts.layers)} recurrent layers, {counts.parameters:,} weights "
            f"of {counts.itemsize} bytes"
        )
        titles = ("part", "cell", "inputs", "outputs", "weights", "operations", "kept")
        cells = [
            (
                part.name, part.cell, str(part.inputs), str(part.outputs), f"{part.parameters:,}",
                format_count(6 * part.cost), format_bytes(part.kept * counts.itemsize),
            )
            for part in counts.parts
        ]  # fmt: skip
        yield from iter_table(titles, cells, left=("part", "cell"))
        yield "operations and kept: per timestep of a row"
        yield (
            f"an update: {shape.batches} batches of {shape.rows} {rows} x {shape.timesteps} "
            f"timesteps, 6 operations per weight and timestep (2 forward, 4 backward)"
        )
        found_devices = f"{self.found} device{'s' * (self.found > 1)} ({self.accelerator})"
        memory = "" if self.memory is None else f", {format_bytes(self.memory)} free for each"
        yield f"this machine: {found_devices}{memory}; figures for {self.devices}"
        if self.accelerator == "cpu":
            yield "  on CPUs a device is a process with one thread; speedups are over one of them"

    def _iter_table(self) -> Iterator[Text]:
        titles = ["split", "devices", "speedup", "idle", "memory", "sent an update"]
        titles += ["measured"] if self.measured else []
        rows = []
        for number, option in enumerate(self.options):
            is_mesh = option.data > 1 and option.size > 1
            cells = [
                f"{option.speedup:.2f}", f"{option.bubble:.0%}", format_bytes(option.memory),
                format_bytes(option.sent), *([f"{self.measured[number]:.2f}"] if self.measured
                                             else []),
            ]  # fmt: skip
            devices = f"{option.data} x {option.size}" if is_mesh else str(option.devices)
            rows.append([option.axis, devices, *(["-"] * len(cells) if option.why_not else cells)])
        return iter_table(titles, rows, left=("split",))

    def _iter_option_lines(self, option: ParallelOption) -> Iterator[str]:
        yield f"{option.axis}: speedup {option.formula}; gives up {option.gives_up}"
        if option.why_not:
            yield f"  not here: {option.why_not}"
            return
        stages = " + ".join(format_count(count) for count in option.operations)
        sent = format_bytes(option.sent / self.shape.batches)
        yield f"  operations of a replica's devices: {stages}; sent a batch: {sent}"
        if option.split_backward:
            yield (
                f"  with split_backward=True: speedup {option.split_backward:.2f} by the formula, "
                "with cells of ours, each slower than torch's"
            )


def format_count(count: float) -> str:
    """Return a number of operations in readable form: ``2.1 M``."""
    for unit in ("", " k", " M", " G", " T"):
        if count < 1000:
            return f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:.3g} P"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelQuery:
    """Options of the command.

    Attributes:
        model: Argument of ``load_model``.
        store: Location of the data, for lengths; None: not given.
        backend: Name of the backend that opens the data; None: detected from the location.
        lanes: Number of lanes of all ranks together.
        chunk: Timesteps of a lane's row.
        batch_size: Number of rows, of whole sequences.
        max_length: Timesteps of a row of whole sequences.
        chunks: Number of batches of an update.
        devices: Number of devices of the options; None: that of this machine, but at least 2.
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
    names = [name for name in ("lanes", "chunk", "batch_size") if getattr(query, name)]
    found = f"given by {' and '.join(f'`{name}`' for name in names)}" if names else "not given"
    raise ConfigError(
        must_be(
            "doctor: the shape of batches",
            "given by either `lanes` and `chunk`, or `batch_size` alone",
            found,
            "Pass e.g. --lanes 64 --chunk 128",
        )
    )


def _find_longest(query: ParallelQuery) -> int:
    """Return the timesteps of the longest sequence of the store; 0 without one."""
    from seqdata.api import open_store

    if query.store is None:
        return 0
    index = SequenceIndex.from_store(open_store(query.store, backend=query.backend))
    return int(index.lengths.max(initial=0))


def _inspect_cores() -> tuple[int, int | None]:
    """Return the cores of this machine, and the free bytes for each."""
    machine = inspect_machine()
    cores = machine.cores if machine.core_limit is None else int(machine.core_limit)
    cores = max(1, min(machine.cores, cores))
    return cores, None if machine.memory is None else machine.memory // cores


def _inspect_gpus(gpus: int) -> tuple[int, int]:
    """Return the number of GPUs, and the free bytes of the GPU that has least."""
    import torch

    return gpus, min(torch.cuda.mem_get_info(number)[0] for number in range(gpus))


def _measure(table: OptionTable, counts: StackCounts, devices: int) -> list[float]:
    """Return the speedups of all options with measured costs."""
    import torch

    from seqdata.cli._doctor.stack_counts import StackTimer

    dtype = {8: torch.float64, 4: torch.float32, 2: torch.bfloat16}[counts.itemsize]
    threads = torch.get_num_threads()
    timer = StackTimer("cuda" if table.accelerator == "gpu" else "cpu", dtype)
    torch.set_num_threads(1)
    try:
        return [option.speedup for option in replace(table, cost=timer).list_options(devices)]
    finally:
        torch.set_num_threads(threads)
