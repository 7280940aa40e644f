"""Starting a thread where there may be no room for one.

Place in the flow: whoever reads ahead starts its thread here. Makes: a running thread, or an error.
"""

from __future__ import annotations

import contextlib
import mmap
import threading

from seqdata.errors import ConfigError
from seqdata.storage.local_files import describe_limit

_PROBE_MAPPINGS = 16  # that a thread needs for its stack and first objects, and some more


def start_thread(thread: threading.Thread) -> None:
    """Start a thread.

    Python waits without end for one that finds no memory for its first step, so that is looked at
    before.

    Raises:
        ConfigError: If the system has no room for it.
    """
    protections = (
        mmap.PROT_READ,
        mmap.PROT_READ | mmap.PROT_WRITE,
    )  # neighbours alike would be one
    try:
        with contextlib.ExitStack() as mappings:
            for i in range(_PROBE_MAPPINGS):
                page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE, prot=protections[i % 2])
                mappings.callback(page.close)
        thread.start()
    except OSError as error:
        raise ConfigError(
            f"loader: there is no memory for a thread ({error.strerror}), must be; raise "
            f"{describe_limit(error)}, or pass prefetch=0"
        ) from error
    except RuntimeError as error:
        if thread.ident is not None:  # it runs already
            raise
        raise ConfigError(
            f"loader: a thread cannot be started ({error}), must be; raise `ulimit -u`, or pass "
            "prefetch=0"
        ) from error
