"""All cells: of the core's own stores, and of what a plugin names.

Place in the flow: between the rows and the matrix. Makes: cells.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from dataclasses import replace

from seqdata.errors import ConfigError
from seqdata_testing.faults import reasons, remote, rows_d, rows_k, rows_r, rows_s, rows_v, rows_w
from seqdata_testing.faults.subject import FOREIGN, OWN, Subject
from seqdata_testing.faults.table import FAULTS, Cell

_QUICK_OF_OTHERS = tuple(f"D{number}" for number in range(1, 11))
_HOW_SERVED = "cache"


def all_cells(others: Sequence[Subject] = (), *, quick: bool = False) -> list[Cell]:
    """Give the cells of every fault, in the order of ``FAULTS``.

    Args:
        others: What plugins say how to write and open, beside the core's own.
        quick: Whether each tries little, for the cells that run at every change.
    """
    found = cells_of(OWN, quick=quick)
    foreign = [
        *rows_d.cells(FOREIGN, quick=quick),
        *rows_k.cells(FOREIGN, quick=quick),
        *rows_k.saved_cells(quick=quick),
    ]
    found += [replace(cell, form=FOREIGN.name) for cell in foreign]
    for subject in others:
        found += [
            replace(cell, quick=cell.quick and cell.fault in _QUICK_OF_OTHERS)
            for cell in cells_of(subject, quick=quick)
        ]
    order = list(FAULTS)
    return sorted(found, key=lambda cell: order.index(cell.fault))


def cells_of(subject: Subject, *, quick: bool = False) -> list[Cell]:
    """Give the cells of one kind of data, local and remote: each fault under each policy.

    Args:
        subject: How it is written and opened; it must have checksums.
        quick: Whether each tries little.
    """
    local = [
        *rows_d.cells(subject, quick=quick),
        *rows_d.mended_cells(subject, rows_d.REACHES, quick=quick),
        *rows_k.cells(subject, quick=quick),
        *rows_w.cells(subject),
        *rows_r.cells(subject),
        *rows_v.cells(subject, quick=quick),
    ]
    found = _placed(subject.name, local, remote=False)
    if subject.served is not None:
        served = remote.served_subject(subject, _HOW_SERVED)
        far = [
            *rows_s.cells(subject, quick=quick),
            *rows_w.cells(served, methods=rows_w.all_methods()[:1], mapped=False),
            *rows_r.cells(served, worlds=rows_r.WORLDS[:1], mapped=False),
            *rows_v.little_shared(served),
        ]
        slow = [replace(cell, quick=cell.quick and cell.fault[0] in "SC") for cell in far]
        found += _placed(f"{subject.name} remote", slow, remote=True)
    return found


def _placed(form: str, cells: Sequence[Cell], *, remote: bool) -> list[Cell]:
    """Give cells with their form, and one that says why for each that there is not."""
    made = [replace(cell, form=form) for cell in cells]
    there = {(cell.fault, cell.policy) for cell in made}
    return made + [
        Cell(fault=fault, way=f"{form}, on_error {policy}", form=form, policy=policy, reason=reason)
        for fault, policy, reason in reasons.why_not(remote=remote)
        if (fault, policy) not in there
    ]


def subject_named(name: str) -> Subject:
    """Give the subject that a plugin offers for the matrix.

    Args:
        name: Where it is: ``package.module:NAME``.

    Raises:
        ConfigError: If there is none.
    """
    try:
        found = pkgutil.resolve_name(name)
    except (ValueError, ImportError, AttributeError) as error:
        raise ConfigError(
            f"faults: no subject {name!r} ({error}), must be one; give package.module:NAME"
        ) from error
    if not isinstance(found, Subject):
        raise ConfigError(
            f"faults: {name!r} is a {type(found).__name__}, must be a Subject; name another"
        )
    return found
