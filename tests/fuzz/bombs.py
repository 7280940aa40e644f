"""Small files that ask for very much memory, and a process that opens them.

Usage: python bombs.py make FOLDER; python bombs.py open FOLDER
"""

import contextlib
import json
import os
import sys
from pathlib import Path

import numpy as np

ROWS = 4243  # a number that is found in the file, to be changed
HUGE = 1 << 60


def lists(rows=ROWS):
    import pyarrow as pa

    return pa.ListArray.from_arrays(
        pa.array(np.arange(rows + 1, dtype=np.int32)), pa.array(np.zeros(rows, dtype=np.int8))
    )


def write_ipc(path, columns, compression=None, *, stream=False):
    import pyarrow as pa

    batch, make = pa.record_batch(columns), pa.ipc.new_stream if stream else pa.ipc.new_file
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as file, make(file, batch.schema, options=options) as writer:
        writer.write_batch(batch)


def write_parquet(path, columns, **options):
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table(columns), path, **options)


def replace_numbers(path, old, new):
    """Change every 8 bytes of a file that are a number into another."""
    raw, was = path.read_bytes(), old.to_bytes(8, "little")
    if was not in raw:
        raise ValueError(f"{old} is not in {path}")
    path.write_bytes(raw.replace(was, new.to_bytes(8, "little", signed=True)))


def zeros(path, **options):
    """A column of 320 MiB of zeros, which compression makes small."""
    import pyarrow as pa

    values = pa.Array.from_buffers(
        pa.int8(), 320 << 20, [None, pa.py_buffer(np.zeros(320 << 20, dtype=np.int8))]
    )
    edges = np.linspace(0, 320 << 20, 9).astype(np.int32)
    write_ipc(path, {"x": pa.ListArray.from_arrays(pa.array(edges), values)}, **options)


def declared(path):
    write_ipc(path, {"x": lists()}, "zstd")
    replace_numbers(path, 4 * (ROWS + 1), HUGE)  # bytes of the offsets, before their compression


def rows_of_arrow(path, *, stream):
    write_ipc(path, {"x": lists()}, stream=stream)
    replace_numbers(path, ROWS, HUGE)


def rows_of_parquet(path):
    """A footer that declares 2^60 rows, and values: both are written as varints."""
    write_parquet(path, {"x": lists()}, use_dictionary=False)
    raw = path.read_bytes()
    size = int.from_bytes(raw[-8:-4], "little")
    footer = raw[-8 - size : -8].replace(varint(2 * ROWS), varint(2 * HUGE))
    path.write_bytes(raw[: -8 - size] + footer + len(footer).to_bytes(4, "little") + b"PAR1")


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def codes(path):
    """One text of 4 MiB, 2,000 times."""
    import pyarrow as pa

    indices = pa.array(np.zeros(2_000, dtype=np.int8))
    text = pa.DictionaryArray.from_arrays(indices, ["t" * (4 << 20)])
    write_ipc(path, {"x": lists(2_000), "t": text})


def views(path):
    import pyarrow as pa

    one = np.array([4 << 20, int.from_bytes(b"tttt", "little"), 0, 0], dtype=np.int32)
    buffers = [None, pa.py_buffer(np.tile(one, 2_000)), pa.py_buffer(b"t" * (4 << 20))]
    text = pa.Array.from_buffers(pa.string_view(), 2_000, buffers)
    write_ipc(path, {"x": lists(2_000), "t": text})


def codes_of_parquet(path, **options):
    import pyarrow as pa

    indices = pa.array(np.zeros(2_000, dtype=np.int32))
    text = pa.DictionaryArray.from_arrays(indices, ["t" * (4 << 20)])
    write_parquet(
        path, {"x": lists(2_000), "t": text}, dictionary_pagesize_limit=1 << 30, **options
    )


def same_of_parquet(path):
    """Numbers that are all one: a run of the dictionary's only entry."""
    import pyarrow as pa

    edges = pa.array(np.arange(5, dtype=np.int32) * 9_000_000)
    values = pa.array(np.zeros(36_000_000, dtype=np.int64))
    write_parquet(path, {"x": pa.ListArray.from_arrays(edges, values)})


BOMBS = {
    "zeros.arrow": lambda path: zeros(path, compression="zstd"),
    "zeros.feather": lambda path: zeros(path, compression="lz4"),
    "zeros-stream.arrow": lambda path: zeros(path, compression="zstd", stream=True),
    "declared.arrow": declared,
    "rows.arrow": lambda path: rows_of_arrow(path, stream=False),
    "rows-stream.arrow": lambda path: rows_of_arrow(path, stream=True),
    "rows.parquet": rows_of_parquet,
    "codes.arrow": codes,
    "views.arrow": views,
    "codes.parquet": codes_of_parquet,
    "texts.parquet": lambda path: codes_of_parquet(path, store_schema=False),
    "same.parquet": same_of_parquet,
}


def make(folder):
    for name, write in BOMBS.items():
        write(Path(folder) / name)


def open_all(folder):
    import child

    child.warm_up()
    for name in BOMBS:
        with contextlib.suppress(OSError):  # not everywhere allowed; then peaks add up
            Path("/proc/self/clear_refs").write_text("5")  # the peak of resident memory
        before = child.memory()[1]
        how, told = child.outcome(Path(folder) / name)
        line = {"bomb": name, "outcome": how, "told": told if how != "data" else ""}
        line["grown"] = child.memory()[1] - before
        os.write(1, (json.dumps(line) + "\n").encode())


if __name__ == "__main__":
    {"make": make, "open": open_all}[sys.argv[1]](sys.argv[2])
