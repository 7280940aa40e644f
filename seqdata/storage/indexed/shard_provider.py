"""How the files of a batch come: what is asked of each, and what comes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from seqdata.storage.store_fields import FieldSource


@dataclass(frozen=True, slots=True, eq=False)
class ShardRequest:
    """What a batch needs of one shard.

    Attributes:
        spans: int64 (n, 3): sequences, counted from the shard's first, and timesteps.
        names: Of fields.
        axis: The axis that spans cut.
    """

    spans: NDArray[np.int64]
    names: Sequence[str]
    axis: str


@dataclass(frozen=True, slots=True, eq=False)
class OpenShard:
    """One shard that is open.

    Attributes:
        number: Of the shard.
        sources: Field -> its source; sequences are counted from its first one.
    """

    number: int
    sources: Mapping[str, FieldSource]


class ShardProvider(Protocol):
    """A way to bring shards."""

    def get(self, asked: Mapping[int, ShardRequest]) -> list[OpenShard]:
        """Return shards, by number, in which all is there that is asked for.

        Raises:
            MissingShardError: If a shard is not there.
            RemoteReadError: If it cannot be read.
            CorruptShardError: If it has another size.
            FingerprintMismatch: If it is another one than was indexed, or was replaced.
        """
        ...

    def expect(self, numbers: Iterable[int]) -> bool:
        """Begin to bring shards that will be asked for; whether more may be told already."""
        ...
