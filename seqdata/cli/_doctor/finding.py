"""One thing that was looked at: how it is, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FindingState = Literal["ok", "note", "warn", "bad"]
"""``note`` is worth knowing, ``warn`` costs time or surprises, ``bad`` fails or is wrong."""


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """What was seen.

    Attributes:
        place: ``machine``, ``software``, a location or a run file.
        name: What was looked at.
        state: How it is.
        seen: What it is.
        fix: What to do; empty where there is nothing to do.
    """

    place: str
    name: str
    state: FindingState
    seen: str
    fix: str = ""
