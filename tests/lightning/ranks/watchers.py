"""A watchdog of one rank, without a group."""

from seqdata.lightning.ranks.watchdog import RankTimeouts, RankWatchdog


def make_watcher(*peers):
    return RankWatchdog(None, peers, 0, RankTimeouts())
