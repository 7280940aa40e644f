"""Cases D1 to D9: damage to files, for every way to open and to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from seqdata_testing.faults import try_damage
from seqdata_testing.faults.fault_case import FaultCase
from seqdata_testing.faults.outcome import MENDED, WHOLE, Expectation
from seqdata_testing.faults.targets import FaultTarget
from seqdata_testing.faults.try_damage import DamageMaker, ReadMode

SHARD_DETAILS = ("dataset", "shard", "file", "offset", "length")
FILE_DETAILS = ("dataset", "file")
NAMED = 0.95  # of the errors about values name the sequence
_WAYS = {None: "read", 0: "workers 0", 2: "workers 2"}
_MOST = {None: 1000, 0: 20, 2: 3}  # trials; a loader with workers takes a second to start
_MOST_OF_A_QUICK_ONE = {None: 40, 0: 4, 2: 1}
_OPENING = 5.0  # seconds
_MENDED = {0: 20, 2: 2}  # trials of loaders that go on
_GOING_ON = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DamageSpec:
    """A kind of damage, and its expected outcome.

    Attributes:
        fault: Name of the fault in ``FAULTS``.
        harms: Function that draws the damage.
        part: Kind of files: ``shards`` or the ``others``.
        kinds: Allowed outcomes.
        details: Details that the errors must have.
        count: Maximum number of trials.
        named: Fraction of the errors that must name the sequence.
        off: Reason why it is not detected with ``verify`` off; empty: it is detected.
        unread: Whether it may be in files that are not read with ``verify`` off.
    """

    fault: str
    harms: DamageMaker
    part: str = "shards"
    kinds: tuple[str, ...]
    details: tuple[str, ...] = SHARD_DETAILS
    count: int = 100
    named: float = 0.0
    off: str = ""
    unread: bool = False


_BELIEVED = "off asks for no look at values and lengths"
OWN_SPECS = (
    DamageSpec(
        fault="D1", harms=try_damage.draw_value_flips, kinds=("CorruptSampleError",), count=1000,
        details=(*SHARD_DETAILS, "field"), named=NAMED, off=_BELIEVED,
    ),
    DamageSpec(
        fault="D2", harms=try_damage.draw_other_flips, kinds=("CorruptShardError", WHOLE),
        count=300,
    ),
    DamageSpec(
        fault="D2", harms=try_damage.draw_other_flips, part="others", kinds=("DataError", WHOLE),
        details=FILE_DETAILS, count=300, off=_BELIEVED,
    ),
    DamageSpec(fault="D3", harms=try_damage.draw_cuts, kinds=("CorruptShardError",)),
    DamageSpec(
        fault="D3", harms=try_damage.draw_cuts, part="others", kinds=("DataError",),
        details=FILE_DETAILS, unread=True,
    ),
    DamageSpec(fault="D4", harms=try_damage.draw_block_cuts, kinds=("CorruptShardError",)),
    DamageSpec(fault="D5", harms=try_damage.list_emptied_files, kinds=("CorruptShardError",)),
    DamageSpec(
        fault="D5", harms=try_damage.list_emptied_files, part="others", kinds=("DataError",),
        details=FILE_DETAILS, unread=True,
    ),
    DamageSpec(
        fault="D6", harms=try_damage.list_zeroed_pages, off=_BELIEVED,
        kinds=("CorruptSampleError", "CorruptShardError"),
    ),
    DamageSpec(fault="D7", harms=try_damage.list_removed_files, kinds=("MissingShardError",)),
    DamageSpec(
        fault="D7", harms=try_damage.list_removed_files, part="others", details=FILE_DETAILS,
        kinds=("MissingShardError", "IncompleteDatasetError"), unread=True,
    ),
    DamageSpec(
        fault="D8", harms=try_damage.list_swapped_files,
        kinds=("CorruptShardError", "FingerprintMismatch"),
    ),
    DamageSpec(
        fault="D9", harms=try_damage.list_stale_files, part="others", kinds=("DataError",),
        details=FILE_DETAILS, unread=True,
    ),
)  # fmt: skip
REACHES = tuple(spec for spec in OWN_SPECS if spec.fault in ("D1", "D6"))
"""Damage to sequences, with which a store can still be opened."""

_FOREIGN = ("dataset", "shard", "file")
FOREIGN_SPECS = (
    DamageSpec(fault="D3", harms=try_damage.draw_cuts, kinds=("DataError",), details=_FOREIGN),
    DamageSpec(
        fault="D4", harms=try_damage.draw_block_cuts, kinds=("CorruptShardError",),
        details=_FOREIGN,
    ),
    DamageSpec(
        fault="D5", harms=try_damage.list_emptied_files, kinds=("DataError",),
        details=_FOREIGN,
    ),
)  # fmt: skip
_CANNOT = {
    "D1": "such files have no checksums: opening says that they are unverified",
    "D2": "as D1; that no byte ends the process is shown by tests/fuzz",
    "D6": "as D1",
    "D7": "such a folder has no manifest: nobody knows which files belong to it (a saved dataset "
    "has one)",
    "D8": "as D7; a state of other data is refused by its fingerprint",
}


def cases(target: FaultTarget, *, quick: bool = False) -> list[FaultCase]:
    """Return the cases of D1 to D9.

    Args:
        target: Dataset to damage.
        quick: Whether each case makes few trials.
    """
    checked = bool(target.verified)
    none = {} if checked else _CANNOT
    found = [
        FaultCase(fault=fault, way=target.name, reason=reason) for fault, reason in none.items()
    ]
    for spec in OWN_SPECS if checked else FOREIGN_SPECS:
        for verify in target.verify:
            if spec.off and verify == "off":
                way = f"{target.name}, verify off, {spec.part}"
                found.append(FaultCase(fault=spec.fault, way=way, reason=spec.off))
                continue
            found += [_case(target, spec, verify, workers, quick=quick) for workers in _WAYS]
    return found


def cases_of_spec(target: FaultTarget, spec: DamageSpec, *, quick: bool = False) -> list[FaultCase]:
    """Return the cases of one kind of damage, for every way to open and to read."""
    verify = target.verify[-1]
    return [_case(target, spec, verify, workers, quick=quick) for workers in _WAYS]


def mended_cases(
    target: FaultTarget, specs: Sequence[DamageSpec], *, quick: bool = False
) -> list[FaultCase]:
    """Return the cases of loaders that replace or mask bad sequences and continue.

    Args:
        target: Dataset to damage.
        specs: The damage to sequences.
        quick: Whether each case makes few trials.
    """
    found = []
    for policy in ("replace", "mask"):
        for spec in specs:
            for workers in (0, 2):
                count = min(spec.count, _MENDED[workers], _MOST_OF_A_QUICK_ONE[2] if quick else 99)
                mode = ReadMode(verify=target.verify[-1], workers=workers, policy=policy)
                tries = partial(try_damage.try_damages, target, mode, spec.harms, count, spec.part)
                must = Expectation(
                    kinds=(MENDED, *spec.kinds[1:]), details=FILE_DETAILS, seconds=_GOING_ON
                )
                way = f"{target.name}, workers {workers}, on_error {policy}, {spec.part}"
                found.append(
                    FaultCase(fault=spec.fault, way=way, tries=tries, must=must, policy=policy,
                         bound=120.0)
                )  # fmt: skip
    return found


def _case(
    target: FaultTarget, spec: DamageSpec, verify: str, workers: int | None, *, quick: bool
) -> FaultCase:
    count = min(spec.count, (_MOST_OF_A_QUICK_ONE if quick else _MOST)[workers])
    kinds = (*spec.kinds, WHOLE) if spec.unread and verify == "off" else spec.kinds
    return FaultCase(
        fault=spec.fault,
        way=f"{target.name}, verify {verify}, {_WAYS[workers]}, {spec.part}",
        tries=partial(
            try_damage.try_damages,
            target,
            ReadMode(verify=verify, workers=workers),
            spec.harms,
            count,
            spec.part,
        ),
        must=Expectation(kinds=kinds, details=spec.details, seconds=_OPENING),
        quick=workers is None and verify == target.verify[-1],
        named=spec.named,
    )
