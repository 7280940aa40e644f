"""Tokens of a field, and their ids: strings become token ids on an axis of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, must_be
from seqdata.fitting.field_chunk import FieldChunk, check_choice, list_values, refuse_codes
from seqdata.fitting.labels import Codes
from seqdata.logical_types import LogicalType
from seqdata.protocols import Field
from seqdata.storage.fields import has_numbers, is_text

PAD_ID, UNKNOWN_ID, FIRST_ID = 0, 1, 2
_BOUNDARY = "\0"  # between strings that are split into words together


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Estimator that encodes strings as token ids; id 0 is padding, and id 1 an unknown token.

    Tokens have the ids 2, 3, … by decreasing count; tokens of equal count are ordered by code
    points. A field with one ``str`` per sequence becomes int64 ids along a separate axis. Integers,
    and strings with one per timestep, are tokens themselves; their ids run along the same axis.

    Args:
        min_count: Minimum number of occurrences of a token with a separate id.
        max_size: Maximum number of tokens with a separate id; None: no limit.
        tokens: Tokens of a ``str`` per sequence: ``words``, separated by white space, or
            ``characters``.
        unknown: Treatment of a token without a separate id: ``token`` (id 1) or ``error``.
        axis: Axis of the ids of strings; None: an axis with the name of the field. If plans use
            this axis, ``measure_lengths`` must measure its lengths.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> from seqdata import fit
        >>> rows = [{"x": [1], "text": "to be or not to be"}]
        >>> fit(rows, {"text": Vocabulary(min_count=2)})["text"].tokens
        ['be', 'to']
    """

    min_count: int = 1
    max_size: int | None = None
    tokens: Literal["words", "characters"] = "words"
    unknown: Literal["token", "error"] = "token"
    axis: str | None = None

    def __post_init__(self) -> None:
        for name in ("min_count", "max_size"):
            value = getattr(self, name)
            is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            if not is_count and not (name == "max_size" and value is None):
                needed = "an integer of at least 1"
                raise ConfigError(must_be(f"Vocabulary: `{name}`", needed, repr(value)))
        check_choice("Vocabulary", "tokens", self.tokens, ("words", "characters"))
        check_choice("Vocabulary", "unknown", self.unknown, ("token", "error"))

    def start(self, name: str, field: Field) -> TokensAccumulator:
        """Return an accumulator of tokens; see ``Estimator``."""
        if not (is_text(field) or (has_numbers(field, "iu") and not field.shape)):
            shape = f" of shape {field.shape}" if field.shape else ""
            raise ConfigError(
                must_be(
                    f"fit: field {name!r} of Vocabulary",
                    "of `str` or of integers",
                    f"of {field.dtype}{shape}",
                )
            )
        return TokensAccumulator(self, name, field)


class TokensAccumulator:
    """Counts each token.

    Args:
        estimator: The estimator.
        name: Name of the field.
        field: Dtype and shape of the field.
    """

    def __init__(self, estimator: Vocabulary, name: str, field: Field) -> None:
        self._estimator = estimator
        self._axis = (estimator.axis or name) if is_text(field) else None
        self._counts: Counter[Any] = Counter()

    def measure(self, chunk: FieldChunk) -> Counter[Any]:
        """Return the tokens of a chunk and their counts."""
        if isinstance(chunk.values, list):
            has_words = self._estimator.tokens == "words"
            return Counter(" ".join(chunk.values).split() if has_words else "".join(chunk.values))
        return chunk.count_values()

    def add(self, partial: Counter[Any]) -> None:
        """Add the counts of a chunk."""
        self._counts.update(partial)

    def end_pass(self) -> bool:
        """Return False: one pass is enough."""
        return False

    def make_plain(self) -> dict[str, Any]:
        """Return the vocabulary as plain data, with ``tokens`` in the order of their ids."""
        least = self._estimator.min_count
        frequent = [token for token, count in self._counts.items() if count >= least]
        frequent.sort(key=lambda token: (-self._counts[token], token))
        tokens = frequent[: self._estimator.max_size]
        return {
            "kind": "vocabulary",
            "split": self._estimator.tokens,
            "unknown": self._estimator.unknown,
            "axis": self._axis,
            "count": self._counts.total(),
            "known": sum(self._counts[token] for token in tokens),
            "tokens": tokens,
        }


class FittedVocabulary:
    """Fitted tokens of a field.

    Args:
        name: Name of the field.
        plain: Result of the accumulator.

    Attributes:
        tokens: Tokens in the order of their ids, which begin at 2.
        axis: Axis of the ids of strings; None for a field of integers.
    """

    def __init__(self, name: str, plain: dict[str, Any]) -> None:
        self.name = name
        self.by: str | None = None
        self.tokens: list[Any] = list(plain["tokens"])
        self.axis: str | None = plain["axis"]
        self._has_words = plain["split"] == "words"
        self._codes = Codes(
            {token: id_ for id_, token in enumerate(self.tokens, FIRST_ID)},
            None if plain["unknown"] == "error" else UNKNOWN_ID,
            f"statistics: token {{}} of field {name!r} has no id. Fit over it, too, or use "
            "Vocabulary(unknown='token').",
        )

    @property
    def size(self) -> int:
        """Number of ids, including padding and the unknown token: the rows of an embedding."""
        return FIRST_ID + len(self.tokens)

    def apply(
        self,
        values: Any,
        lengths: NDArray[np.int64],
        groups: Any,
        logical: LogicalType | None = None,
    ) -> Any:
        """Return the ids of tokens, int64 (n,), and for strings the number of tokens of each.

        Args:
            values: A list of strings, or integers (n,).
            lengths: Not used.
            groups: Not used.
            logical: Logical type of the integers in their store; None: they are numbers.

        Raises:
            DecodeError: If a token is unknown, unless ``unknown`` allows it.
            ConfigError: If strings were fitted, but ``values`` are integers without categories.
        """
        del lengths, groups
        if not isinstance(values, list):
            refuse_codes(self.name, self.tokens, logical)
            distinct, inverse = np.unique(values, return_inverse=True)
            ids = self._codes.encode(list_values(distinct, logical), len(distinct))
            return ids[inverse.reshape(-1)]
        tokens, counts = (_split_words if self._has_words else _split_characters)(values)
        return self._codes.encode(tokens, int(counts.sum())), counts

    def inverse(self, values: Any, groups: Any = None) -> Any:
        """Return the tokens of ids, in lists of the same shape; None for the ids 0 and 1.

        Raises:
            ConfigError: If an integer is not an id.
        """
        del groups
        array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
        table = np.array([None, None, *self.tokens, None], dtype=object)[: self.size]
        if array.size and not 0 <= int(array.min()) <= int(array.max()) < self.size:
            raise ConfigError(
                must_be(
                    f"statistics: the range of ids of {self.name!r}",
                    f"within [0, {self.size})",
                    f"{array.min()} to {array.max()}",
                )
            )
        return table[array.astype(np.int64)].tolist()


def _split_words(texts: list[str]) -> tuple[Iterable[str], NDArray[np.int64]]:
    """Return the words of strings and the number of words of each, int64 (strings,)."""
    words = f" {_BOUNDARY} ".join(texts).split()
    # NumPy takes a string of NULs for an empty one, and would find no boundary
    ends = np.array([at for at, word in enumerate(words) if word == _BOUNDARY], dtype=np.int64)
    if len(ends) != max(len(texts) - 1, 0):  # a string has the boundary as a word
        split = [text.split() for text in texts]
        counts = np.array([len(each) for each in split], dtype=np.int64)
        return [word for each in split for word in each], counts
    bounds = np.concatenate([[-1], ends, [len(words)]]) if texts else np.empty(0, np.int64)
    return [word for word in words if word != _BOUNDARY], np.diff(bounds) - 1


def _split_characters(texts: list[str]) -> tuple[Iterable[str], NDArray[np.int64]]:
    """Return the characters of strings and the number of characters of each, int64 (strings,)."""
    return "".join(texts), np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
