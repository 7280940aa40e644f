"""Values of a field for an estimator, with their groups, and the protocols of estimators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seqdata.capabilities import get_base_keys
from seqdata.errors import ConfigError, DataError, must_be
from seqdata.logical_types import Categories, LogicalType
from seqdata.protocols import Field, Store
from seqdata.storage.fields import kind_of
from seqdata.storage.views import locate_sequence

NAN_RULES = ("error", "ignore", "impute")
NAN_PROBLEM = "values must be numbers, but one is nan. Fit with nan='ignore' or nan='impute'"


@dataclass(frozen=True, slots=True, eq=False)
class FieldChunk:
    """The values of a field in some spans.

    Attributes:
        store: Store of the field.
        name: Name of the field.
        values: (rows, features): a row per timestep, or per sequence. A list of strings if the
            field holds strings.
        lengths: int64 (spans,), rows of each span.
        sequences: int64 (spans,), index of the sequence of each span.
        groups: A value of the grouping field for each span; None without groups.
    """

    store: Store
    name: str
    values: Any
    lengths: NDArray[np.int64]
    sequences: NDArray[np.int64]
    groups: Any = None

    def count_values(self) -> Counter[Any]:
        """Return the distinct values and their counts: strings, or integers."""
        if isinstance(self.values, list):
            return Counter(self.values)
        distinct, counts = np.unique(self.values, return_counts=True)
        values = list_values(distinct, self.store.fields[self.name].logical)
        return Counter(dict(zip(values, counts.tolist(), strict=True)))

    def make_error(self, row: int, problem: str) -> DataError:
        """Return an error about a row that names the sequence."""
        span = int(np.searchsorted(np.cumsum(self.lengths), row, side="right"))
        base = int(self.store.base_numbers(self.sequences[span : span + 1])[0])
        key = get_base_keys(self.store, np.array([base]))[0]
        details = {**locate_sequence(self.store, base).details, "field": self.name}
        details.pop("remedy", None)
        return DataError.at(f"fit: sequence {key!r}, field {self.name!r}: {problem}", **details)


def list_values(distinct: NDArray[Any], logical: LogicalType | None) -> list[Any]:
    """Return distinct integers as Python objects: strings, if they are codes of strings."""
    codes: list[Any] = distinct.tolist()
    if not isinstance(logical, Categories):
        return codes
    return [logical.values[code] for code in codes]


def refuse_codes(name: str, fitted: Sequence[Any], logical: LogicalType | None) -> None:
    """Raise if strings were fitted, but integers are encoded whose strings are not known.

    Raises:
        ConfigError: If the fitted values are strings, and the field has no categories.
    """
    if fitted and isinstance(fitted[0], str) and not isinstance(logical, Categories):
        raise ConfigError(
            f"statistics: field {name!r} was fitted on strings, but holds integers whose strings "
            "are not known here. Pass `statistics.transform()` itself as `transform`, which gets "
            "the vocabulary of the store, or call its `bind_fields(store.fields)` first"
        )


class Accumulator(Protocol):
    """Accumulator of partial results over chunks, in one or more passes."""

    def measure(self, chunk: FieldChunk) -> Any:
        """Return the partial result of a chunk; may run in a worker, and changes no state."""
        ...

    def add(self, partial: Any) -> None:
        """Add a partial result, in any order."""
        ...

    def end_pass(self) -> bool:
        """Return whether another pass over the data is needed."""
        ...

    def make_plain(self) -> dict[str, Any]:
        """Return the fitted values as plain data."""
        ...


class Estimator(Protocol):
    """An estimator of a field, such as ``MeanStd`` or ``Labels``."""

    def start(self, name: str, field: Field) -> Accumulator:
        """Return an accumulator for a field.

        Raises:
            ConfigError: If the estimator does not support the values of the field.
        """
        ...


def list_groups(values: Any) -> tuple[list[Hashable], NDArray[np.int64]]:
    """Return the distinct groups of some spans, in order, and the group index of each span."""
    array = np.asarray(values, dtype=object) if isinstance(values, list) else np.asarray(values)
    groups, indices = np.unique(array, return_inverse=True)
    return groups.tolist(), indices.astype(np.int64).reshape(-1)


def check_number_field(estimator: str, name: str, field: Field) -> None:
    """Raise if a field does not hold numbers.

    Raises:
        ConfigError: If the field holds strings, or other values that are not numbers.
    """
    if not kind_of(field).is_array or isinstance(field.logical, Categories):
        raise ConfigError(
            must_be(
                f"fit: field {name!r} of {estimator}",
                "of numbers",
                f"of {field.logical or field.dtype}",
                "Use Labels or Vocabulary for strings",
            )
        )


def check_choice(owner: str, name: str, value: object, choices: Sequence[str]) -> None:
    """Raise if an argument is not one of the choices.

    Raises:
        ConfigError: If ``value`` is not a choice; the message lists the choices.
    """
    if not isinstance(value, str) or value not in choices:
        needed = ", ".join(map(repr, choices[:-1])) + f" or {choices[-1]!r}"
        raise ConfigError(must_be(f"{owner}: `{name}`", needed, repr(value)))


def to_plain_floats(values: NDArray[np.float64]) -> Any:
    """Return floats as nested lists for JSON, with NaN and infinities as strings."""
    if values.ndim == 0:
        number = float(values)
        return number if np.isfinite(number) else str(number)
    return [to_plain_floats(part) for part in values]
