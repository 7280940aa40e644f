"""A line of a table: a figure, what a plain permutation gives, and whether the aim is reached."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """A figure of a table.

    Args:
        table: Letter of the table of issue 39; F: the places of sequences over many epochs.
        case: Case that was tried.
        figure: Name of the measured figure.
        here: Of seqdata.
        plain: Of a plain global permutation of the same sequences.
        aim: What it must be; empty: there is no aim.
        reached: Whether it is so; None: there is no aim.
    """

    table: str
    case: str
    figure: str
    here: float
    plain: float
    aim: str = ""
    reached: bool | None = None

    def within(self, points: float) -> Row:
        """Return it with the aim to be at most so far below the permutation."""
        aim = f">= permutation - {points:g}"
        return self._replace(aim=aim, reached=self.here >= self.plain - points)

    def at_least(self, share: float) -> Row:
        """Return it with the aim to be at least a share of the permutation."""
        aim = f">= {share:g} x permutation"
        return self._replace(aim=aim, reached=self.here >= share * self.plain)

    def at_most(self, times: float) -> Row:
        """Return it with the aim to be at most so many times the permutation."""
        aim = f"<= {times:g} x permutation"
        return self._replace(aim=aim, reached=self.here <= times * self.plain)

    def near(self, points: float) -> Row:
        """Return it with the aim to be so near to the permutation."""
        aim = f"permutation +- {points:g}"
        return self._replace(aim=aim, reached=abs(self.here - self.plain) <= points)

    def below(self, limit: float) -> Row:
        """Return it with the aim to have at most this magnitude, whatever the permutation has."""
        return self._replace(aim=f"<= {limit:g}", reached=abs(self.here) <= limit)
