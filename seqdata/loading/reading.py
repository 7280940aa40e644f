"""What is read of a store: fields chosen, axis and shift checked once, spans widened per batch.

Place in the flow: a step's spans -> columns. Reads: a store. Makes: columns, and the index that is
planned over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.axes import Axes, unknown_name
from seqdata.errors import ConfigError
from seqdata.index import SequenceIndex
from seqdata.loading.options import PlayOptions
from seqdata.loading.output import Output
from seqdata.protocols import Store

TARGETS = "targets"


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """Reads the chosen fields of a store.

    Attributes:
        store: What is read.
        axis: The axis that spans cut.
        plain: Fields that are read as spans say.
        shifted: The field that is read ``shift`` timesteps further; None without a shift.
        shift: Timesteps between inputs and targets.
        axes: Which field runs along which axis.
    """

    store: Store
    axis: str
    plain: tuple[str, ...]
    shifted: str | None
    shift: int
    axes: Axes

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields in ``batch.data``."""
        return self.plain if self.shifted is None else (*self.plain, self.shifted, TARGETS)

    def index(self) -> SequenceIndex:
        """Give the lengths that are planned over."""
        index = SequenceIndex.of_store(self.store)
        return index.shifted(self.axis, self.shift) if self.shift else index

    def columns(
        self, spans: NDArray[np.int64], *, together: bool, horizon: int = 0
    ) -> dict[str, Any]:
        """Read spans: what is shifted goes on ``shift`` timesteps further.

        Args:
            spans: int64 (n, 3): sequence, start, stop.
            together: Whether inputs and targets are one column, ``shift`` timesteps longer; else
                targets are a column of their own.
            horizon: Timesteps of a window's future, read behind every span.
        """
        if horizon:
            spans = spans + np.array([0, 0, horizon])
        if self.shifted is None:
            return self.store.read(spans, self.plain, axis=self.axis)
        columns = self.store.read(spans, self.plain, axis=self.axis) if self.plain else {}
        further = spans.copy()
        further[:, 2] += np.where(spans[:, 2] > spans[:, 1], self.shift, 0)
        if together:
            return columns | self.store.read(further, (self.shifted,), axis=self.axis)
        columns |= self.store.read(spans, (self.shifted,), axis=self.axis)
        further[:, 1] += further[:, 2] - spans[:, 2]
        targets = self.store.read(further, (self.shifted,), axis=self.axis)
        return columns | {TARGETS: targets[self.shifted]}


def reading_of(store: Store, axis: str, options: PlayOptions, output: Output | None) -> Reading:
    """Choose what is read.

    Raises:
        ConfigError: If a field or the axis is not there, or the shift cannot be meant.
    """
    if axis not in store.lengths_of:
        have = ", ".join(store.lengths_of)
        raise ConfigError(
            f"loader: the policy plans on axis {axis!r}, must be one of {have}; pass `axis` to it"
        )
    wanted = _wanted(store, axis, options, output)
    for name in wanted:
        if name not in store.fields:
            raise ConfigError(f"loader: `fields` names {unknown_name(name, store.fields)}")
    shifted, shift = _shift(store, axis, options.shift, wanted)
    axes = Axes(
        axis,
        {name: store.fields[name].axis for name in wanted},
        {} if shifted is None else {shifted: shift},
    )
    plain = tuple(name for name in wanted if name != shifted)
    return Reading(store, axis, plain, shifted, shift, axes)


def _wanted(
    store: Store, axis: str, options: PlayOptions, output: Output | None
) -> tuple[str, ...]:
    if options.fields is not None:
        return tuple(dict.fromkeys(options.fields))
    if output is None or options.transform is not None or options.collator is not None:
        return tuple(store.fields)
    names = set(output.names)
    if options.shift and TARGETS in names:
        ragged = (name for name in store.fields if store.fields[name].axis == axis)
        names.update(options.shift if isinstance(options.shift, Mapping) else ragged)
    output.check((*store.fields, TARGETS) if options.shift else store.fields)
    return tuple(name for name in store.fields if name in names)


def _shift(
    store: Store, axis: str, shift: int | Mapping[str, int], wanted: tuple[str, ...]
) -> tuple[str | None, int]:
    ragged = [name for name in wanted if store.fields[name].axis == axis]
    if isinstance(shift, Mapping):
        if len(shift) != 1:
            raise ConfigError(
                f"loader: `shift` is {dict(shift)!r}, must name one field; it gives `targets`"
            )
        name, by = next(iter(shift.items()))
        if name not in ragged:
            raise ConfigError(f"loader: `shift` names {unknown_name(name, tuple(ragged))}")
    else:
        if shift and len(ragged) != 1:
            raise ConfigError(
                f"loader: `shift` is {shift!r} with {len(ragged)} fields on axis {axis!r} "
                f"({', '.join(ragged) or 'none'}), must say which; write shift={{'tokens': 1}}"
            )
        name, by = ragged[0] if ragged else "", shift
    if not isinstance(by, int) or by < 0:
        raise ConfigError(f"loader: `shift` is {by!r}, must be a whole number of timesteps")
    if by and TARGETS in wanted:
        raise ConfigError(
            "loader: the data has a field 'targets', must not have one with `shift`; leave it out "
            "of `fields`"
        )
    return (name, by) if by else (None, 0)
