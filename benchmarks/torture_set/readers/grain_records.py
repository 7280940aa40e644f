"""Grain on ArrayRecord files; how a record is encoded is the user's: an .npz without pickle."""

from __future__ import annotations

import io
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from torture_set.asking import Ask, Library, Reading, Rows, collate, unpack_all
from torture_set.truth import BATCH, COUNT, SHARDS

_EACH = -(-COUNT // SHARDS)


def load() -> None:
    import absl.flags
    import grain.python  # noqa: F401
    import torch  # noqa: F401

    absl.flags.FLAGS.mark_as_parsed()


def write(folder: Path, rows: Rows) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    folder.mkdir()
    for number in range(SHARDS):
        sink = ArrayRecordWriter(str(folder / f"part-{number:05d}.array_record"), "group_size:1")
        for row in islice(rows, _EACH):
            sink.write(_encode(row))
        sink.close()


def _encode(row: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    np.savez(file, id=np.array(row["id"]), x=row["x"], y=np.array(row["y"]))
    return file.getvalue()


def decode(record: bytes) -> dict[str, Any]:
    """Return the sequence that a record holds."""
    with np.load(io.BytesIO(record)) as found:
        return {"id": str(found["id"]), "x": found["x"], "y": int(found["y"])}


def read(ask: Ask) -> Reading:
    import grain.python as grain

    from torture_set.readers.grain_steps import Decode

    last = max(ask.folder.glob("*.array_record")).stem
    names = [f"part-{number:05d}.array_record" for number in range(int(last.split("-")[1]) + 1)]
    source = grain.ArrayRecordDataSource([str(ask.folder / name) for name in names])
    sampler = grain.IndexSampler(
        len(source), grain.ShardOptions(ask.rank, ask.world), ask.shuffle, num_epochs=1, seed=3
    )
    steps = [Decode(), grain.Batch(BATCH, drop_remainder=False, batch_fn=collate)]
    loader = grain.DataLoader(
        data_source=source, sampler=sampler, operations=steps, worker_count=ask.workers
    )
    batches = iter(loader)
    if ask.state is not None:
        batches.set_state(ask.state)
    return Reading(unpack_all(batches), batches.get_state)


LIBRARY = Library(("grain", "array_record"), load, write, read)
