"""Classes of a field, and their indices: encoded labels."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, DecodeError, must_be
from seqdata.fitting.field_chunk import FieldChunk, list_values, refuse_codes
from seqdata.logical_types import LogicalType
from seqdata.protocols import Field
from seqdata.storage.fields import has_numbers, is_text


class Codes(dict[Any, int]):
    """Value -> code, with a rule for unknown values.

    Args:
        codes: Value -> code.
        unknown: Code of every other value; None: such a value raises DecodeError.
        message: Message of this error, with ``{}`` for the value: ``"label {} of field 'y' ..."``.
    """

    def __init__(self, codes: dict[Any, int], unknown: int | None, message: str) -> None:
        super().__init__(codes)
        self._unknown = unknown
        self._message = message

    def __missing__(self, value: object) -> int:
        if self._unknown is None:
            raise DecodeError(self._message.format(repr(value)[:80]))
        return self._unknown

    def encode(self, values: Any, count: int) -> NDArray[np.int64]:
        """Return the codes of values, int64 (n,)."""
        return np.fromiter(map(self.__getitem__, values), dtype=np.int64, count=count)


@dataclass(frozen=True, slots=True)
class Labels:
    """Estimator that encodes a field of strings or integers as class indices.

    Indices are integers in [0, number of classes). Classes are sorted: integers by value, strings
    by code points. A field with one value per timestep is encoded timestep by timestep.

    Args:
        unknown: Treatment of a label that was not fitted: ``"error"``, or an index for all such
            labels, such as -100, which the losses of torch ignore.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> from seqdata import fit
        >>> rows = [{"x": [1], "y": "no"}, {"x": [2], "y": "yes"}, {"x": [3], "y": "no"}]
        >>> labels = fit(rows, {"y": Labels()})["y"]
        >>> labels.classes, labels.counts.tolist()
        (['no', 'yes'], [2, 1])
    """

    unknown: Literal["error"] | int = "error"

    def __post_init__(self) -> None:
        is_integer = isinstance(self.unknown, int) and not isinstance(self.unknown, bool)
        if self.unknown != "error" and not (is_integer and abs(int(self.unknown)) < 1 << 63):
            needed = "'error' or an integer such as -100, of 64 bits"
            raise ConfigError(must_be("Labels: `unknown`", needed, repr(self.unknown)))

    def start(self, name: str, field: Field) -> ClassesAccumulator:
        """Return an accumulator of classes; see ``Estimator``."""
        if field.shape or not (is_text(field) or has_numbers(field, "iub")):
            shape = f" of shape {field.shape}" if field.shape else ""
            raise ConfigError(
                must_be(
                    f"fit: field {name!r} of Labels",
                    "of strings or of integers",
                    f"of {field.dtype}{shape}",
                )
            )
        return ClassesAccumulator(self)


class ClassesAccumulator:
    """Counts each class.

    Args:
        estimator: The estimator.
    """

    def __init__(self, estimator: Labels) -> None:
        self._estimator = estimator
        self._counts: Counter[Any] = Counter()

    def measure(self, chunk: FieldChunk) -> Counter[Any]:
        """Return the classes of a chunk and their counts."""
        counts = chunk.count_values()
        return Counter({v if isinstance(v, str) else int(v): n for v, n in counts.items()})

    def add(self, partial: Counter[Any]) -> None:
        """Add the counts of a chunk."""
        self._counts.update(partial)

    def end_pass(self) -> bool:
        """Return False: one pass is enough."""
        return False

    def make_plain(self) -> dict[str, Any]:
        """Return the classes in order, and their counts."""
        classes = sorted(self._counts)
        counts = [self._counts[value] for value in classes]
        unknown = self._estimator.unknown
        return {"kind": "labels", "unknown": unknown, "classes": classes, "counts": counts}


class FittedLabels:
    """Fitted classes of a field.

    Args:
        name: Name of the field.
        plain: Result of the accumulator.

    Attributes:
        classes: Classes in the order of their indices.
        counts: int64 (classes,), number of occurrences of each.
    """

    def __init__(self, name: str, plain: dict[str, Any]) -> None:
        self.name = name
        self.by: str | None = None
        self.classes: list[Any] = list(plain["classes"])
        self.counts = np.array(plain["counts"], dtype=np.int64)
        self._unknown = None if plain["unknown"] == "error" else int(plain["unknown"])
        self._codes = Codes(
            {value: index for index, value in enumerate(self.classes)},
            self._unknown,
            f"statistics: label {{}} of field {name!r} was not in the data that was fitted. Fit "
            "over it, too, or use Labels(unknown=-100).",
        )

    def apply(
        self,
        values: Any,
        lengths: NDArray[np.int64],
        groups: Any,
        logical: LogicalType | None = None,
    ) -> Any:
        """Return the class indices of labels, int64 (n,).

        Args:
            values: A list of strings, or integers (n,).
            lengths: Not used.
            groups: Not used.
            logical: Logical type of the integers in their store; None: they are numbers.

        Raises:
            DecodeError: If a label is unknown, unless ``unknown`` allows it.
            ConfigError: If strings were fitted, but ``values`` are integers without categories.
        """
        del lengths, groups
        if isinstance(values, list):
            return self._codes.encode(values, len(values))
        refuse_codes(self.name, self.classes, logical)
        distinct, inverse = np.unique(values, return_inverse=True)
        labels = list_values(distinct, logical)
        codes = self._codes.encode(
            [v if isinstance(v, str) else int(v) for v in labels], len(labels)
        )
        return codes[inverse.reshape(-1)]

    def inverse(self, values: Any, groups: Any = None) -> Any:
        """Return the labels of class indices: a list of strings, or an array of integers.

        The index of unknown labels becomes None, in a list, unless it is that of a class.

        Raises:
            ConfigError: If an index is not that of a class, or values are not integers.
        """
        del groups
        numbers = _to_numbers(values)
        has_strings = bool(self.classes) and isinstance(self.classes[0], str)
        is_unknown = np.zeros(numbers.shape, dtype=bool)
        if self._unknown is not None and not self._is_ambiguous:
            is_unknown = numbers == self._unknown
        bad = ((numbers < 0) | (numbers >= len(self.classes))) & ~is_unknown
        if bad.any():
            raise ConfigError(
                must_be(
                    f"statistics: a class index of {self.name!r}",
                    f"in [0, {len(self.classes)})",
                    f"{numbers[bad].reshape(-1)[0]}",
                    "Pass the argmax over classes, without padding",
                )
            )
        if has_strings or is_unknown.any():
            table = np.array([*self.classes, None], dtype=object)
            return table[np.where(is_unknown, -1, numbers)].tolist()
        is_large = bool(self.classes) and self.classes[-1] > np.iinfo(np.int64).max
        return np.array(self.classes, dtype=np.uint64 if is_large else np.int64)[numbers]

    def decode_groups(self, values: Any) -> list[Any]:
        """Return the labels of the class indices of groups; None for an unknown label.

        Raises:
            ConfigError: If an index is not that of a class, or may be that of an unknown label.
        """
        numbers = _to_numbers(values).reshape(-1)
        if self._is_ambiguous and (numbers == self._unknown).any():
            raise ConfigError(
                must_be(
                    f"statistics: the index of unknown labels of {self.name!r}",
                    "different from those of classes, to decode groups",
                    f"{self._unknown}, that of class {self.classes[self._unknown or 0]!r}",
                    f"Fit {self.name!r} with Labels(unknown=-100)",
                )
            )
        return list(self.inverse(numbers))

    @property
    def _is_ambiguous(self) -> bool:
        """Whether unknown labels have the index of a class."""
        return self._unknown is not None and 0 <= self._unknown < len(self.classes)


def _to_numbers(values: Any) -> NDArray[np.int64]:
    """Return integers of a list, array or tensor.

    Raises:
        ConfigError: If the values are neither integers nor booleans.
    """
    array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    if array.dtype.kind not in "iub" and array.size:
        raise ConfigError(
            must_be(
                "statistics: the dtype of class indices", "an integer type", f"{array.dtype}",
                "Pass logits.argmax(-1)",
            )
        )  # fmt: skip
    return array.astype(np.int64)
