"""The output of a loader: a SequenceBatch, or a tuple or dict of chosen parts of it.

Existing models take ``(x, lengths, y)`` and not a SequenceBatch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from seqdata.batch.axes import format_unknown_name
from seqdata.batch.batch import SequenceBatch
from seqdata.errors import ConfigError, must_be

BATCH_PARTS = (
    "lengths", "ids", "weight", "start", "mask", "score", "num_tokens", "global_num_tokens",
    "update_num_tokens", "loss_scale", "sequence_scale", "lanes", "reset", "burn_in", "overlap",
    "lr_scale", "epoch", "number", "part", "part_epoch", "segments", "lengths_of",
)  # fmt: skip
"""Parts of a batch that can be chosen in addition to fields."""
_MARKS_FILLER = frozenset({"weight", "score"})


@dataclass(frozen=True, slots=True)
class Output:
    """Selects parts of a batch by name: fields first, then attributes of the batch.

    Args:
        names: The selected parts, in this order.
        is_dict: Whether the result is a dict; otherwise a tuple.
        is_single: Whether the only part itself is the result.

    Raises:
        ConfigError: If ``names`` is empty or a bare string.
    """

    names: Sequence[str]
    is_dict: bool = False
    is_single: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.names, str) or not self.names:
            option = "as_dict" if self.is_dict else "as_tuple"
            raise ConfigError(
                must_be(
                    f"loader: `{option}`",
                    "a tuple of names",
                    repr(self.names),
                    "Write ('x', 'lengths')",
                )
            )

    @property
    def has_filler_marks(self) -> bool:
        """Whether these parts mark filler rows."""
        return not _MARKS_FILLER.isdisjoint(self.names)

    def check(self, fields: Iterable[str]) -> None:
        """Raise if a name is neither a field nor a part of a batch.

        Raises:
            ConfigError: If a name is unknown.
        """
        allowed_names = (*fields, *BATCH_PARTS)
        for name in self.names:
            if name not in allowed_names:
                raise ConfigError(f"loader: {format_unknown_name(name, allowed_names)}")

    def __call__(self, batch: SequenceBatch) -> Any:
        """Return the selected parts of a batch.

        Raises:
            ConfigError: If a name is unknown.
        """
        values = [self._select(batch, name) for name in self.names]
        if self.is_single:
            return values[0]
        return dict(zip(self.names, values, strict=True)) if self.is_dict else tuple(values)

    def _select(self, batch: SequenceBatch, name: str) -> Any:
        if name in batch.data:
            return batch.data[name]
        if name not in BATCH_PARTS:
            raise ConfigError(f"loader: {format_unknown_name(name, (*batch.data, *BATCH_PARTS))}")
        return getattr(batch, name)


def make_output(as_tuple: Sequence[str] | None, as_dict: Sequence[str] | None) -> Output | None:
    """Return the output of the two options; None: the batch itself.

    Raises:
        ConfigError: If both are given, or one is not a tuple of names.
    """
    if as_tuple is not None and as_dict is not None:
        raise ConfigError(
            "loader: `as_tuple` and `as_dict` cannot both be given. Leave one of them out."
        )
    if as_tuple is not None:
        return Output(as_tuple)
    if as_dict is not None:
        return Output(as_dict, is_dict=True)
    return None
