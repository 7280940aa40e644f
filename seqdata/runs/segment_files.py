"""Weights of a run's segments, in files next to its run file, so that its batches can be replayed.

A segment that has begun has a file: ``seqdata-run-weights/epoch-0-batch-4000.npz`` has the weights
that its batches are drawn by, 8 bytes for each sequence. It ends with its digest; reading it runs
no code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seqdata.errors import ConfigError, must_be
from seqdata.loading.segmented_run import SegmentedRun
from seqdata.resume_state import RunPosition
from seqdata.runs.run_file import NAME
from seqdata.runs.side_files import MOST_NUMBERS, Arrays, pack_arrays, read_arrays
from seqdata.storage.local_files import write_atomically

_FOLDER = f"{Path(NAME).stem}-weights"
_PATTERN = re.compile(r"epoch-(\d+)-batch-(\d+)\.npz")


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """The files of a run's segments.

    Attributes:
        folder: The folder of the run file.
    """

    folder: Path

    def begin_fit(self, here: RunPosition) -> None:
        """Remove the files of segments from a position on: a fit makes them again.

        Raises:
            OSError: If a file cannot be removed.
        """
        for path in (self.folder / _FOLDER).glob("*.npz"):
            match = _PATTERN.fullmatch(path.name)
            if match and (int(match[1]), int(match[2])) >= (here.epoch, here.position):
                path.unlink()

    def write(self, segments: SegmentedRun, here: RunPosition) -> None:
        """Write the weights of the segment at a position.

        Raises:
            OSError: If the file cannot be written, or there are too many weights.
        """
        digest, weights = segments.describe_changes(here), segments.get_weights(here)
        values = getattr(weights, "values", None)  # of parts: the digest is all of them
        arrays: dict[str, Any] = {"digest": np.frombuffer((digest or "").encode(), np.uint8)}
        if isinstance(values, np.ndarray):
            if len(values) > MOST_NUMBERS:
                raise OSError(f"there are more than {MOST_NUMBERS} weights")
            arrays["values"] = values
        path = self._get_path(segments, here)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, pack_arrays(arrays, path.name))

    def restore(self, segments: SegmentedRun, here: RunPosition) -> None:
        """Set the weights of a segment as the run had them.

        Args:
            segments: Of an engine that has drawn nothing yet.
            here: Position of a batch of the segment.

        Raises:
            ConfigError: If the file is missing or damaged.
        """
        path = self._get_path(segments, here)
        owner = f"replay: the weights of batch {here.position} of epoch {here.epoch}"
        if not path.is_file():
            raise ConfigError(
                f"{owner} must be in {f'{_FOLDER}/{path.name}'!r} next to {NAME}, which does not "
                "exist: `Feedback` changes weights. Either the fit ended before that batch, or "
                "an earlier fit trained it: pass the run file of that fit."
            )
        digest, values = _parse_weights(read_arrays(path, owner), owner)
        segments.restore(here, digest, values)

    def _get_path(self, segments: SegmentedRun, here: RunPosition) -> Path:
        first = segments.find_first(here.position)
        return self.folder / _FOLDER / f"epoch-{here.epoch}-batch-{first}.npz"


def _parse_weights(arrays: Arrays, owner: str) -> tuple[str | None, Any]:
    """Return the digest of weights, and their values; None where they are the policy's own."""
    try:
        digest = arrays["digest"].astype(np.uint8).tobytes().decode()
    except (KeyError, UnicodeDecodeError) as error:
        raise ConfigError(must_be(owner, "with their digest", "without. Restore them")) from error
    return digest or None, arrays.get("values")
