"""More cases of D2, D7 and D9: saved files, saved datasets, and data replaced at a path."""

from __future__ import annotations

import json
import logging
import os
import pickle
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from seqdata.api import open_store, write_store
from seqdata.loading.loader import Loader
from seqdata.loading.measure_lengths import measure_lengths
from seqdata.policies.fixed import Fixed
from seqdata.storage.foreign.file_discovery import STATE_FILE
from seqdata_testing.faults import cases_damage, damage, try_damage
from seqdata_testing.faults.cases_damage import FILE_DETAILS, DamageSpec
from seqdata_testing.faults.fault_case import FaultCase
from seqdata_testing.faults.outcome import WHOLE, WRONG, Expectation, Outcome, of_error
from seqdata_testing.faults.reading import Sequences, play_through, read_through
from seqdata_testing.faults.targets import FOREIGN, OWN, FaultTarget, SavedFile

CHANGED = "bytes changed"
REPLACED = "data replaced"
_EDGE = 96  # bytes at the start and at the end of a file that are regions of their own
_LATER = 10_000_000  # nanoseconds by which the files of the other data are newer, at least


def flip_saved_file(saved: SavedFile, count: int) -> list[Outcome]:
    """Flip bits in each region of a saved file: its start, its middle, and its end.

    Args:
        saved: The saved file.
        count: Number of flips in each region.
    """
    logging.getLogger("seqdata").setLevel(logging.ERROR)  # each flip is told, as it must
    root = Path("data").resolve()
    root.mkdir()
    path = saved.write(root)
    due, raw = saved.read(root), path.read_bytes()
    edge, size = min(_EDGE, len(raw) // 3), len(raw)
    random = np.random.default_rng(2)
    found = []
    for first, stop in ((0, edge), (edge, size - edge), (size - edge, size)):
        bits = random.integers(8 * first, 8 * stop, count) if 8 * (stop - first) > count else None
        for bit in range(8 * first, 8 * stop) if bits is None else bits.tolist():
            path.write_bytes(raw)
            damage.flip_bit(path, bit)
            happened = {CHANGED: int(path.read_bytes() != raw)}
            found.append(_compare_saved(saved, root, due, happened))
    return found


def _compare_saved(saved: SavedFile, root: Path, due: Any, happened: dict[str, int]) -> Outcome:
    began = time.monotonic()
    try:
        is_same = saved.read(root) == due
    except Exception as error:
        came = of_error(error, seconds=time.monotonic() - began)
        return replace(came, happened=happened)
    seconds = time.monotonic() - began
    return Outcome(what=WHOLE if is_same else WRONG, seconds=seconds, happened=happened)


def reopen_replaced(target: FaultTarget, verify: str, workers: int | None) -> list[Outcome]:
    """Open a dataset, replace its data, and open it again in workers or by unpickling.

    Args:
        target: The kind of dataset.
        verify: When checksums are compared.
        workers: Number of workers of a loader that plays the opened store; None: it is unpickled.
    """
    sequences = target.dataset()
    root = Path("data").resolve()
    target.write(root, sequences)
    store = target.open(root, verify)
    sent, older = pickle.dumps(store), root.with_name("older")
    root.rename(older)
    target.write(root, [{**row, "x": row["x"] + 1, "y": row["y"] + 1} for row in sequences])
    happened = sum(
        path.read_bytes() != (root / path.relative_to(older)).read_bytes()
        for path in map(older.joinpath, target.shards(older))
    )
    for path in root.rglob("*"):
        newer = path.stat().st_mtime_ns + _LATER
        os.utime(path, ns=(newer, newer))
    if workers is None:
        found = read_through(lambda: pickle.loads(sent), sequences)
    else:
        policy = Fixed(4, shuffle=False)
        found = play_through(lambda: Loader(store, policy, num_workers=workers), sequences)
    return [replace(found, happened={REPLACED: happened})]


def _first_half(sequence: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    del rng
    return {"x": sequence["x"][: len(sequence["x"]) // 2]}


def _write_measured(root: Path) -> Path:
    write_store(root / "store", [{"x": np.arange(n)} for n in range(1, 40)], progress=False)
    _read_measured(root)
    (path,) = (root / "store").glob(".seqdata-measured-*")
    return path


def _read_measured(root: Path) -> Any:
    return measure_lengths(root / "store", _first_half, progress=False).lengths.tolist()


def _write_counted(root: Path) -> Path:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"x": [[n] * n for n in range(40)]}), root / "a.parquet")
    _read_counted(root)
    (path,) = root.glob(".seqdata-lengths-*")
    return path


def _read_counted(root: Path) -> Any:
    return open_store(root / "a.parquet").lengths.tolist()


def _write_run(root: Path) -> Path:
    from seqdata.runs.locate_batch import FitGeometry
    from seqdata.runs.run_file import NAME, RunFile

    data = {"train": "/data/train", "batching": "fixed"}
    run = RunFile(
        geometry=FitGeometry(), data=data, fingerprints={"train": ["ab" * 16]}, plan="cd" * 16,
        versions={"seqdata": "0.1.0"}, trainer={"max_epochs": 3}, roots=["/code"],
    )  # fmt: skip
    run.write(root / NAME)
    return root / NAME


def _read_run(root: Path) -> Any:
    from seqdata.runs.run_file import NAME, RunFile

    return RunFile.read(root / NAME)


def _write_saved(folder: Path, sequences: Sequences) -> None:
    FOREIGN.write(folder, sequences)
    names = FOREIGN.shards(folder)
    state = {"_data_files": [{"filename": name} for name in names]}
    (folder / STATE_FILE).write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")


def _state_of_saved(_: Path) -> list[str]:
    return [STATE_FILE]


MEASURED = SavedFile(name="measured lengths", write=_write_measured, read=_read_measured)
COUNTED = SavedFile(name="counted lengths", write=_write_counted, read=_read_counted)
RUN_FILE = SavedFile(
    name="a run file", write=_write_run, read=_read_run, kinds=(WHOLE, "ConfigError")
)  # fmt: skip
SAVED = replace(
    FOREIGN, name="a dataset saved by others", write=_write_saved, others=_state_of_saved
)  # fmt: skip
"""Files of the datasets library, with the state that names them."""

_OF_THE_CORE = {
    OWN.name: (MEASURED, RUN_FILE),
    FOREIGN.name: (COUNTED,),
}
_OPENING = 5.0  # seconds
_FLIPS, _QUICK_FLIPS = 100, 10  # in each region of a file
_REOPENED = {None: "unpickled", 2: "workers 2"}
_SAVED_SPECS = (
    DamageSpec(
        fault="D7", harms=try_damage.list_removed_files, kinds=("MissingShardError",),
        details=FILE_DETAILS,
    ),
    DamageSpec(
        fault="D2", harms=try_damage.draw_other_flips, part="others", details=FILE_DETAILS,
        kinds=("MissingShardError", "CorruptShardError", WHOLE),
    ),
)  # fmt: skip


def cases(target: FaultTarget, *, quick: bool = False) -> list[FaultCase]:
    """Return the cases of a kind of data on this machine.

    Args:
        target: Target whose saved files are damaged, and whose data is replaced.
        quick: Whether each case makes few trials.
    """
    files = (*target.saved_files, *_OF_THE_CORE.get(target.name, ()))
    found = [_make_flip_case(target, file, _QUICK_FLIPS if quick else _FLIPS) for file in files]
    for workers, detail in _REOPENED.items():
        verify = target.verify[-1]
        found.append(
            FaultCase(
                fault="D9", way=f"{target.name}, other data under the old path, {detail}",
                tries=partial(reopen_replaced, target, verify, workers),
                must=Expectation(
                    kinds=("FingerprintMismatch", "ConfigError"), details=("dataset",),
                    texts=("must be the data that was opened",), delivered=0,
                    happened={REPLACED: 1}, seconds=_OPENING,
                ),
                quick=target is OWN and workers is None,
            )
        )  # fmt: skip
    return found


def saved_cases(*, quick: bool = False) -> list[FaultCase]:
    """Return the cases of datasets that the datasets library saved."""
    return [
        replace(case, quick=case.quick and case.fault == "D7")
        for spec in _SAVED_SPECS
        for case in cases_damage.cases_of_spec(SAVED, spec, quick=quick)
    ]


def _make_flip_case(target: FaultTarget, file: SavedFile, count: int) -> FaultCase:
    return FaultCase(
        fault="D2", way=f"{target.name}, {file.name}, each region",
        tries=partial(flip_saved_file, file, count),
        must=Expectation(
            kinds=file.kinds, happened={CHANGED: count}, seconds=_OPENING,
        ),
        bound=300.0, quick=file in target.saved_files,
    )  # fmt: skip
