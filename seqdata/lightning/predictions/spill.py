"""Spill files, to which each rank appends its predictions, and which are read in any order.

A rank keeps only its latest batch in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, CorruptShardError
from seqdata.lightning.predictions.outputs import PredictedRows, PredictionField, check_same_fields
from seqdata.storage.local_files import digest_file

SPAN_DTYPE = np.dtype("<i8")


@dataclass(frozen=True, slots=True)
class SpillManifest:
    """Files that one rank has written for one dataset.

    Attributes:
        rank: The global rank.
        fields: Name -> its dtype and shape; empty if the rank had only padding rows.
        rows: Number of rows.
        files: Name -> size in bytes; the first file has the spans, the others one field each.
        digests: Name -> sha256 of the content.
    """

    rank: int
    fields: dict[str, PredictionField]
    rows: int
    files: dict[str, int]
    digests: dict[str, str]


class SpillWriter:
    """Files to which one rank appends the predictions of one dataset.

    Args:
        folder: Existing folder of the files.
        index: Index of the dataset.
        rank: The rank.
    """

    def __init__(self, folder: Path, index: int, rank: int) -> None:
        self._folder = folder
        self._stem = f"{index}-{rank}"
        self._rank = rank
        self._rows = 0
        self._files: dict[str, BinaryIO] = {}
        self._digests: dict[str, Any] = {}
        self.fields: dict[str, PredictionField] = {}

    def add(self, rows: PredictedRows, location: str) -> None:
        """Append rows.

        Args:
            rows: Rows of one batch.
            location: The batch, for messages.

        Raises:
            ConfigError: If their fields differ from those of earlier rows, or they cannot be
                written.
        """
        if not self.fields:
            self.fields = rows.fields
            for name in (f"{self._stem}.spans", *self._name_field_files()):
                with self._explain_writing(name):
                    self._files[name] = open(self._folder / name, "wb")  # noqa: SIM115
                self._digests[name] = hashlib.sha256()
        check_same_fields(self.fields, rows.fields, location)
        arrays = [rows.spans.astype(SPAN_DTYPE, copy=False), *rows.values.values()]
        for (name, file), array in zip(self._files.items(), arrays, strict=True):
            content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            with self._explain_writing(name):
                file.write(content)
            self._digests[name].update(content)
        self._rows += len(rows.spans)

    def close(self) -> SpillManifest:
        """Close the files, and return their manifest.

        Raises:
            ConfigError: If buffered rows cannot be written.
        """
        sizes = {}
        for name, file in self._files.items():
            with self._explain_writing(name):
                sizes[name] = file.tell()
                file.close()
        digests = {name: digest.hexdigest() for name, digest in self._digests.items()}
        return SpillManifest(self._rank, self.fields, self._rows, sizes, digests)

    def remove(self) -> None:
        """Close and delete the files."""
        for name, file in self._files.items():
            with suppress(OSError):
                file.close()
            with suppress(OSError):
                (self._folder / name).unlink(missing_ok=True)

    @contextmanager
    def _explain_writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            path = self._folder / name
            raise ConfigError.at(
                f"PredictionWriter: {path} cannot be written ({error.strerror or error}). The "
                f"{self._rows} rows that this rank has predicted are not saved. Free space, or "
                "pass another location, and predict again",
                file=str(path), rank=self._rank,
            ) from error  # fmt: skip

    def _name_field_files(self) -> list[str]:
        return [f"{self._stem}-{index}.values" for index in range(len(self.fields))]


@dataclass(frozen=True, slots=True, eq=False)
class MergedRows:
    """Rows of all ranks, sorted by sequence and start.

    Attributes:
        fields: Name -> dtype and shape.
        spans: int64 (rows, 3): index in the predicted store, start, stop.
        rank_of_row: int64 (rows,), index of the rank that wrote the row.
        row_in_rank: int64 (rows,), index of the row in that rank's files.
        first_timestep: int64 (rows,), index of its first timestep in that rank's files.
        values: Mapped arrays of each rank, name -> (rows or timesteps, *shape).
    """

    fields: dict[str, PredictionField]
    spans: NDArray[np.int64]
    rank_of_row: NDArray[np.int64]
    row_in_rank: NDArray[np.int64]
    first_timestep: NDArray[np.int64]
    values: list[dict[str, NDArray[Any]]]

    def get_value(self, name: str, first: int, stop: int) -> NDArray[Any]:
        """Return the values of the rows ``first:stop``, of one sequence, concatenated."""
        values = [self._get_row(name, at) for at in range(first, stop)]
        return values[0] if len(values) == 1 else np.concatenate(values)

    def _get_row(self, name: str, i: int) -> NDArray[Any]:
        values = self.values[self.rank_of_row[i]][name]
        if self.fields[name].per != "timestep":
            row_value: NDArray[Any] = values[self.row_in_rank[i]]
            return row_value
        first = int(self.first_timestep[i])
        _, start, stop = self.spans[i].tolist()
        timesteps: NDArray[Any] = values[first : first + stop - start]
        return timesteps


def merge_spills(folder: Path, manifests: list[SpillManifest]) -> MergedRows:
    """Sort the rows of all ranks; their values stay in the files.

    Args:
        folder: Folder of the files.
        manifests: The manifest of each rank.

    Raises:
        ConfigError: If no row was predicted, a rank's files cannot be seen here, or predictions of
            ranks differ in form.
        CorruptShardError: If a file differs from what was written.
    """
    nonempty = [manifest for manifest in manifests if manifest.fields]
    if not nonempty:
        raise ConfigError(
            "PredictionWriter: at least one row must be predicted, but every row had weight 0, as "
            "padding rows have, and rows that `on_error='mask'` masks. Check that the data can be "
            "read"
        )
    for manifest in nonempty:
        check_same_fields(nonempty[0].fields, manifest.fields, f"on rank {manifest.rank}")
        _check_files(folder, manifest)
    spans_by_rank = [
        _map_array(folder / next(iter(manifest.files)), SPAN_DTYPE, (3,)) for manifest in nonempty
    ]
    first_timesteps = [
        np.cumsum(manifest[:, 2] - manifest[:, 1]) - (manifest[:, 2] - manifest[:, 1])
        for manifest in spans_by_rank
    ]
    all_spans = np.concatenate(spans_by_rank).astype(np.int64)
    order = np.lexsort((all_spans[:, 1], all_spans[:, 0]))
    return MergedRows(
        fields=nonempty[0].fields,
        spans=all_spans[order],
        rank_of_row=np.repeat(np.arange(len(nonempty)), [manifest.rows for manifest in nonempty])[
            order
        ],
        row_in_rank=np.concatenate([np.arange(manifest.rows) for manifest in nonempty])[order],
        first_timestep=np.concatenate(first_timesteps)[order],
        values=[_map_values(folder, manifest) for manifest in nonempty],
    )


def _map_values(folder: Path, manifest: SpillManifest) -> dict[str, NDArray[Any]]:
    files = list(manifest.files)[1:]
    return {
        name: _map_array(folder / file, np.dtype(field.dtype), field.shape)
        for file, (name, field) in zip(files, manifest.fields.items(), strict=True)
    }


def _map_array(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    if not path.stat().st_size:  # an empty file cannot be mapped
        return np.empty((0, *shape), dtype)
    return np.asarray(np.memmap(path, dtype, mode="r")).reshape(-1, *shape)


def _check_files(folder: Path, manifest: SpillManifest) -> None:
    for name, size in manifest.files.items():
        path = folder / name
        found_size = path.stat().st_size if path.exists() else None
        if found_size != size:
            state = "does not exist" if found_size is None else f"has {found_size} bytes"
            raise ConfigError.at(
                f"PredictionWriter: rank {manifest.rank} wrote {size} bytes to {name!r}, which "
                f"rank 0 cannot see in {folder} ({state}). Pass a location that all ranks share",
                rank=manifest.rank,
            )
        digest = digest_file(path)
        if digest != manifest.digests[name]:
            raise CorruptShardError.at(
                f"PredictionWriter: {path}: must be what rank {manifest.rank} wrote (sha256 "
                f"{manifest.digests[name][:16]}), but is not ({digest[:16]}): disk or memory is "
                "failing, or another program wrote to it. Check them, and predict again",
                file=str(path), rank=manifest.rank, expected=manifest.digests[name], found=digest,
            )  # fmt: skip
