"""More of rows D2, D7 and D9: files that are kept, saved datasets, other data under an old path."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from seqdata_testing.faults import cases_damage, try_damage, try_saved_files
from seqdata_testing.faults.cases_damage import FILE_DETAILS, DamageSpec
from seqdata_testing.faults.fault_case import FaultCase
from seqdata_testing.faults.outcome import WHOLE, Expectation
from seqdata_testing.faults.targets import FOREIGN, OWN, FaultTarget, SavedFile

_OF_THE_CORE = {
    OWN.name: (try_saved_files.MEASURED, try_saved_files.RUN_FILE),
    FOREIGN.name: (try_saved_files.COUNTED,),
}
_OPENING = 5.0  # seconds
_FLIPS, _QUICK_FLIPS = 100, 10  # in each region of a file
_REOPENED = {None: "unpickled", 2: "workers 2"}
_SAVED_SPECS = (
    DamageSpec(
        fault="D7", harms=try_damage.list_removed_files, kinds=("MissingShardError",),
        details=FILE_DETAILS,
    ),
    DamageSpec(
        fault="D2", harms=try_damage.draw_other_flips, part="others", details=FILE_DETAILS,
        kinds=("MissingShardError", "CorruptShardError", WHOLE),
    ),
)  # fmt: skip


def cases(target: FaultTarget, *, quick: bool = False) -> list[FaultCase]:
    """Return the cases of a kind of data on this machine.

    Args:
        target: What is kept of, and replaced.
        quick: Whether each tries little.
    """
    files = (*target.saved_files, *_OF_THE_CORE.get(target.name, ()))
    found = [_make_flip_case(target, file, _QUICK_FLIPS if quick else _FLIPS) for file in files]
    for workers, detail in _REOPENED.items():
        verify = target.verify[-1]
        found.append(
            FaultCase(
                fault="D9", way=f"{target.name}, other data under the old path, {detail}",
                tries=partial(try_saved_files.reopen_replaced, target, verify, workers),
                must=Expectation(
                    kinds=("FingerprintMismatch", "ConfigError"), details=("dataset",),
                    texts=("must be the data that was opened",), delivered=0,
                    happened={try_saved_files.REPLACED: 1}, seconds=_OPENING,
                ),
                quick=target is OWN and workers is None,
            )
        )  # fmt: skip
    return found


def saved_cases(*, quick: bool = False) -> list[FaultCase]:
    """Return the cases of datasets that the datasets library saved."""
    return [
        replace(case, quick=case.quick and case.fault == "D7")
        for spec in _SAVED_SPECS
        for case in cases_damage.cases_of_spec(try_saved_files.SAVED, spec, quick=quick)
    ]


def _make_flip_case(target: FaultTarget, file: SavedFile, count: int) -> FaultCase:
    return FaultCase(
        fault="D2", way=f"{target.name}, {file.name}, each region",
        tries=partial(try_saved_files.flip_saved_file, file, count),
        must=Expectation(
            kinds=file.kinds, happened={try_saved_files.CHANGED: count}, seconds=_OPENING,
        ),
        bound=300.0, quick=file in target.saved_files,
    )  # fmt: skip
