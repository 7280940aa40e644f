"""A process for each loader, which does what it is told: they take turns, each alone in memory."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from peers.asking import Ask, Peer, Reading
from samples import Samples

PATIENCE = 150.0  # seconds that one request may take
LOADERS = (
    "ours", "by_hand", "by_hand_tuned", "stateful", "hf", "wds", "mds", "ld", "grain_map",
    "spdl_pipeline", "lhotse_shar", "windows_ours", "windows_by_hand", "windows_forecasting",
    "windows_torchrl",
)  # fmt: skip


class LeftOut(Exception):
    """A loader that cannot do this here, and why."""


class Room:
    """What the process of a loader holds.

    Attributes:
        peer: The loader.
        open: Key -> its reading, and an endless iterator over its batches.
    """

    def __init__(self, module: str) -> None:
        self.peer: Peer = importlib.import_module(f"peers.{module}").PEER
        self.open: dict[Any, tuple[Reading, Iterator[Any]]] = {}

    def start(self, key: Any, ask: Ask, way: Callable[[Ask], Reading] | None = None) -> None:
        """Open a reading, by another way than the loader's own if there is one; take a batch."""
        reading = (way or self.peer.read)(ask)
        batches = _endless(reading)
        next(batches)
        self.open[key] = reading, batches

    def stop(self, key: Any) -> None:
        """Close a reading, if it is open."""
        if key in self.open:
            reading, batches = self.open.pop(key)
            batches.close()  # type: ignore[attr-defined]
            reading.close()
            del reading, batches
            gc.collect()  # what is mapped would stay in the page cache


def _endless(reading: Reading) -> Iterator[Any]:
    while True:
        yield from reading.loader


class Server:
    """The other end: starts the process and asks it.

    Args:
        module: Name of a module of ``peers``.

    Raises:
        LeftOut: If the loader is not installed.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._start()

    def ask(self, function: Callable[..., Any], *arguments: Any, patience: float = PATIENCE) -> Any:
        """Return ``function(room, *arguments)`` of the process.

        Raises:
            LeftOut: If it raised, ended or took too long; the process is then a new one.
        """
        try:
            self._pipe.send((function, arguments))
            if not self._pipe.poll(patience):
                raise LeftOut(f"no answer within {patience:.0f} s")
            is_right, answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            self.restart()
            raise LeftOut(f"its process ended ({error!r})") from error
        except LeftOut:
            self.restart()
            raise
        if not is_right:
            raise LeftOut(answer)
        return answer

    def stop(self, key: Any) -> None:
        """Close a reading; where that fails, the process is a new one."""
        try:
            self.ask(Room.stop, key)
        except LeftOut:
            self.restart()

    def restart(self) -> None:
        """Replace the process by a new one, which has nothing open."""
        self._process.kill()
        self._process.join(timeout=20)
        self._start()

    def close(self) -> None:
        self._pipe.close()  # the process ends when it finds nobody at the other end
        self._process.join(timeout=20)
        if self._process.is_alive():
            self._process.kill()

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["bench_set.preload"])
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._module))
        self._process.start()
        theirs.close()
        if not self._pipe.poll(PATIENCE):
            raise LeftOut("its process did not begin")
        try:
            is_right, answer = self._pipe.recv()
        except EOFError as error:
            raise LeftOut("its process ended while it began") from error
        if not is_right:
            raise LeftOut(answer)
        self.peer: Peer = answer[0]
        self.versions: dict[str, str] = answer[1]


def _serve(pipe: Connection, module: str) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what libraries print is not the benchmark's
    import torch

    torch.set_num_threads(1)
    multiprocessing.set_start_method(None, force=True)  # what a script has, for its own workers
    try:
        room = Room(module)
        versions = {name: version(name) for name in room.peer.packages}
    except Exception as error:
        pipe.send((False, _say(error)))
        return
    pipe.send((True, (room.peer, versions)))
    try:
        while True:
            function, arguments = pipe.recv()
            try:
                pipe.send((True, function(room, *arguments)))
            except Exception as error:
                traceback.print_exc()
                pipe.send((False, _say(error)))
    except EOFError:  # the benchmark is done with it
        for key in list(room.open):
            room.stop(key)


def _say(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


def write(room: Room, folder: Path, arrays: Path) -> None:
    """Write with the loader's own writer what lies in two arrays."""
    if room.peer.write is not None:
        values = np.load(arrays / "values.npy", mmap_mode="r").view(np.ndarray)
        room.peer.write(folder, Samples(values, np.load(arrays / "offsets.npy")))
