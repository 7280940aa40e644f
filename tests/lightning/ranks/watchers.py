"""A watchdog of one rank, without a group; batches of which it is seen when they are freed."""

import weakref

from seqdata.lightning.ranks.watchdog import RankTimeouts, RankWatchdog


def make_watcher(*peers):
    return RankWatchdog(None, peers, 0, RankTimeouts())


class Batch:
    """What can be watched."""


def make_watched(alive):
    """Yield batches, and count those before each that are still there."""
    made = []
    for _ in range(4):
        alive.append(sum(one() is not None for one in made))
        batch = [Batch()]
        made.append(weakref.ref(batch[0]))
        yield batch.pop()
