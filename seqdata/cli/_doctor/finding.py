"""The result of one check, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FindingState = Literal["ok", "note", "warn", "bad"]
"""``note`` is worth knowing, ``warn`` costs time or surprises, ``bad`` fails or is wrong."""


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """The result of one check.

    Attributes:
        place: ``machine``, ``software``, a location or a run file.
        name: What was checked.
        state: How serious it is.
        seen: What was found.
        fix: What to do; empty where there is nothing to do.
    """

    place: str
    name: str
    state: FindingState
    seen: str
    fix: str = ""
