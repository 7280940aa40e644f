"""Cases of remote data: S1 to S8, C1 to C8 (``cases_cache``), and D1 to D9."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from seqdata_testing.faults import cases_cache, hostile, network, try_damage, try_remote
from seqdata_testing.faults.cases_damage import FILE_DETAILS, OWN_SPECS, mended_cases
from seqdata_testing.faults.fault_case import FaultCase
from seqdata_testing.faults.outcome import MENDED, WHOLE, Expectation
from seqdata_testing.faults.targets import FaultTarget
from seqdata_testing.faults.try_damage import ReadMode

_MODES = ("cache", "ranges")
_DETAILS = ("dataset", "shard", "file", "attempts")
_UNREADABLE = Expectation(kinds=("RemoteReadError",), details=_DETAILS, seconds=15.0)
_NO_HARM = Expectation(kinds=(WHOLE,), seconds=30.0)
_TRIED_AGAIN = replace(_NO_HARM, happened={try_remote.RETRY: 1})
_ANOTHER = Expectation(
    kinds=("FingerprintMismatch",), details=("dataset", "shard", "file"), seconds=30.0,
    texts=("must not change while it is read, but was replaced",), happened={try_remote.CHANGED: 1},
)  # fmt: skip
_NO_ROOM = Expectation(
    kinds=("CacheError", WHOLE), details=("file", "free"), happened={try_remote.FULL: 1}
)
_DAMAGES = 6  # of each kind
_FLIPS = 100  # of bits of values, each way
_RUNS, _QUICK_RUNS = 200, 3

_REACHES = tuple(
    replace(spec, kinds=(MENDED, "DataError"), count=_DAMAGES)  # shards are looked at when read
    for spec in OWN_SPECS
    if spec.part == "shards" and spec.fault in ("D1", "D3", "D4", "D5", "D6", "D7", "D8")
)
_FAULTS: tuple[tuple[str, Callable[[int | None], network.Fault]], ...] = (
    ("S1", partial(network.unavailable, bodies=True)),
    ("S2", network.reset),
    ("S3", network.short),
)
_MORE = Expectation(kinds=("RemoteReadError",), details=_DETAILS, seconds=30.0)
_HOSTILE = (
    (
        "S6", hostile.play_endless,
        replace(_MORE, texts=("requested, but more were received",), happened={hostile.BODY: 1}),
    ),
    (
        "S7", hostile.play_bomb,
        replace(_MORE, texts=("encoded as 'deflate'",), happened={hostile.BOMB: 1}),
    ),
    (
        "S8", hostile.play_redirected,
        replace(_NO_HARM, happened={hostile.SENT_ON: 1, hostile.SECRET: 1}),
    ),
)  # fmt: skip


def cases(target: FaultTarget, *, quick: bool = False) -> list[FaultCase]:
    """Return the cases of remote data.

    Args:
        target: Dataset to serve.
        quick: Whether each case makes few trials.
    """
    found = []
    for mode in _MODES:
        for workers in (0, 2):
            found += _network(target, mode, workers)
        for fault, play, must in _HOSTILE:
            found.append(
                FaultCase(
                    fault=fault, way=f"{target.name} remote, {mode}", quick=mode == "ranges",
                    tries=partial(play, target, mode), must=must,
                )
            )  # fmt: skip
    runs = _QUICK_RUNS if quick else _RUNS
    found += [
        FaultCase(
            fault="C1", way=f"{target.name} remote, {way}",
            tries=partial(try_remote.read_without_room, target, disk),
            must=_NO_ROOM if disk else replace(_NO_ROOM, details=("file", "limit")),
            quick=not disk,
        )
        for disk, way in ((False, "a file that may not grow"), (True, "a full disk"))
    ]  # fmt: skip
    return found + cases_cache.cases(target, runs) + _damages(target, quick=quick)


def _network(target: FaultTarget, mode: str, workers: int) -> list[FaultCase]:
    way = f"{target.name} remote, {mode}, workers {workers}"
    quick = mode == "cache" and workers == 0
    found = []
    for fault, make_fault in _FAULTS:
        tries = partial(
            try_remote.play_failing, target, mode, workers, partial(make_fault, None), False
        )
        found.append(
            FaultCase(
                fault=fault, way=f"{way}, lasting", tries=tries, must=_UNREADABLE, quick=quick
            )
        )
        tries = partial(
            try_remote.play_failing, target, mode, workers, partial(make_fault, 1), True
        )
        once = quick and fault == "S1"
        found.append(
            FaultCase(fault=fault, way=f"{way}, once", tries=tries, must=_TRIED_AGAIN, quick=once)
        )
    tries = partial(
        try_remote.play_failing, target, mode, workers, partial(network.slow, 1000), False
    )
    found.append(FaultCase(fault="S4", way=way, tries=tries, must=_UNREADABLE, quick=quick))
    tries = partial(try_remote.play_replaced, target, mode, workers, "raise")
    found.append(FaultCase(fault="S5", way=way, tries=tries, must=_ANOTHER, quick=workers == 0))
    for policy in ("replace", "mask"):
        tries = partial(try_remote.play_replaced, target, mode, workers, policy)
        must = replace(_ANOTHER, kinds=(MENDED, *_ANOTHER.kinds))
        policy_way = f"{way}, on_error {policy}"
        found.append(FaultCase(fault="S5", way=policy_way, tries=tries, must=must, policy=policy))
    return found


def _damages(local: FaultTarget, *, quick: bool) -> list[FaultCase]:
    """Return the cases of damage to remote data."""
    found = []
    for mode in _MODES:
        target = try_remote.served_target(local, mode)
        found += mended_cases(target, _REACHES, quick=quick)
        for spec in OWN_SPECS:
            kinds = (*spec.kinds, "CorruptShardError", "MissingShardError")
            if (
                spec.fault == "D1" and mode == "ranges"
            ):  # offsets are not read: lengths say the same
                kinds = (*kinds, WHOLE)
            count = _FLIPS if spec.fault == "D1" and not quick else min(_DAMAGES, spec.count)
            tries = partial(
                try_damage.try_damages, target, ReadMode(verify="first_read"), spec.harms, count,
                spec.part,
            )  # fmt: skip
            found.append(
                FaultCase(
                    fault=spec.fault, way=f"{target.name}, read, {spec.part}", tries=tries,
                    must=Expectation(kinds=kinds, details=FILE_DETAILS, seconds=10.0), bound=300.0,
                )
            )  # fmt: skip
    return found
