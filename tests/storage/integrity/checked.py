"""A store with a long sequence, all that can be read of it, and flips of its bits."""

from dataclasses import replace

import numpy as np

from seqdata.storage.arrow.manifest import MANIFEST, dump_manifest, load_manifest
from seqdata.storage.arrow.write import write_arrow
from seqdata.storage.fields import field_width
from seqdata.storage.integrity.checksums import CHECKSUM_BYTES

LONG = 2 * CHECKSUM_BYTES // 4 + 100  # timesteps of 4 bytes: three blocks
LENGTHS = [3, 0, LONG, 1, 2, 5]
FIELDS = ["id", "x", "wide", "y", "raw"]


def row(number):
    length = LENGTHS[number]
    return {
        "id": f"u{number}",
        "x": np.arange(length, dtype=np.int32) + number,
        "wide": np.full((min(length, 9), 2), number, dtype=np.int16),
        "y": number,
        "raw": b"\0" * number,
    }


def write(root):
    rows = [row(number) for number in range(len(LENGTHS))]
    write_arrow(root, rows, axes={"wide": "wide"}, shard_bytes=CHECKSUM_BYTES)
    return root


def spans_of(store, axis="time"):
    lengths = store.lengths_of[axis].astype(np.int64)
    return np.stack([np.arange(len(lengths)), np.zeros_like(lengths), lengths], axis=1)


def everything(store, *, filled=True):
    """Return all that can be read: plain Python, to be compared."""
    found = {"keys": store.keys(range(len(store)))}
    columns = store.read(spans_of(store), FIELDS)
    for name, column in columns.items():
        if isinstance(column, list):
            found[name] = column
        elif filled:
            bounds = np.concatenate([[0], np.cumsum(column.lengths)])
            out = np.zeros((int(bounds[-1]), *column.shape), column.dtype)
            column.fill(out, bounds, None)
            found[name] = out.tolist()
        else:
            found[name] = np.concatenate([column[i] for i in range(len(column))]).tolist()
    found["lengths"] = {axis: lengths.tolist() for axis, lengths in store.lengths_of.items()}
    return found


def flip(path, place, bit=0):
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << bit]))


def place_of(store, number, name, buffer=0, offset=0):
    """Return the file and position of some byte of a sequence's values (or of its offsets)."""
    starts = np.cumsum([0, *(shard.sequences for shard in store.manifest.shards)])
    shard = int(np.searchsorted(starts, number, side="right")) - 1
    about = store.manifest.shards[shard]
    first = number - int(starts[shard])
    if buffer == 1:
        return about.file, about.buffers[name][1][0] + 8 * first + offset
    first = store._reader.sources[name].find(number)[1]
    field = store.manifest.fields[name]
    width = field_width(field)
    return about.file, about.buffers[name][0][0] + first * width + offset


def marked(store):
    return int(np.unpackbits(np.frombuffer(store._info.bits.buffer, np.uint8)).sum())


def rewrite(root, **changes):
    (root / MANIFEST).write_bytes(dump_manifest(replace(load_manifest(root), **changes)))
