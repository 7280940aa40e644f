"""Tells a store what the next batches will read, where it can make use of that.

Place in the flow: the thread that makes batches ahead calls it now and then. Reads: the plan.
Makes: nothing; a remote store begins to fetch.
"""

from __future__ import annotations

from collections.abc import Callable

from seqdata.protocols import Store, SupportsPrefetch
from seqdata.sharing import RankPlan
from seqdata.storage.views import View

_MAX_STEPS = 64  # that it is told at most


def make_prefetch_hint(store: Store, steps: RankPlan) -> Callable[[int], None] | None:
    """Return what tells a store of the steps from one on; None where it has no use for that.

    Args:
        store: What is read; of a view its base is told.
        steps: Of this rank.
    """
    base = store.base if isinstance(store, View) else store
    if not isinstance(base, SupportsPrefetch):
        return None
    hinted = steps.first_step

    def hint(step: int) -> None:
        nonlocal hinted
        hinted = max(hinted, step)
        while hinted < min(len(steps), step + _MAX_STEPS):
            if not base.expect(store.base_numbers(steps[hinted].spans[:, 0])):
                return
            hinted += 1

    return hint
