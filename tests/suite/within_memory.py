"""Prepare a table under a limit of memory, run by test_write_once: FILE, which is written first."""

import resource
import sys
from pathlib import Path

import lightning  # noqa: F401 - its memory is not counted
import numpy as np
import pyarrow as pa
import pyarrow.parquet
from seqdata_frames import Frames

from seqdata import ForecastDataModule, open_store
from seqdata.errors import LimitError
from seqdata.suite import write_once

SERIES, STEPS, GROUP = 1600, 5000, 1 << 17
LIMIT = 128 << 20  # bytes beside what is there before
TABLE = SERIES * STEPS * 24  # bytes of the columns that are read


def write(path):
    """Write series in order, some at a time."""
    schema = pa.schema([("site", pa.string()), ("step", pa.int64()), *(
        (name, pa.float64()) for name in ("load", "price")
    )])  # fmt: skip
    random = np.random.default_rng(0)
    with pyarrow.parquet.ParquetWriter(path, schema, compression="none") as writer:
        for first in range(0, SERIES, 100):
            names = pa.array([f"site-{number:05d}" for number in range(first, first + 100)])
            rows = pa.table(
                [
                    names.take(np.repeat(np.arange(100), STEPS)),
                    np.tile(np.arange(STEPS), 100),
                    random.normal(size=100 * STEPS),
                    random.normal(size=100 * STEPS),
                ],
                schema=schema,
            )
            writer.write_table(rows, row_group_size=GROUP)


def first_batches(path):
    """Return the shape of the first batch of each part, and what was done."""
    store = open_store(path, backend=Frames(cache_bytes=4 << 20), group="site", order="step")
    data = ForecastDataModule(
        store, id="site", time="step", target="load", known="price", context=48, horizon=12,
        split={"train": "..4000", "val": "4000.."}, seed=0,
    )  # fmt: skip
    data.setup("fit")
    loaders = data.train_dataloader(), data.val_dataloader()
    return [tuple(next(iter(loader)).future["load"].shape) for loader in loaders], data.describe()


if __name__ == "__main__":
    write(sys.argv[1])
    write_once.PART_BYTES, write_once._SHARD_BYTES = 2 << 20, 8 << 20  # as small as the table
    write_once.MEMORY_BYTES = LIMIT
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    used = int(status["VmData"].split()[0]) * 1024
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used + LIMIT, most))
    shapes, described = first_batches(sys.argv[1])
    sys.stdout.write(f"{TABLE // LIMIT} {shapes} {'prepared in' in described}\n")
    write_once.MEMORY_BYTES = 1 << 40
    try:
        first_batches(sys.argv[1])
    except (MemoryError, LimitError):
        sys.stdout.write("in memory it does not fit\n")
