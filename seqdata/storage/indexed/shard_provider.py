"""The interface for opening the files of a batch on demand: requests and open files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from seqdata.storage.store_fields import FieldSource


@dataclass(frozen=True, slots=True, eq=False)
class ShardRequest:
    """The request of a batch to one shard.

    Attributes:
        spans: int64 (n, 3): sequences, counted from the shard's first, and timesteps.
        names: Names of fields.
        axis: The axis that spans cut.
    """

    spans: NDArray[np.int64]
    names: Sequence[str]
    axis: str


@dataclass(frozen=True, slots=True, eq=False)
class OpenShard:
    """One open shard.

    Attributes:
        number: Number of the shard.
        sources: Field -> its source; sequences are counted from its first one.
    """

    number: int
    sources: Mapping[str, FieldSource]


class ShardProvider(Protocol):
    """A way to open shards on demand."""

    def get(self, asked: Mapping[int, ShardRequest]) -> list[OpenShard]:
        """Return open shards, by number, with all requested bytes present.

        Raises:
            MissingShardError: If a shard is not there.
            RemoteReadError: If it cannot be read.
            CorruptShardError: If its size differs.
            FingerprintMismatch: If it is not the one that was indexed, or was replaced.
        """
        ...

    def expect(self, numbers: Iterable[int]) -> bool:
        """Start to download the next shards; return whether further ones may be announced."""
        ...
