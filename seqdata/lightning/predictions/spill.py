"""Predictions on their way into a store: each rank appends to files, which are read in any order.

A rank keeps nothing in memory but its latest batch. Place in the flow: between outputs and the
store that rank 0 writes. Reads: rows. Makes: files, and views of them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, CorruptShardError
from seqdata.lightning.predictions.outputs import Predicted, Rows, check_same
from seqdata.storage.arrow.shard_file import digest_of_file

PLACES = np.dtype("<i8")


@dataclass(frozen=True, slots=True)
class Spilled:
    """What one rank has written of one data set.

    Attributes:
        rank: Whose files they are, a global rank.
        fields: Name -> what it is; empty where the rank had filler only.
        rows: Rows written.
        files: Name -> size in bytes; the first holds the places, the others fields in order.
        digests: Name -> sha256 of what was written.
    """

    rank: int
    fields: dict[str, Predicted]
    rows: int
    files: dict[str, int]
    digests: dict[str, str]


class Spill:
    """Files that one rank appends the predictions of one data set to.

    Args:
        folder: Where they lie; there already.
        number: Of the data set.
        rank: Of whom they are.
    """

    def __init__(self, folder: Path, number: int, rank: int) -> None:
        self._folder = folder
        self._stem = f"{number}-{rank}"
        self._rank = rank
        self._rows = 0
        self._files: dict[str, BinaryIO] = {}
        self._digests: dict[str, Any] = {}
        self.fields: dict[str, Predicted] = {}

    def add(self, rows: Rows, where: str) -> None:
        """Append rows.

        Args:
            rows: Of one batch.
            where: Which one, for messages.

        Raises:
            ConfigError: If they are not like those before.
        """
        if not self.fields:
            self.fields = rows.fields
            for name in (f"{self._stem}.places", *self._names()):
                self._files[name] = open(self._folder / name, "wb")  # noqa: SIM115, until close()
                self._digests[name] = hashlib.sha256()
        check_same(self.fields, rows.fields, where)
        arrays = [rows.places.astype(PLACES, copy=False), *rows.values.values()]
        for (name, file), array in zip(self._files.items(), arrays, strict=True):
            content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            file.write(content)
            self._digests[name].update(content)
        self._rows += len(rows.places)

    def close(self) -> Spilled:
        """Close the files and say what they hold."""
        sizes = {}
        for name, file in self._files.items():
            sizes[name] = file.tell()
            file.close()
        digests = {name: one.hexdigest() for name, one in self._digests.items()}
        return Spilled(self._rank, self.fields, self._rows, sizes, digests)

    def remove(self) -> None:
        """Close the files and delete them."""
        for name, file in self._files.items():
            file.close()
            (self._folder / name).unlink(missing_ok=True)

    def _names(self) -> list[str]:
        return [f"{self._stem}-{number}.values" for number in range(len(self.fields))]


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """The rows of all ranks, sorted by sequence and start.

    Attributes:
        fields: Name -> what it is.
        places: int64 (rows, 3): number in the predicted store, start, stop.
        rank: int64 (rows,), whose files hold the row.
        row: int64 (rows,), its row there.
        begin: int64 (rows,), the timestep there at which it begins.
        values: For each rank, name -> (rows or timesteps, *shape), mapped.
    """

    fields: dict[str, Predicted]
    places: NDArray[np.int64]
    rank: NDArray[np.int64]
    row: NDArray[np.int64]
    begin: NDArray[np.int64]
    values: list[dict[str, NDArray[Any]]]

    def value(self, name: str, first: int, stop: int) -> NDArray[Any]:
        """Give a field of the rows ``first:stop``, which are of one sequence, put together."""
        found = [self._one(name, at) for at in range(first, stop)]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _one(self, name: str, at: int) -> NDArray[Any]:
        values = self.values[self.rank[at]][name]
        if self.fields[name].per != "timestep":
            one: NDArray[Any] = values[self.row[at]]
            return one
        begin = int(self.begin[at])
        _, start, stop = self.places[at].tolist()
        part: NDArray[Any] = values[begin : begin + stop - start]
        return part


def pool_of(folder: Path, spilled: list[Spilled]) -> Pool:
    """Put the rows of all ranks in order; their values stay in their files.

    Args:
        folder: Where the files lie.
        spilled: What each rank has written.

    Raises:
        ConfigError: If a rank's files cannot be seen here, or ranks predicted different things.
        CorruptShardError: If a file is not what was written.
    """
    told = [one for one in spilled if one.fields]
    if not told:
        raise ConfigError(
            "PredictionWriter: nothing was predicted, must be a row at least; look at `weight` and "
            "`limit_predict_batches`"
        )
    for one in told:
        check_same(told[0].fields, one.fields, f"on rank {one.rank}")
        _check_seen(folder, one)
    places = [_mapped(folder / next(iter(one.files)), PLACES, (3,)) for one in told]
    begins = [np.cumsum(one[:, 2] - one[:, 1]) - (one[:, 2] - one[:, 1]) for one in places]
    every = np.concatenate(places).astype(np.int64)
    order = np.lexsort((every[:, 1], every[:, 0]))
    return Pool(
        fields=told[0].fields,
        places=every[order],
        rank=np.repeat(np.arange(len(told)), [one.rows for one in told])[order],
        row=np.concatenate([np.arange(one.rows) for one in told])[order],
        begin=np.concatenate(begins)[order],
        values=[_values(folder, one) for one in told],
    )


def _values(folder: Path, spilled: Spilled) -> dict[str, NDArray[Any]]:
    files = list(spilled.files)[1:]
    return {
        name: _mapped(folder / file, np.dtype(one.dtype), one.shape)
        for file, (name, one) in zip(files, spilled.fields.items(), strict=True)
    }


def _mapped(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    if not path.stat().st_size:  # nothing can be mapped of an empty file
        return np.empty((0, *shape), dtype)
    return np.asarray(np.memmap(path, dtype, mode="r")).reshape(-1, *shape)


def _check_seen(folder: Path, spilled: Spilled) -> None:
    for name, size in spilled.files.items():
        path = folder / name
        found = path.stat().st_size if path.exists() else None
        if found != size:
            state = "is not there" if found is None else f"has {found} bytes"
            raise ConfigError.at(
                f"PredictionWriter: rank {spilled.rank} wrote {size} bytes to {name!r}, which rank "
                f"0 cannot see in {folder} ({state}); give a location that all ranks share",
                rank=spilled.rank,
            )
        digest = digest_of_file(path)
        if digest != spilled.digests[name]:
            raise CorruptShardError.at(
                f"PredictionWriter: {path}: must be what rank {spilled.rank} wrote (sha256 "
                f"{spilled.digests[name][:16]}), but is not ({digest[:16]}): disk or memory fail, "
                "or another program wrote to it. Check them, and predict again",
                file=str(path), rank=spilled.rank, expected=spilled.digests[name], found=digest,
            )  # fmt: skip
