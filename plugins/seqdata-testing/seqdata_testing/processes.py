"""Stores in other processes: opened again in another folder, and shared file positions."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import stat
import warnings
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from seqdata.protocols import Store
from seqdata_testing.stores import PATIENCE, digest_of

_MOST_READ = 256  # sequences


def reopen_elsewhere(content: bytes, folder: str) -> str:
    """Return fingerprint and digest of a pickled store, from a new process in another folder."""
    return _ask_child("spawn", _tell_content, content, folder)


def find_moved_files(store: Store, files: Iterable[Path]) -> list[str]:
    """Return the files whose positions in this process move when a forked child reads."""
    ours = {(found.st_dev, found.st_ino): str(path) for path in files for found in [path.stat()]}
    digest_of(store)  # what opens files when it reads has opened them
    before = _list_positions()
    _ask_child("fork", _read_halves, store)
    after = _list_positions()
    moved = [number for number in before if before[number] != after.get(number)]
    return [ours[mark] for number in moved if (mark := before[number][0]) in ours]


def _list_positions() -> dict[int, tuple[tuple[int, int], int]]:
    """Return descriptor -> ((device, inode), position), for open regular files."""
    found = {}
    for number in sorted(map(int, os.listdir("/dev/fd"))):
        try:
            about = os.fstat(number)
            if stat.S_ISREG(about.st_mode):
                mark = about.st_dev, about.st_ino
                found[number] = mark, os.lseek(number, 0, os.SEEK_CUR)
        except OSError:  # the one that listed them
            continue
    return found


def _ask_child(method: str, target: Callable[..., None], *arguments: Any) -> str:
    context: Any = multiprocessing.get_context(method)
    own_end, child_end = context.Pipe(duplex=False)
    child = context.Process(target=target, args=(child_end, *arguments), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads: tried on purpose
        child.start()
    child_end.close()
    try:
        told = str(own_end.recv()) if own_end.poll(PATIENCE) else "nothing in time"
    except EOFError:
        told = "nothing: it died"
    child.join(timeout=PATIENCE)
    if child.is_alive():
        child.kill()
    return told


def _tell_content(pipe: Connection, content: bytes, folder: str) -> None:
    os.chdir(folder)
    try:
        store: Store = pickle.loads(content)
        told = f"{store.fingerprint} {digest_of(store)}"
    except Exception as error:  # told to the parent, which raises it
        told = f"{type(error).__name__}: {error}"
    pipe.send(told)


def _read_halves(pipe: Connection, store: Store) -> None:
    """Read the first half of some sequences, in reverse order, unlike the parent."""
    for name, described in store.fields.items():
        for number in reversed(range(min(len(store), _MOST_READ))):
            stop = int(store.lengths_of[described.axis][number]) // 2 if described.axis else 0
            axis = described.axis or next(iter(store.lengths_of))
            store.read(np.array([[number, 0, stop]], dtype=np.int64), [name], axis=axis)[name][0]
    pipe.send("done")
