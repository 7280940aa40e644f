"""What a loader hands out: a SequenceBatch, or a tuple or dict of chosen parts of it.

Models that exist already take ``(x, lengths, y)`` and know nothing of us. Place in the flow: the
last step before a batch leaves the Player. Reads: a batch. Makes: a tuple or dict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from seqdata.batch.axes import unknown_name
from seqdata.batch.batch import SequenceBatch
from seqdata.errors import ConfigError

PARTS = (
    "lengths", "ids", "weight", "start", "mask", "score", "num_tokens", "global_num_tokens",
    "update_num_tokens", "loss_scale", "sequence_scale", "lanes", "reset", "burn_in", "overlap",
    "lr_scale", "epoch", "number", "segments", "lengths_of",
)  # fmt: skip
"""What can be named beside the fields."""
_MARKS_FILLER = frozenset({"weight", "score"})


@dataclass(frozen=True, slots=True)
class Output:
    """Picks parts of a batch by name: fields first, then attributes of the batch.

    Args:
        names: What is picked, in this order.
        keyed: Whether a dict is made; else a tuple.
        alone: Whether the one part is handed out itself.

    Raises:
        ConfigError: If ``names`` is empty or a bare string.
    """

    names: Sequence[str]
    keyed: bool = False
    alone: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.names, str) or not self.names:
            option = "as_dict" if self.keyed else "as_tuple"
            raise ConfigError(
                f"loader: `{option}` is {self.names!r}, must be a tuple of names; write "
                f"('x', 'lengths')"
            )

    @property
    def marks_filler(self) -> bool:
        """Whether code that sees only these parts can tell filler rows."""
        return not _MARKS_FILLER.isdisjoint(self.names)

    def check(self, fields: Iterable[str]) -> None:
        """Refuse names that are neither a field nor a part of a batch.

        Raises:
            ConfigError: If there is one.
        """
        known = (*fields, *PARTS)
        for name in self.names:
            if name not in known:
                raise ConfigError(f"loader: {unknown_name(name, known)}")

    def __call__(self, batch: SequenceBatch) -> Any:
        """Pick the parts of one batch.

        Raises:
            ConfigError: If a name is not there.
        """
        parts = [self._part(batch, name) for name in self.names]
        if self.alone:
            return parts[0]
        return dict(zip(self.names, parts, strict=True)) if self.keyed else tuple(parts)

    def _part(self, batch: SequenceBatch, name: str) -> Any:
        if name in batch.data:
            return batch.data[name]
        if name not in PARTS:
            raise ConfigError(f"loader: {unknown_name(name, (*batch.data, *PARTS))}")
        return getattr(batch, name)


def output_of(as_tuple: Sequence[str] | None, as_dict: Sequence[str] | None) -> Output | None:
    """Give what the two options mean; None: the batch itself.

    Raises:
        ConfigError: If both are given, or one is no tuple of names.
    """
    if as_tuple is not None and as_dict is not None:
        raise ConfigError("loader: `as_tuple` and `as_dict` are both given, must be one; drop one")
    if as_tuple is not None:
        return Output(as_tuple)
    if as_dict is not None:
        return Output(as_dict, keyed=True)
    return None
