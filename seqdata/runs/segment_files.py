"""Weights of a run's segments, in files next to its run file, so that its batches can be replayed.

Each segment that has begun has a file, such as ``seqdata-run-weights/epoch-0-batch-4000.npz``, with
the weights by which its batches are drawn, 8 bytes for each sequence. The file ends with a digest;
reading it runs no code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seqdata.errors import ConfigError
from seqdata.loading.segmented_run import SegmentedRun
from seqdata.resume_state import RunPosition
from seqdata.runs.run_file import NAME
from seqdata.runs.side_files import MOST_NUMBERS, Arrays, pack_arrays, read_arrays
from seqdata.storage.local_files import write_atomically

_FOLDER = f"{Path(NAME).stem}-weights"
_PATTERN = re.compile(r"epoch-(\d+)-batch-(\d+)\.npz")


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """Files of a run's segments.

    Attributes:
        folder: The folder of the run file.
    """

    folder: Path

    def begin_fit(self, run_position: RunPosition) -> None:
        """Remove the files of segments from a position on; the fit writes them again.

        Raises:
            OSError: If a file cannot be removed.
        """
        first = (run_position.epoch, run_position.position)
        for path in (self.folder / _FOLDER).glob("*.npz"):
            match = _PATTERN.fullmatch(path.name)
            if match and (int(match[1]), int(match[2])) >= first:
                path.unlink()

    def write(self, segments: SegmentedRun, run_position: RunPosition) -> None:
        """Write the weights of the segment at a position.

        Raises:
            OSError: If the file cannot be written, or there are too many weights.
        """
        digest = segments.describe_changes(run_position)
        weights = segments.get_weights(run_position)
        values = getattr(weights, "values", None)  # weights of parts are in the digest
        arrays: dict[str, Any] = {"digest": np.frombuffer((digest or "").encode(), np.uint8)}
        if isinstance(values, np.ndarray):
            if len(values) > MOST_NUMBERS:
                raise OSError(f"there are more than {MOST_NUMBERS} weights")
            arrays["values"] = values
        path = self._get_path(segments, run_position)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, pack_arrays(arrays, path.name))

    def restore(self, segments: SegmentedRun, run_position: RunPosition) -> None:
        """Set the weights of a segment as the run had them.

        Args:
            segments: Segments of an engine that has not drawn a batch yet.
            run_position: Position of a batch of the segment.

        Raises:
            ConfigError: If the file is missing or damaged.
        """
        path = self._get_path(segments, run_position)
        owner = (
            f"replay: the weights of batch {run_position.position} of epoch {run_position.epoch}"
        )
        if not path.is_file():
            raise ConfigError(
                f"{owner} must be in the file {f'{_FOLDER}/{path.name}'!r} next to {NAME}, but it "
                "does not exist: `Feedback` changes weights. Either the fit ended before that "
                "batch, or an earlier fit trained it: pass the run file of that fit."
            )
        digest, values = _parse_weights(read_arrays(path, owner), owner)
        segments.restore(run_position, digest, values)

    def _get_path(self, segments: SegmentedRun, run_position: RunPosition) -> Path:
        first = segments.find_first(run_position.position)
        return self.folder / _FOLDER / f"epoch-{run_position.epoch}-batch-{first}.npz"


def _parse_weights(arrays: Arrays, owner: str) -> tuple[str | None, Any]:
    """Return the digest and the values of weights; None for those of the policy."""
    try:
        digest = arrays["digest"].astype(np.uint8).tobytes().decode()
    except (KeyError, UnicodeDecodeError) as error:
        raise ConfigError(f"{owner} must have a digest, but do not. Restore the file.") from error
    return digest or None, arrays.get("values")
