"""Replay of a run's batches from its run file, in another process.

Records of a run have the indices of sequences in their stores. The run file names the stores, in
which keys and locations of sequences are looked up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np

from seqdata.capabilities import get_base_keys
from seqdata.errors import ConfigError, FingerprintMismatch, PlanError, SeqDataError
from seqdata.loading.base_engine import BaseEngine
from seqdata.protocols import Store, SupportsParts
from seqdata.resume_state import RunPosition
from seqdata.runs.data_sources import DataSources, RunContext
from seqdata.runs.locate_batch import FitGeometry, LocatedStep, ReplayRequest, locate_batch
from seqdata.runs.options import DataKind
from seqdata.runs.run_file import NAME, RunFile
from seqdata.runs.segment_files import SegmentFiles
from seqdata.sharing import World
from seqdata.storage.data_location import DataLocation
from seqdata.storage.views import locate_sequence


@dataclass(frozen=True, slots=True)
class ReplayableBatch:
    """A batch that can be rebuilt.

    Attributes:
        engine: The engine that rebuilds it.
        located: The step of the run that made it.
    """

    engine: BaseEngine
    located: LocatedStep


def open_replay(
    path: Path,
    request: ReplayRequest,
    kind: DataKind,
    name: str | None = None,
    *,
    backend: str | None = None,
) -> ReplayableBatch:
    """Locate a batch of a run; its data is opened, but not read.

    Args:
        path: Path of the run file.
        request: The batch.
        kind: ``train``, ``val``, ``test`` or ``predict``.
        name: Name of the dataset, if there are several of that kind.
        backend: Name of the backend that opens the data; None: detected from the location.

    Raises:
        ConfigError: If the file does not have what a replay needs, or there is no such rank.
        PlanError: If there is no such batch, or plans differ now.
        FingerprintMismatch: If the data has changed.
        DataError: If the data is incomplete.
    """
    run_file = RunFile.read(path)
    engine, geometry = open_engine(run_file, path, kind, name, backend)
    return ReplayableBatch(engine, locate_drawn(engine, request, geometry, path.parent))


def locate_drawn(
    engine: BaseEngine, request: ReplayRequest, geometry: FitGeometry, folder: Path | None
) -> LocatedStep:
    """Return the step of the run that made a batch, and set the weights that the run had then.

    Args:
        engine: An engine that has not drawn a batch yet.
        request: The batch.
        geometry: Geometry of the run.
        folder: The folder of the run file; None if the run had none.

    Raises:
        ConfigError: If the weights are unknown, or there is no such rank.
        PlanError: If there is no such batch.
    """
    located = locate_batch(engine, request, geometry)
    run_position = RunPosition(request.epoch, located.share.position(located.step))
    if engine.segments is None:
        return located
    if geometry.segment is None:
        engine.segments.restore(run_position, geometry.mixture, None)
        return located
    if folder is None:
        raise ConfigError(
            "replay: the training batches must follow from the plan alone, but `Feedback` changes "
            "the weights of this run, which has no log folder to keep them in. Pass a logger to "
            "the Trainer."
        )
    SegmentFiles(folder).restore(engine.segments, run_position)
    return located


def open_engine(
    run_file: RunFile, path: Path, kind: DataKind, name: str | None, backend: str | None = None
) -> tuple[BaseEngine, FitGeometry]:
    """Return the engine of a run's data of one kind, and the geometry of its batches.

    Raises:
        ConfigError: If the file does not have what a replay needs.
        PlanError: If plans differ now.
        FingerprintMismatch: If the data has changed.
        DataError: If the data is incomplete.
    """
    engine, geometry = open_unplanned(run_file, path, kind, name, backend), run_file.geometry
    if kind != "train":
        return engine, geometry.for_evaluation
    plan = engine.fingerprint(geometry.epoch)
    if plan != run_file.plan:
        raise PlanError(
            f"{path}: the plan of epoch {geometry.epoch} must have fingerprint "
            f"{run_file.plan!r}, but has {plan!r}. Restore the policy's code and the release of "
            f"seqdata of the run: {run_file.versions.get('seqdata', 'an unknown one')}"
        )
    return engine, geometry


def open_unplanned(
    run_file: RunFile, path: Path, kind: DataKind, name: str | None, backend: str | None = None
) -> BaseEngine:
    """Return the engine of a run's data of one kind, whose plans may differ from the run's.

    Raises:
        ConfigError: If the file does not have what a replay needs.
        FingerprintMismatch: If the data has changed.
        DataError: If the data is incomplete.
    """
    options, geometry = run_file.make_options(path, kind, name, backend), run_file.geometry
    context = make_replay_context(geometry, kind)
    engine = DataSources(options).make_replay_engine(kind, name, context)
    engine.continue_order(geometry.run_position, geometry.balance_ranks)
    saved_fingerprint, fingerprint = run_file.get_fingerprint(kind, name), engine.index.fingerprint
    if saved_fingerprint is not None and saved_fingerprint != fingerprint:
        raise FingerprintMismatch(
            f"{path}: the data of `{kind}` must have fingerprint {saved_fingerprint!r} as when "
            f"the run began, but has {fingerprint!r}. Restore the store, and the lengths of a "
            "transform"
        )
    return engine


def make_replay_context(geometry: FitGeometry, kind: DataKind) -> RunContext:
    """Return the context for an engine that rebuilds batches of a kind."""
    segment = geometry.segment if kind == "train" else None
    return RunContext(
        world=World(), seed=geometry.seed, overfit=geometry.frozen, segment_batches=segment,
        balance_ranks=geometry.world_size,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunSequences:
    """Training sequences of a run, by part and index.

    Attributes:
        stores: Part -> store; the part is None for a run without parts. Empty if the data cannot be
            opened.
        run_file: Path of the run file; None if there is none.
        problem: Reason why the data cannot be opened; empty if it can.
    """

    stores: Mapping[str | None, Store] = field(default_factory=dict)
    run_file: Path | None = None
    problem: str = ""

    @classmethod
    def open(cls, folders: list[Path], backend: str | None = None) -> Self:
        """Open the sequences of the first folder with a run file, without reading them.

        Args:
            folders: Folders of run files.
            backend: Name of the backend that opens the data; None: detected from the location.
        """
        path = next((folder / NAME for folder in folders if (folder / NAME).is_file()), None)
        if path is None:
            return cls(problem=f"{folders[0] / NAME} does not exist")
        try:
            store = open_unplanned(RunFile.read(path), path, "train", None, backend).store
        except (SeqDataError, OSError) as error:
            return cls(run_file=path, problem=str(error).partition("\n")[0])
        if isinstance(store, SupportsParts):
            return cls(stores=dict(store.parts.items()), run_file=path)
        return cls(stores={None: store}, run_file=path)

    def find_key(self, part: str | None, index: int) -> str | None:
        """Return the key of a sequence; None if it is unknown."""
        store = self.stores.get(part)
        return None if store is None else get_base_keys(store, np.array([index]))[0]

    def find_location(self, part: str | None, index: int) -> DataLocation | None:
        """Return the location of a sequence; None if it is unknown."""
        store = self.stores.get(part)
        return None if store is None else locate_sequence(store, index)
