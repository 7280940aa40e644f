"""What the system refuses: descriptors, space on the disk, memory, mappings.

Call one in a process of its own: limits are not given back. What must come of each stands with it.
Place in the flow: before opening or writing a data set. Harms: this process.
"""

from __future__ import annotations

import errno
import os
import resource
import signal


def few_descriptors(more: int) -> None:
    """Let this process open only so many files more (EMFILE).

    Must come of it: an error before the first step, with the true limit and how to raise it.

    Args:
        more: Descriptors that are left.
    """
    taken = len(os.listdir("/proc/self/fd")) - 1
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken + more, most))


def small_files(size: int) -> None:
    """Let no file of this process grow beyond a size, as a full disk does (EFBIG for ENOSPC).

    Must come of it: the system's error, no manifest, and a writer that can go on later.

    Args:
        size: Bytes.
    """
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))


def little_memory(more: int) -> None:
    """Let this process and its children map only so much more memory (ENOMEM).

    Must come of it: an error that says that nothing can be mapped, and which limit it is; in a
    worker process a ``MemoryError`` with its place, or a ``WorkerDiedError``.

    Args:
        more: Bytes.
    """
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + more, most))


FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
"""What the system says when there is no room for a file."""
