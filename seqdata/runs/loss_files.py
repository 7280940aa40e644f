"""Files of a run's losses: the sequences that each step trained, and their scores.

Each rank of a fit appends blocks to a file of its own, ``seqdata-losses-fit1-rank0.bin``. A block
is a line with its index and size, then an archive of arrays with a digest, so that a truncated or
damaged file is read as far as it is complete. A fit that resumes an earlier one writes further
files: the steps from its first one on replace those of earlier fits.
"""

from __future__ import annotations

import dataclasses
import errno
import io
import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, DataError, must_be
from seqdata.storage.digest_trailer import add_digest, strip_digest

VERSION = 1
_PATTERN = re.compile(r"seqdata-losses-fit(\d+)-rank(\d+)\.bin")
_BLOCK_LINE = b"losses %d %d\n"
_BLOCK_PATTERN = re.compile(rb"losses (\d{1,18}) (\d{1,18})\n")
_MAX_LINE = 64
_ARRAYS = (
    "steps", "epochs", "numbers", "is_shared", "offsets", "ids", "parts", "scores", "names",
)  # fmt: skip
_HEADER_KEYS = {"version": int, "fit": int, "rank": int, "world": int, "score": str, "run": str}


@dataclass(frozen=True, slots=True, kw_only=True)
class LossHeader:
    """Header of a file.

    Attributes:
        fit: Number of the fit in its folder, from 1.
        rank: The rank that wrote the file.
        world: Number of ranks.
        score: Key of the scores in the output of ``training_step``.
        run: Path of the folder of the run file, relative to that of this file.
    """

    fit: int
    rank: int
    world: int
    score: str
    run: str = "."

    @property
    def file_name(self) -> str:
        """Name of the file."""
        return f"seqdata-losses-fit{self.fit}-rank{self.rank}.bin"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossBlock:
    """Consecutive batches of one rank.

    Attributes:
        steps: int64 (b,), the optimizer's step of each batch, from 0: as loggers number it.
        epochs: int64 (b,), epoch of the plan.
        numbers: int64 (b,), index of the batch in the plan.
        is_shared: bool (b,), whether there was one score for the whole batch.
        offsets: int64 (b+1,), offsets of the batches in the following arrays.
        ids: int64 (n,), indices of the sequences in their store.
        parts: int64 (n,), index in ``names`` of the part of each sequence; -1 without parts.
        scores: float64 (n,).
        names: Names of parts.
        rank: The rank.
    """

    steps: NDArray[np.int64]
    epochs: NDArray[np.int64]
    numbers: NDArray[np.int64]
    is_shared: NDArray[np.bool_]
    offsets: NDArray[np.int64]
    ids: NDArray[np.int64]
    parts: NDArray[np.int64]
    scores: NDArray[np.float64]
    names: Sequence[str] = ()
    rank: int = 0

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def batch_of_row(self) -> NDArray[np.int64]:
        """Batch of the block that each sequence is in, int64 (n,)."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def select(self, is_chosen: NDArray[np.bool_]) -> LossBlock:
        """Return the chosen batches.

        Args:
            is_chosen: bool (b,), whether a batch is returned.
        """
        if is_chosen.all():
            return self
        counts, rows = np.diff(self.offsets), is_chosen[self.batch_of_row]
        return dataclasses.replace(
            self, steps=self.steps[is_chosen], epochs=self.epochs[is_chosen],
            numbers=self.numbers[is_chosen], is_shared=self.is_shared[is_chosen],
            offsets=np.concatenate([[0], np.cumsum(counts[is_chosen])]), ids=self.ids[rows],
            parts=self.parts[rows], scores=self.scores[rows],
        )  # fmt: skip


class LossWriter:
    """Appends blocks to the file of one rank.

    Args:
        folder: Existing folder of the file.
        header: Header of the file. An existing file of the same fit and rank is replaced.

    Raises:
        OSError: If it cannot be written.
    """

    def __init__(self, folder: Path, header: LossHeader) -> None:
        self.path = folder / header.file_name
        self._blocks = 0
        try:
            self.path.write_bytes(b"")
            self._append(json.dumps({"version": VERSION, **dataclasses.asdict(header)}).encode())
        except OSError:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)
            raise

    def append(self, block: LossBlock) -> None:
        """Append a block, in one write.

        Raises:
            OSError: If it cannot be written completely; the file is then as before.
        """
        content = io.BytesIO()
        np.savez(content, **_to_arrays(block))
        self._append(content.getvalue())

    def _append(self, payload: bytes) -> None:
        sealed = add_digest(payload, f"{self.path.name} {self._blocks}")
        raw = _BLOCK_LINE % (self._blocks, len(sealed)) + sealed
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            try:
                written = os.write(descriptor, raw)
                if written != len(raw):
                    message = f"{written} of {len(raw)} bytes were written"
                    raise OSError(errno.ENOSPC, message, str(self.path))
            except OSError:
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)
        self._blocks += 1


def count_fits(folder: Path) -> int:
    """Return the highest number of a fit with files in a folder; 0 without files."""
    names = [path.name for path in folder.glob("seqdata-losses-*.bin")]
    return max((int(match[1]) for name in names if (match := _PATTERN.fullmatch(name))), default=0)


@dataclass(slots=True, eq=False)
class LossFiles:
    """Losses of a run, over all fits and ranks.

    Attributes:
        files: Triples of folder index, path and header, ordered by fit.
        first_steps: First recorded step of each fit, as (folder index, fit) -> step.
        names: Names of the parts of all files, to which ``LossBlock.parts`` refers.
        problems: Sentences about missing or damaged files; complete after one reading.
    """

    files: Sequence[tuple[int, Path, LossHeader]]
    first_steps: Mapping[tuple[int, int], int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    problems: dict[str, None] = field(default_factory=dict)

    @classmethod
    def open(cls, folders: Sequence[Path]) -> Self:
        """Open the losses in the folders of a run, in the order of the fits.

        Raises:
            ConfigError: If a folder has no losses, or a file is of another version.
        """
        found: list[tuple[int, Path, LossHeader]] = []
        problems: dict[str, None] = {}
        for number, folder in enumerate(folders):
            own_files = []
            for path in sorted(folder.glob("seqdata-losses-*.bin")):
                if _PATTERN.fullmatch(path.name):
                    header = _read_header(path)
                    if header is None:
                        problems[f"{path} has no whole header and is not read."] = None
                    else:
                        own_files.append((number, path, header))
            if not own_files:
                raise ConfigError(
                    must_be(
                        f"{folder}",
                        "a folder with the losses of a run",
                        "without them",
                        "Pass the Trainer's log folder, or the `folder` of LossRecord; training "
                        "writes them with callbacks=[LossRecord()]",
                    )
                )
            found += sorted(own_files, key=lambda file: (file[2].fit, file[2].rank))
        losses = cls(found, problems=problems)
        losses.first_steps = losses._find_first_steps()
        losses._note_missing_ranks()
        return losses

    @property
    def run_folders(self) -> list[Path]:
        """Folders of the run files, the latest first."""
        folders = [path.parent / header.run for _, path, header in reversed(self.files)]
        return list(dict.fromkeys(Path(os.path.normpath(folder)) for folder in folders))

    @property
    def score(self) -> str:
        """Key of the scores."""
        return self.files[-1][2].score

    def iterate_blocks(self) -> Iterator[LossBlock]:
        """Yield the batches of all fits and ranks, except those that a later fit replaced."""
        for number, path, header in self.files:
            later = [step for fit, step in self.first_steps.items() if fit > (number, header.fit)]
            for block in self._read_file(path, header):
                chosen = block.select(block.steps < min(later, default=np.iinfo(np.int64).max))
                if len(chosen):
                    yield chosen

    def _read_file(self, path: Path, header: LossHeader) -> Iterator[LossBlock]:
        with path.open("rb") as file:
            payloads = self._iterate_payloads(path, file)
            next(payloads, None)  # the header
            for payload in payloads:
                yield self._to_block(payload, header)

    def _iterate_payloads(self, path: Path, file: BinaryIO) -> Iterator[bytes]:
        """Yield the contents of blocks, without damaged ones, up to a truncated one."""
        expected = 0
        while line := file.readline(_MAX_LINE):
            match = _BLOCK_PATTERN.fullmatch(line)
            size = int(match[2]) if match else 0
            rest = path.stat().st_size - file.tell()
            raw = file.read(size) if match and size <= rest else b""
            payload = strip_digest(raw, f"{path.name} {expected}")
            if payload is None:
                is_damaged = match is not None and size <= rest
                damage = "is damaged" if is_damaged else "ends within a block"
                self.problems[f"{path} {damage}: block {expected} is dropped."] = None
                if not is_damaged:
                    return
            else:
                yield payload
            expected += 1

    def _to_block(self, payload: bytes, header: LossHeader) -> LossBlock:
        arrays = _load_arrays(payload)
        for name in arrays["names"].tolist():
            if name not in self.names:
                self.names.append(name)
        codes = np.array([*map(self.names.index, arrays["names"].tolist()), -1], dtype=np.int64)
        return LossBlock(
            steps=arrays["steps"].astype(np.int64), epochs=arrays["epochs"].astype(np.int64),
            numbers=arrays["numbers"].astype(np.int64), is_shared=arrays["is_shared"],
            offsets=arrays["offsets"].astype(np.int64), ids=arrays["ids"].astype(np.int64),
            parts=codes[np.broadcast_to(arrays["parts"], arrays["ids"].shape)],
            scores=arrays["scores"].astype(np.float64), names=self.names, rank=header.rank,
        )  # fmt: skip

    def _find_first_steps(self) -> dict[tuple[int, int], int]:
        first_steps: dict[tuple[int, int], int] = {}
        for number, path, header in self.files:
            block = next(self._read_file(path, header), None)
            if block is not None:
                fit = (number, header.fit)
                first_steps[fit] = min(first_steps.get(fit, int(block.steps[0])), block.steps[0])
        return first_steps

    def _note_missing_ranks(self) -> None:
        worlds = {(number, header.fit): (path.parent, header.world)
                  for number, path, header in self.files}  # fmt: skip
        for fit, (folder, world) in worlds.items():
            ranks = {header.rank for number, _, header in self.files if (number, header.fit) == fit}
            missing = sorted(set(range(world)) - ranks)
            if missing:
                self.problems[
                    f"{folder}: fit {fit[1]} ran on {world} ranks, but files of rank "
                    f"{', '.join(map(str, missing))} are missing: copy them into this folder."
                ] = None


def _to_arrays(block: LossBlock) -> dict[str, Any]:
    """Return the arrays of a block, each in a small dtype that represents it exactly."""
    scores = block.scores.astype(np.float32)
    has_parts = bool((block.parts >= 0).any())
    return {
        "steps": block.steps, "epochs": block.epochs, "numbers": block.numbers,
        "is_shared": block.is_shared, "offsets": block.offsets,
        "ids": _narrow(block.ids), "names": np.array(block.names, dtype=np.str_),
        "parts": block.parts.astype(np.int32) if has_parts else np.array(-1),
        "scores": scores if np.array_equal(scores, block.scores, equal_nan=True) else block.scores,
    }  # fmt: skip


def _narrow(numbers: NDArray[np.int64]) -> NDArray[Any]:
    return numbers.astype(np.uint32) if numbers.max(initial=0) < 1 << 32 else numbers


def _load_arrays(payload: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays of a block whose digest matched.

    Raises:
        DataError: If another release wrote it.
    """
    try:
        with np.load(io.BytesIO(payload), allow_pickle=False) as archive:
            return {name: archive[name] for name in _ARRAYS}
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(
            f"losses: a block is not as this release writes it ({error}). Use the release of "
            "seqdata that wrote it."
        ) from error


def _read_header(path: Path) -> LossHeader | None:
    """Return the header of a file; None if the header is truncated or damaged.

    Raises:
        ConfigError: If the file is of another version.
    """
    with path.open("rb") as file:
        match = _BLOCK_PATTERN.fullmatch(file.readline(_MAX_LINE))
        if match is None or int(match[2]) > path.stat().st_size:
            return None
        payload = strip_digest(file.read(int(match[2])), f"{path.name} 0")
    if payload is None:
        return None
    plain = json.loads(payload)
    advice = "Use the release of seqdata that wrote it"
    if plain.get("version") != VERSION:
        raise ConfigError(
            must_be(f"{path}: the version", f"{VERSION}", repr(plain.get("version")), advice)
        )
    if plain.keys() != _HEADER_KEYS.keys():
        raise ConfigError(
            f"{path}: the header must have the keys {', '.join(_HEADER_KEYS)}, but has "
            f"{', '.join(plain)}. {advice}."
        )
    return LossHeader(**{name: plain[name] for name in plain if name != "version"})
