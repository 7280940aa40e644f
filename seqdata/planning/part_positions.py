"""Positions of the parts of a mixture in their own epochs: in states, and where parts change.

A part goes through its own epochs, whatever the others do. To continue with other parts, a run
needs for each part its own epoch, the number of its trained batches, and a digest of what its
batches are made of: nothing of the data itself. Place in the flow: plans -> states, and states ->
the first batch of each part in the next segment.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, unquote

from seqdata.errors import ConfigError, ResumeError, must_be
from seqdata.index import SequenceIndex
from seqdata.planning.build import describe_policy
from seqdata.protocols import Policy

_MARK = "@"
_NUMBERS = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})")
_PART = re.compile(r"([^=;@]*)=([\w-]{6})@([0-9]{1,18})\.([0-9]{1,18})")
_DIGEST_BYTES = 4  # only to find the part that has changed: all data has a longer digest


class PartPosition(NamedTuple):
    """Position of a part in its own epochs.

    Attributes:
        epoch: The part's own epoch.
        batch: Number of batches of that epoch that are trained.
    """

    epoch: int
    batch: int


@dataclass(frozen=True, slots=True)
class PartPositions:
    """The positions at which parts begin with a mixture that replaces an earlier one.

    Attributes:
        values: Positions of each part, in the order of the data.
    """

    values: tuple[PartPosition, ...]

    @property
    def digest(self) -> str:
        """All positions as a string."""
        return _MARK + ",".join(f"{own.epoch}.{own.batch}" for own in self.values)

    @staticmethod
    def is_text(text: str) -> bool:
        """Return whether a string is a ``digest`` of positions."""
        return text.startswith(_MARK)

    @classmethod
    def from_text(cls, text: str, count: int) -> PartPositions:
        """Return the positions of a ``digest``.

        Raises:
            ConfigError: If it is damaged, or does not have ``count`` positions.
        """
        found = [_NUMBERS.fullmatch(own) for own in text.removeprefix(_MARK).split(",")]
        values = [PartPosition(int(own[1]), int(own[2])) for own in found if own]
        if len(values) != len(found) or len(values) != count:
            raise ConfigError(
                f"policy 'mix': saved positions must be those of {count} parts, but are "
                f"{text!r:.60}. They are damaged."
            )
        return cls(tuple(values))

    def count_batches(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Return the number of batches of each part before its position.

        Args:
            sizes: Number of batches of an own epoch of each part.
        """
        pairs = zip(self.values, sizes, strict=True)
        return tuple(own.epoch * size + own.batch for own, size in pairs)


@dataclass(frozen=True, slots=True)
class SavedPart:
    """A part of a mixture in a saved state.

    Attributes:
        digest: Digest of the inputs of its batches.
        position: Position of the part.
    """

    digest: str
    position: PartPosition


@dataclass(frozen=True, slots=True)
class SavedParts:
    """The parts of a mixture in a saved state.

    Attributes:
        epoch_batches: Number of batches of the epoch of the mixture.
        parts: Name -> the saved part.
    """

    epoch_batches: int
    parts: Mapping[str, SavedPart]

    @property
    def text(self) -> str:
        """The entry of a state, about 20 characters for each part."""
        parts = [
            f"{quote(name, safe=' ')}={part.digest}@{part.position.epoch}.{part.position.batch}"
            for name, part in self.parts.items()
        ]
        return ";".join([str(self.epoch_batches), *parts])

    @classmethod
    def from_text(cls, text: str) -> SavedParts:
        """Return the parts that a string describes.

        Raises:
            ResumeError: If it is damaged.
        """
        count, *rest = text.split(";")
        found = [_PART.fullmatch(part) for part in rest]
        if not count.isdecimal() or not found or not all(found):
            raise ResumeError(
                must_be("resume: `parts` of the state", "parts of a mixture", f"{text!r:.60}")
                + ". The state is damaged."
            )
        parts = {
            unquote(part[1]): SavedPart(part[2], PartPosition(int(part[3]), int(part[4])))
            for part in found
            if part
        }
        return cls(int(count), parts)


class PartChanges(NamedTuple):
    """Differences between the parts of a mixture and those of a state.

    Attributes:
        added: Names of the parts that only the mixture has.
        removed: Names of the parts that only the state has.
        changed: Names of the parts with other data, or another policy.
    """

    added: list[str]
    removed: list[str]
    changed: list[str]

    @classmethod
    def from_saved(cls, saved: Mapping[str, SavedPart], digests: Mapping[str, str]) -> PartChanges:
        """Return the changes from the parts of a state to the current ones, name -> digest."""
        both = [name for name in digests if name in saved]
        return cls(
            [name for name in digests if name not in saved],
            [name for name in saved if name not in digests],
            [name for name in both if saved[name].digest != digests[name]],
        )

    def __str__(self) -> str:
        texts = [
            f"{list_names(names)} {verb}"
            for names, verb in (
                (self.added, _agree(self.added, "was added", "were added")),
                (self.removed, _agree(self.removed, "was removed", "were removed")),
                (
                    self.changed,
                    _agree(self.changed, "has", "have") + " other data or another policy",
                ),
            )
            if names
        ]
        return ", ".join(texts) or "other weights or options"


def list_names(names: Iterable[str]) -> str:
    """Return the quoted names of parts, joined by "and"."""
    return " and ".join(map(repr, names))


def _agree(names: Sequence[str], singular: str, plural: str) -> str:
    return singular if len(names) == 1 else plural


def digest_part(index: SequenceIndex, policy: Policy) -> str:
    """Return a digest of the inputs of a part's batches (6 characters)."""
    text = f"{index.fingerprint};{describe_policy(policy)}"
    digest = hashlib.sha256(text.encode()).digest()[:_DIGEST_BYTES]
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
