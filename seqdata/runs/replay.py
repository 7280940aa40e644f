"""From a run file to one of the run's batches, in another process.

Place in the flow: run file -> options -> Player -> batch; ``seqdata replay`` shows it. Reads: a run
file, a store. Makes: a player, and the step that made the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from seqdata.errors import FingerprintMismatch, PlanError
from seqdata.loading.engine import Player
from seqdata.runs.data_sources import Circumstances, Stock
from seqdata.runs.locate_batch import Course, Found, Wanted, locate
from seqdata.runs.options import Kind
from seqdata.runs.run_file import RunFile
from seqdata.world import World


@dataclass(frozen=True, slots=True)
class Replay:
    """A batch that is ready to be made again.

    Attributes:
        player: Makes it.
        found: The step that made it.
    """

    player: Player
    found: Found


def replay_from(
    path: Path, wanted: Wanted, kind: Kind, name: str | None = None, *, backend: str | None = None
) -> Replay:
    """Find a batch of the run that a file describes; its data is opened, not read.

    Args:
        path: Of the run file.
        wanted: Which batch.
        kind: ``train``, ``val``, ``test`` or ``predict``.
        name: Of the data set, where there are several of that kind.
        backend: Name of the backend that opens its data; None: by the location's form.

    Raises:
        ConfigError: If the file cannot be replayed from, or there is no such rank.
        PlanError: If there is no such batch, or plans are made otherwise now.
        FingerprintMismatch: If the data is not what it was.
        DataError: If it is not whole.
    """
    file = RunFile.read(path)
    player, course = player_of(file, path, kind, name, backend)
    return Replay(player, locate(player, wanted, course))


def player_of(
    file: RunFile, path: Path, kind: Kind, name: str | None, backend: str | None = None
) -> tuple[Player, Course]:
    """Open a run's data of one kind again, and give how its batches count.

    Raises:
        ConfigError: If the file cannot be replayed from.
        PlanError: If plans are made otherwise now.
        FingerprintMismatch: If the data is not what it was.
        DataError: If it is not whole.
    """
    options, course = file.options(path, kind, name, backend), file.course
    alone = Circumstances(world=World(), seed=course.seed, frozen=course.frozen)
    player = Stock(options).lone(kind, name, alone)
    was, now = file.fingerprint_of(kind, name), player.index.fingerprint
    if was is not None and was != now:
        raise FingerprintMismatch(
            f"{path}: the data of `{kind}` has fingerprint {now!r}, must have {was!r} as when the "
            "run began; restore the store, and what tells the lengths of a transform"
        )
    if kind != "train":
        return player, course.of_evaluation
    plan = player.fingerprint(course.epoch)
    if plan != file.plan:
        raise PlanError(
            f"{path}: the plan of epoch {course.epoch} has fingerprint {plan!r}, must have "
            f"{file.plan!r}; the policy's code changed, or seqdata: the run had "
            f"{file.versions.get('seqdata', 'an unknown release')}"
        )
    return player, course
