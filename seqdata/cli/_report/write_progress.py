"""Progress of ``seqdata write``: its bar, and notes about a writing that was stopped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from seqdata.cli._report.console import make_console
from seqdata.readers.source import SourceFile
from seqdata.storage.writing.progress import SECOND_STEP, ProgressBar
from seqdata.storage.writing.shards import count_unfinished
from seqdata.storage.writing.staging_dir import is_first_pass_finished


def report_resume(out: str) -> int:
    """Print what an earlier writer left in a folder, and return the number of its sequences."""
    shards, sequences = count_unfinished(Path(out))
    err = make_console(stderr=True)
    if shards:
        err.print(f"continuing after shard {shards - 1} ({sequences:,} sequences)")
    elif is_first_pass_finished(Path(out)):
        err.print("continuing with the second pass")
    return sequences


def report_kept(out: str) -> None:
    """Print what a writer that stopped left in a folder, and how to continue."""
    shards, sequences = count_unfinished(Path(out))
    err = make_console(stderr=True)
    if shards:
        err.print(
            f"note: {shards} finished shards ({sequences:,} sequences) are kept: the same "
            "command continues after them, or starts again with --no-resume"
        )
    elif is_first_pass_finished(Path(out)):
        err.print(
            "note: all sequences are kept in the order given: the same command continues with the "
            "second pass, or starts again with --no-resume"
        )


@dataclass(slots=True)
class ReadProgress:
    """The progress bar of reading files: their bytes, and sequences written.

    Attributes:
        bar: The bar; None if it is not shown.
        resumed: Number of sequences that an earlier writer left.
        bytes_read: Number of bytes of the files that were read.
        sequences: Number of sequences that the last report counted.
        is_reading: Whether files are read; in a second pass they are not.
    """

    bar: ProgressBar | None
    resumed: int
    bytes_read: int = 0
    sequences: int = 0
    is_reading: bool = True

    def track(self, files: Iterable[SourceFile]) -> Iterator[SourceFile]:
        """Yield the files, and count the bytes of those that were read."""
        for file in files:
            yield file
            self.bytes_read += file.path.stat().st_size

    def on_progress(self, sequences: int, size: int) -> None:
        """Update the bar; a count that falls is the first one of a second pass."""
        if self.bar is None:
            return
        if sequences < self.sequences:
            self.bar.begin(SECOND_STEP, self.sequences)
            self.is_reading = False
        self.sequences = sequences
        done = self.bytes_read if self.is_reading else sequences
        if sequences <= self.resumed:
            self.bar.restart(sequences, done)
        self.bar.update(sequences, size, done)
