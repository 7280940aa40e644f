"""Generated ids of sequences: the name of their file, and a number."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqdata.errors import ConfigError
from seqdata.storage.text_bytes import TextBytes, concat_texts


@dataclass(frozen=True, slots=True)
class NumberedIds:
    """The ids of all sequences of files, created on demand.

    Attributes:
        location: The data set, for messages.
        names: Of the files.
        starts: File -> its first sequence, with the total at the end.
    """

    location: str
    names: Sequence[str]
    starts: Sequence[int]

    def take(self, numbers: ArrayLike) -> list[Any]:
        """Return the ids of sequences.

        Raises:
            ConfigError: If there is no such sequence.
        """
        return [self._id(number) for number in np.asarray(numbers, dtype=np.int64).tolist()]

    def read_bytes(self, numbers: NDArray[np.int64]) -> TextBytes:
        """Return the concatenated bytes of ids; see ``text_bytes``."""
        return concat_texts(self.take(numbers))

    def is_readable(self, number: int) -> bool:
        """Return whether a sequence exists."""
        return 0 <= number < self.starts[-1]

    def _id(self, number: int) -> str:
        if not self.is_readable(number):
            raise ConfigError(
                f"{self.location}: the sequence must be in [0, {self.starts[-1]}), but is "
                f"{number}. Was the plan made for other data?"
            )
        shard = bisect_right(self.starts, number) - 1
        return f"{self.names[shard]}/{number - self.starts[shard]}"
