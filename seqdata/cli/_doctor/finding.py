"""Result of a check, and its remedy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

FindingState = Literal["ok", "note", "warn", "bad"]
"""Severity: ``note`` informs, ``warn`` costs time or surprises, ``bad`` fails or is wrong."""


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """Result of a check.

    Attributes:
        subject: ``machine``, ``software``, a location or a run file.
        name: Name of the check.
        state: Severity of the result.
        seen: The observation.
        fix: Remedy; empty if none is needed.
    """

    subject: str
    name: str
    state: FindingState
    seen: str
    fix: str = ""

    def to_plain(self) -> dict[str, Any]:
        """Return the finding as plain data, with the subject as ``place``."""
        plain = asdict(self)
        return {"place": plain.pop("subject"), **plain}
