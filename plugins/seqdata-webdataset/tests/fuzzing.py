"""Open and read mutated shards one after the other, with a cap on memory; one line for each.

Usage: python fuzzing.py SCRATCH FIRST LAST CAP. A case is made from its number alone.
"""

import hashlib
import io
import json
import os
import resource
import shutil
import sys
import tarfile
import traceback
import warnings
import wave
import zipfile
from pathlib import Path

import numpy as np
from seqdata_webdataset import open_webdataset

from seqdata.errors import SeqDataError

ROWS = 11
FORMATS = (tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)
KINDS = ("shard", "shard-indexed", "index", "index-resealed")
SCHEMA = {"npz": {"a": "int16"}, "json": {"b": int}, "raw.bin": "uint8"}
NASTY = (b"0" * 11 + b"\0", b"7" * 11 + b"\0", b"\x80" + b"\xff" * 11, b"-1         \0", b"\0" * 12)
NUMBERS = (0, 1, -1, 7, 255, 1 << 16, (1 << 31) - 1, 1 << 40, (1 << 63) - 1, -(1 << 63))


def memory():
    """Return the bytes that are mapped now, and the most that were resident."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return [int(lines[name].split()[0]) << 10 for name in ("VmSize", "VmHWM")]


def members():
    for number in range(ROWS):
        key = f"{'é/' * number * 8}u{number}"
        array, sound, archive = io.BytesIO(), io.BytesIO(), io.BytesIO()
        np.save(array, np.full((number % 4, 3), number, dtype=np.float32))
        with wave.open(sound, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes(bytes(2 * number))
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as made:
            inner = io.BytesIO()
            np.save(inner, np.arange(number, dtype=np.int16))
            made.writestr("a.npy", inner.getvalue())
        yield f"{key}.npy", array.getvalue()
        yield f"{key}.wav", sound.getvalue()
        yield f"{key}.npz", archive.getvalue()
        yield f"{key}.json", json.dumps({"b": number}).encode()
        yield f"{key}.txt", b"text" * number
        yield f"{key}.cls", str(number).encode()
        yield f"{key}.raw.bin", bytes(200 * number * number)


def write_shard(path, format):
    with tarfile.open(path, "w", format=format) as shard:
        for name, content in members():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            shard.addfile(info, io.BytesIO(content))


def read_all(location):
    """Return the texts and numbers of every field, and the keys."""
    store = open_webdataset(location, index="build", schema=SCHEMA, progress=False)
    content = {}
    axis, lengths = next(iter(store.lengths_of.items()))
    numbers = np.arange(len(store))
    spans = np.stack([numbers, 0 * numbers, lengths.astype(np.int64)], axis=1)
    for name, column in store.read(spans, list(store.fields), axis=axis).items():
        if isinstance(column, list):
            content[name] = [str(one) for one in column]
            continue
        bounds = np.append(0, np.cumsum(column.lengths))
        out = np.empty((int(bounds[-1]), *column.shape), column.dtype)
        column.fill(out, bounds, None)
        content[name] = out.tobytes()
        if len(column):
            column[0]
    return content, store.keys(numbers)


def mutated(seeds, number, folder):
    """Make a case: gives its kind, and what was done."""
    rng = np.random.default_rng([11, number])
    kind = KINDS[number % len(KINDS)]
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(seeds / str(number // len(KINDS) % len(FORMATS)), folder)
    shard, index = folder / "a.tar", folder / "seqdata-index" / "index.idx"
    if kind == "shard":
        shutil.rmtree(folder / "seqdata-index")
    path = shard if kind.startswith("shard") else index
    raw, said = bytearray(path.read_bytes()), []
    for _ in range(int(rng.choice([1, 1, 1, 2, 4]))):
        said.append(mutate(raw, rng, reseal=kind == "shard" and rng.random() < 0.7))
    if kind == "index-resealed":
        raw[14:78] = hashlib.sha256(raw[79:]).hexdigest().encode()
    path.write_bytes(raw)
    return kind, ", ".join(said)


def mutate(raw, rng, *, reseal):
    if not raw:
        return "left empty"
    at, how = int(rng.integers(len(raw))), int(rng.integers(8))
    header = at // 512 * 512
    if how <= 1:
        raw[at] ^= 1 << int(rng.integers(8))
        said = f"flipped a bit of {at}"
    elif how == 2:
        value = NASTY[int(rng.integers(len(NASTY)))]
        raw[header + 124 : header + 136] = value
        said = f"put {value!r} as a size at {header}"
    elif how == 3:
        kind = bytes([int(rng.choice(list(b"0157LKxgSVA\0")))])
        raw[header + 156 : header + 157] = kind
        said = f"made {header} a {kind!r}"
    elif how == 4:
        value = NUMBERS[int(rng.integers(len(NUMBERS)))]
        at = at // 8 * 8
        raw[at : at + 8] = value.to_bytes(16, "little", signed=True)[:8]
        said = f"put {value} at {at}"
    elif how == 5:
        del raw[at if rng.random() < 0.5 else header :]
        said = f"cut at {at}"
    elif how == 6:
        size = int(rng.choice([1, 64, 512, 4096]))
        raw[at : at + size] = bytes(len(raw[at : at + size]))
        said = f"zeroed {size} at {at}"
    else:
        other = int(rng.integers(len(raw))) // 512 * 512
        raw[header : header + 512] = raw[other : other + 512]
        said = f"copied a block from {other} to {header}"
    if reseal and len(raw) >= header + 512 and any(raw[header : header + 512]):
        raw[header + 148 : header + 156] = b" " * 8
        total = sum(raw[header : header + 512])
        raw[header + 148 : header + 156] = f"{total:06o}\0 ".encode()
        said += ", with a right sum"
    return said


def main(scratch, first, last, cap):
    warnings.simplefilter("ignore")
    scratch = Path(scratch)
    seeds = scratch / "seeds"
    wells = []
    for number, format in enumerate(FORMATS):
        (seeds / str(number)).mkdir(parents=True, exist_ok=True)
        write_shard(seeds / str(number) / "a.tar", format)
        wells.append(read_all(seeds / str(number)))
    size, resident = memory()
    resource.setrlimit(resource.RLIMIT_AS, (size + int(cap), size + int(cap)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in range(int(first), int(last)):
        kind, done = mutated(seeds, number, scratch / "case")
        told = ""
        try:
            found = read_all(scratch / "case")
            how = "data"
            well = wells[number // len(KINDS) % len(FORMATS)]
            if kind in ("shard-indexed", "index") and found != well:
                how, told = "bad", "wrong data, silently"
        except SeqDataError as error:
            how, told = type(error).__name__, str(error)
        except BaseException:
            how, told = "bad", traceback.format_exc()
        line = {"case": number, "kind": kind, "done": done, "outcome": how, "told": told}
        os.write(1, (json.dumps({**line, "rss": memory()[1] - resident}) + "\n").encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
