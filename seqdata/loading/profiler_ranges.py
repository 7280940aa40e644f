"""Ranges of a torch profiler: what a trace calls the parts of making a batch.

Place in the flow: around reading and collating. Makes: ranges, where a profiler runs.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch.autograd.profiler
from torch.profiler import record_function

FETCH, COLLATE = "seqdata.fetch", "seqdata.collate"
_NO_RANGE: AbstractContextManager[Any] = nullcontext()


def profile_range(name: str) -> AbstractContextManager[Any]:
    """Return a range of the profiler that runs; without one it costs nothing to speak of."""
    return record_function(name) if torch.autograd.profiler._is_profiler_enabled else _NO_RANGE
