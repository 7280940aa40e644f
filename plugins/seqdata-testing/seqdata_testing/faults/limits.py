"""Limits of resources: descriptors, disk space, memory, mappings, shared memory.

Set a limit in a child process, or call the function that it returns to remove it. Each docstring
has the expected outcome.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

from seqdata.errors import SeqDataError
from seqdata_testing.faults.leftovers import SHARED, open_descriptors


class Unavailable(SeqDataError):
    """Error about a system that cannot cause a fault, or does not permit it."""


def few_descriptors(more: int) -> Callable[[], None]:
    """Limit how many more files this process may open (EMFILE); return a function that undoes it.

    Expected: an error before the first step, with the true limit and how to raise it.

    Args:
        more: Number of descriptors that are left.
    """
    used, limit = open_descriptors(), 0
    while more > 0 or limit in used:  # ends: each free number below the limit is one more
        more -= limit not in used
        limit += 1
    return _set_limit(resource.RLIMIT_NOFILE, limit)


def few_mappings(more: int) -> Callable[[], None]:
    """Limit how much more this process may map (ENOMEM of ``vm.max_map_count``).

    Returns a function that undoes it, which must be kept. Expected: as for ``few_descriptors``.

    Args:
        more: Number of mappings that are left.
    """
    most = int(Path("/proc/sys/vm/max_map_count").read_text())
    kinds = (mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE)  # neighbours alike would be one
    mappings = []
    with contextlib.suppress(OSError):  # that is the end
        for i in range(most):
            mappings.append(mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE, prot=kinds[i % 2]))
    for _ in range(more):
        mappings.pop().close()

    def undo() -> None:
        while mappings:
            mappings.pop().close()

    return undo


def small_files(size: int) -> Callable[[], None]:
    """Limit the size of files of this process (EFBIG for ENOSPC); return a function that undoes it.

    Expected: the error of the system, no manifest, and a writer that can resume later.

    Args:
        size: Maximum size in bytes.
    """
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    return _set_limit(resource.RLIMIT_FSIZE, size)


def little_memory(more: int) -> Callable[[], None]:
    """Limit how much more memory this process and its children may map (ENOMEM).

    Returns a function that undoes it. Expected: an error that names the limits of mappings, or a
    ``MemoryError``.

    Args:
        more: Number of bytes that are left.
    """
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    return _set_limit(resource.RLIMIT_AS, taken + more)


def _set_limit(kind: int, value: int) -> Callable[[], None]:
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, before[1]))
    return functools.partial(resource.setrlimit, kind, before)


def full_disk(folder: Path, size: int) -> Callable[[int], None]:
    """Mount a small file system on a folder (ENOSPC); return a function that changes its size.

    Expected: as for ``small_files``. Only this process and its children see the file system.

    Args:
        folder: An existing folder.
        size: Size of the file system in bytes.

    Raises:
        Unavailable: If this process may not mount anything, not even for itself.
    """
    _own_mounts()
    _mount(folder, f"size={size}", 0)
    return lambda new_size: _mount(folder, f"size={new_size}", _MS_REMOUNT)


def small_shared(size: int) -> None:
    """Make /dev/shm small for this process and its children.

    Expected: no harm.

    Args:
        size: Its size in bytes.

    Raises:
        Unavailable: If this process may not mount anything, not even for itself.
    """
    _own_mounts()
    _mount(SHARED, f"size={size}", 0)


_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_REMOUNT, _MS_REC, _MS_PRIVATE = 32, 16384, 1 << 18


def _own_mounts() -> None:
    """Make mounts visible to this process and its children only."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWNS) != 0:
        if libc.unshare(_CLONE_NEWNS | _CLONE_NEWUSER) != 0:
            raise _unavailable("unshare")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    if libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) != 0:
        raise _unavailable("mount")


def _mount(folder: Path, options: str, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", flags, options.encode()) != 0:
        raise _unavailable("mount")


def _unavailable(call: str) -> Unavailable:
    return Unavailable(f"faults: {call}: {os.strerror(ctypes.get_errno())}, but must be allowed")
