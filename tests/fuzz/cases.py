"""Small files that are well, and a number -> the same files, mutated: always in the same way.

A case is a folder to open. Its number says which kind of file it was, and what was done to it.
"""

import hashlib
import json
import shutil

import numpy as np

ROWS = 23
NASTY = [
    0, 1, -1, 2, 7, 127, 128, 255, 256, 1 << 15, (1 << 16) - 1, (1 << 31) - 1, -(1 << 31), 1 << 32,
    1 << 40, 1 << 60, (1 << 63) - 1, -(1 << 63), 24, 100, 1 << 20, 1 << 28,
]  # fmt: skip


def rows():
    for i in range(ROWS):
        yield {
            "id": f"utt-{i:03d}/é",
            "x": np.arange(i % 5, dtype=np.int32),
            "mel": np.full((i % 5, 3), i / 7, dtype=np.float32),
            "text": b"" if i % 6 == 0 else b"abc\xff" * (i % 4),
            "speaker": f"s{i % 3}",
            "level": i,
            "flag": i % 2 == 0,
            "vector": np.arange(4, dtype=np.float64) + i,
        }


def table():
    import pyarrow as pa

    def column(name, type_):
        return pa.array(
            [row[name].tolist() if hasattr(row[name], "tolist") else row[name] for row in rows()],
            type_,
        )

    return pa.table(
        {
            "x": column("x", pa.list_(pa.int32())),
            "big": column("x", pa.large_list(pa.int64())),
            "mel": column("mel", pa.list_(pa.list_(pa.float32(), 3))),
            "nested": column("mel", pa.list_(pa.list_(pa.float64()))),
            "bits": pa.array([[i % 2 == 0] * (i % 5) for i in range(ROWS)]),
            "id": column("id", pa.string()),
            "text": column("text", pa.large_binary()),
            "speaker": column("speaker", pa.string()).dictionary_encode(),
            "seen": pa.array(
                ["a long name, not inside its view " * (i % 3) for i in range(ROWS)],
                pa.string_view(),
            ),
            "raw": pa.array([b"%04d" % i for i in range(ROWS)], pa.binary(4)),
            "level": column("level", pa.int16()),
            "flag": column("flag", pa.bool_()),
            "vector": column("vector", pa.list_(pa.float64(), 4)),
            "when": pa.array(range(ROWS), pa.timestamp("us")),
            "tensor": pa.ExtensionArray.from_storage(
                pa.fixed_shape_tensor(pa.int16(), [2, 2]),
                pa.array([[i, 1, 2, 3] for i in range(ROWS)], pa.list_(pa.int16(), 4)),
            ),
        }
    )


def write_ipc(path, *, stream=False, compression=None):
    import pyarrow as pa

    given, make = table(), pa.ipc.new_stream if stream else pa.ipc.new_file
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as file, make(file, given.schema, options=options) as writer:
        for batch in given.to_batches(max_chunksize=9):
            writer.write_batch(batch)


def write_parquet(path, **options):
    from pyarrow import parquet

    parquet.write_table(table().drop_columns(["seen"]), path, row_group_size=9, **options)


def write_own(path, **options):
    from seqdata.storage.arrow.write import write_arrow

    write_arrow(path, rows(), axes={"vector": None}, shard_bytes=900, **options)


KINDS = {
    "file": lambda folder: write_ipc(folder / "t.arrow"),
    "lz4": lambda folder: write_ipc(folder / "t.feather", compression="lz4"),
    "zstd": lambda folder: write_ipc(folder / "t.arrow", compression="zstd"),
    "stream": lambda folder: write_ipc(folder / "t.arrow", stream=True),
    "stream-zstd": lambda folder: write_ipc(folder / "t.arrow", stream=True, compression="zstd"),
    "parquet": lambda folder: write_parquet(folder / "t.parquet"),
    "parquet-plain": lambda folder: write_parquet(
        folder / "t.parquet", use_dictionary=False, compression="zstd", data_page_version="2.0"
    ),
    "parquet-delta": lambda folder: write_parquet(
        folder / "t.parquet",
        use_dictionary=False,
        compression="gzip",
        write_page_checksum=True,
        column_encoding={
            "id": "DELTA_BYTE_ARRAY",
            "text": "DELTA_LENGTH_BYTE_ARRAY",
            "level": "DELTA_BINARY_PACKED",
            "vector.list.element": "BYTE_STREAM_SPLIT",
        },
    ),
    "own": lambda folder: write_own(folder),
    "own-resealed": lambda folder: write_own(folder),
}


def make_seeds(folder):
    """Write every kind of file once, and open it once, so that what is kept beside it is there."""
    from seqdata.api import open_store

    for kind, make in KINDS.items():
        (folder / kind).mkdir(parents=True)
        make(folder / kind)
        open_store(folder / kind)


def mutated(seeds, number, folder):
    """Make a case: gives its kind, and what was done."""
    rng = np.random.default_rng([7, number])
    kind = list(KINDS)[number % len(KINDS)]
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(seeds / kind, folder)
    names = sorted(path.name for path in folder.iterdir())
    chances = np.array([chance_of(kind, name) for name in names])
    name = str(rng.choice(names, p=chances / chances.sum()))
    path = folder / name
    raw = path.read_bytes()
    if name.endswith(".json") and rng.random() < 0.8:
        return kind, name, mutate_json(path, raw, rng, reseal=kind == "own-resealed")
    said = []
    for _ in range(int(rng.choice([1, 1, 1, 2, 3, 6]))):
        done, raw = mutate_bytes(raw, rng)
        said.append(done)
    path.write_bytes(raw)
    return kind, name, ", ".join(said)


def chance_of(kind, name):
    if kind == "own-resealed":
        return 9.0 if name.endswith(".json") else 0.1
    return 0.2 if name.startswith(".") else 1.0


def mutate_bytes(raw, rng):
    raw = bytearray(raw)
    if not raw:
        return "left empty", bytes(raw)
    at = int(rng.integers(len(raw)))
    if rng.random() < 0.4:  # metadata lies at the ends
        at = min(at % 700, len(raw) - 1) if rng.random() < 0.3 else max(0, len(raw) - 1 - at % 3000)
    how = int(rng.integers(9))
    if how <= 1:
        raw[at] ^= 1 << int(rng.integers(8))
        return f"flipped a bit of {at}", bytes(raw)
    if how == 2:
        raw[at] = int(rng.integers(256))
        return f"changed {at}", bytes(raw)
    if how <= 5:
        width = int(rng.choice([8, 8, 4, 2]))
        at = at // width * width
        value = NASTY[int(rng.integers(len(NASTY)))]
        raw[at : at + width] = value.to_bytes(16, "little", signed=True)[:width]
        return f"put {value} at {at}, {width} bytes", bytes(raw)
    if how == 6:
        del raw[at:]
        return f"cut at {at}", bytes(raw)
    if how == 7:
        size = int(rng.choice([1, 4, 8, 64, 4096]))
        raw[at : at + size] = bytes(len(raw[at : at + size]))
        return f"zeroed {size} at {at}", bytes(raw)
    size, other = int(rng.choice([4, 8, 16, 64, 512])), int(rng.integers(len(raw)))
    raw[at : at + size] = raw[other : other + size]
    return f"copied {size} from {other} to {at}", bytes(raw)


def mutate_json(path, raw, rng, *, reseal):
    """Change one value of a manifest; whoever means harm can also make its digests anew."""
    whole = json.loads(raw)
    places = list(places_of(whole))
    holder, key = places[int(rng.integers(len(places)))]
    old, new = holder[key], None
    how = int(rng.integers(4))
    if how == 0 or isinstance(old, dict | list):
        new = [None, [], {}, "", "../x", "/etc/passwd", 0, -1, 1.5, True, [[0, 8]]][
            int(rng.integers(11))
        ]
    elif isinstance(old, int) and not isinstance(old, bool):
        new = [*NASTY, 1 << 70, old + 1, old - 1, old * 8, old + 8][int(rng.integers(27))]
    else:
        new = ["uint8", "float64", "int64", "str", "time", "..", "part-00001.arrow", "a/b", "x"][
            int(rng.integers(9))
        ]
    holder[key] = new
    path.write_text(sealed(whole) if reseal else json.dumps(whole), "utf-8")
    return f"{key!r}: {str(old)[:40]!r} became {new!r}"


def sealed(whole):
    """Return a manifest's text with digests that are right: whoever means harm makes them, too."""
    from seqdata.storage.arrow.manifest import DIGEST_PLACEHOLDER, compute_fingerprint

    whole |= {"fingerprint": compute_fingerprint(whole), "digest": DIGEST_PLACEHOLDER}
    before, _, after = json.dumps(whole).rpartition(DIGEST_PLACEHOLDER)
    digest = hashlib.sha256(f"{before}{DIGEST_PLACEHOLDER}{after}".encode()).hexdigest()
    return f"{before}{digest}{after}"


def places_of(value):
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in pairs:
        yield value, key
        if isinstance(inner, dict | list):
            yield from places_of(inner)
