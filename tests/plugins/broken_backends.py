"""A sound backend of own files, and what authors do wrong: each class has one fault."""

import hashlib
import json
import os
import threading
import uuid
import zlib
from pathlib import Path

import numpy as np

from seqdata.backends import ArrayColumn, Field
from seqdata.errors import ConfigError, DataError

WIDTH = 2 * 4  # bytes of a timestep


def write_shards(folder, *, shards=3, records=5):
    """Write shards: a line of JSON, then float32 values (T, 2) of each record."""
    random = np.random.default_rng(0)
    folder.mkdir()
    for shard in range(shards):
        values = [random.standard_normal((3 + 4 * n, 2)).astype("<f4") for n in range(records)]
        values.append(random.standard_normal((2_000, 2)).astype("<f4"))
        about = [
            {"id": f"r{n}", "steps": len(x), "y": n + 10 * shard, "crc": zlib.crc32(x.tobytes())}
            for n, x in enumerate(values)
        ]
        content = b"".join(x.tobytes() for x in values)
        (folder / f"s{shard}.rec").write_bytes(json.dumps(about).encode() + b"\n" + content)
    return folder


class Sound:
    """A folder of shards, without a fault."""

    def __init__(self, location, *, verify=None):
        self.fields = {"x": Field("float32", (2,), "time"), "y": Field("int64", (), None)}
        self.path = Path(location).absolute()
        self.files = sorted(self.path.glob("*.rec"))
        self.records, self.shard_ends = [], []
        for number, file in enumerate(self.files):
            header = file.read_bytes().split(b"\n")[0]
            at = len(header) + 1
            for about in json.loads(header):
                self.records.append({**about, "file": number, "at": at})
                at += about["steps"] * WIDTH
            self.shard_ends.append(len(self.records))
            if file.stat().st_size != at:
                raise DataError(f"{file}: must have {at} bytes. Restore it")
        self.lengths = np.array([record["steps"] for record in self.records], dtype=np.int64)
        self.lengths_of = {"time": self.lengths}
        self.shards = tuple(file.name for file in self.files)
        self.fingerprint = hashlib.sha256(repr(self.records).encode()).hexdigest()[:32]

    def __reduce__(self):
        return type(self), (str(self.path),)

    def __len__(self):
        return len(self.records)

    def keys(self, numbers):
        records = [self.records[number] for number in numbers]
        return [f"{self.shards[record['file']]}/{record['id']}" for record in records]

    def base_numbers(self, numbers):
        return numbers

    def read(self, spans, fields, *, axis="time"):
        if axis != "time" or not set(fields) <= set(self.fields):
            raise ConfigError(f"{self.path}: has no {list(fields)} along {axis!r}")
        for number, start, stop in spans.tolist():
            if not (0 <= number < len(self) and 0 <= start <= stop <= self.lengths[number]):
                raise ConfigError(f"{self.path}: sequence {number} has no {start}..{stop}")
        made = {"x": self.read_x, "y": self.read_y}
        return {name: made[name](spans.tolist()) for name in fields}

    def read_x(self, spans):
        pieces = [self.read_values(*span) for span in spans]
        return ArrayColumn(np.dtype("float32"), (2,), pieces)

    def read_y(self, spans):
        pieces = [np.array([self.records[number]["y"]], np.int64) for number, _, _ in spans]
        return ArrayColumn(np.dtype("int64"), (), pieces)

    def read_values(self, number, start, stop):
        record = self.records[number]
        file = self.files[record["file"]]
        content = self.read_bytes(file, record["at"] + start * WIDTH, (stop - start) * WIDTH)
        if len(content) < (stop - start) * WIDTH:
            raise DataError(f"{file}: record {record['id']!r} is cut off. Restore it")
        return np.frombuffer(content, "<f4").reshape(-1, 2)

    def read_bytes(self, file, at, count):
        with open(file, "rb") as opened:
            opened.seek(at)
            return opened.read(count)


class ScalarValue(Sound):
    def read_y(self, spans):
        pieces = [np.array(self.records[number]["y"]) for number, _, _ in spans]
        return ArrayColumn(np.dtype("int64"), (), pieces)


class WrongLengths(Sound):
    def __init__(self, location, *, verify=None):
        super().__init__(location)
        self.lengths[2] += 1

    def read_values(self, number, start, stop):
        return super().read_values(number, start, min(stop, self.records[number]["steps"]))


class WrongDtype(Sound):
    def read_values(self, number, start, stop):
        return super().read_values(number, start, stop).astype("f8")


class LostRows(Sound):
    def read_x(self, spans):
        column = super().read_x(spans)
        for at, (number, _, _) in enumerate(spans[:-1]):
            if number + 1 in self.shard_ends and spans[at + 1][0] == number + 1:
                column.pieces[at] = column.pieces[at][:-1]
        return column


class RepeatedIds(Sound):
    def keys(self, numbers):
        return [self.records[number]["id"] for number in numbers]


class SpansOffByOne(Sound):
    def read_values(self, number, start, stop):
        late = int(0 < start < stop and stop < self.lengths[number])
        return super().read_values(number, start + late, stop + late)


class NotPicklable(Sound):
    def __init__(self, location, *, verify=None):
        super().__init__(location)
        self.lock = threading.Lock()

    def __reduce__(self):
        return type(self), (str(self.path), self.lock)


class OtherFingerprint(Sound):
    def __init__(self, location, *, verify=None):
        super().__init__(location)
        self.fingerprint = uuid.uuid4().hex

    def __reduce__(self):
        return _open_with_mark, (type(self), str(self.path), self.fingerprint)


def _open_with_mark(kind, path, fingerprint):
    store = kind(path)
    store.fingerprint = fingerprint
    return store


class SharedAfterFork(Sound):
    def __init__(self, location, *, verify=None):
        self.opened = {}
        super().__init__(location)

    def read_bytes(self, file, at, count):
        opened = self.opened.setdefault(file, None) or open(file, "rb")  # noqa: SIM115
        self.opened[file] = opened
        opened.seek(at)
        return opened.read(count)

    def __del__(self):
        for opened in self.opened.values():
            opened.close()


class SwallowedErrors(Sound):
    def read_values(self, number, start, stop):
        try:
            return super().read_values(number, start, stop)
        except (OSError, DataError):
            return np.zeros((stop - start, 2), "<f4")

    def __reduce__(self):
        return _open_without_reading, (type(self), self.__dict__)


def _open_without_reading(kind, state):
    store = object.__new__(kind)
    store.__dict__.update(state)
    return store


class WritableView(Sound):
    def __init__(self, location, *, verify=None):
        super().__init__(location)
        self.values = {}

    def read_values(self, number, start, stop):
        if number not in self.values:
            whole = super().read_values(number, 0, self.records[number]["steps"])
            self.values[number] = whole.copy()
        return self.values[number][start:stop]


class ReusedBuffer(Sound):
    buffer = np.zeros((1 << 14, 2), "<f4")

    def read_x(self, spans):
        at, column = 0, super().read_x(spans)
        for number, piece in enumerate(column.pieces):
            self.buffer[at : at + len(piece)] = piece
            column.pieces[number] = self.buffer[at : at + len(piece)]
            at += len(piece)
        return column


class IdWithoutUtf8(Sound):
    def keys(self, numbers):
        return [key + os.fsdecode(b"\xff") for key in super().keys(numbers)]
