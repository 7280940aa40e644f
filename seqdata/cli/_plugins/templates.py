"""The files of a new plugin, by kind, as texts in which ``$name`` and others are replaced.

A package is small enough to be read at once: one module, its tests, its metadata.
"""

from __future__ import annotations

from dataclasses import dataclass

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "$distribution"
version = "0.1.0"
description = "$about for seqdata."
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["lightning-seqdata$core", "numpy>=2.0"]
optional-dependencies = { test = ["pytest", "seqdata-testing$core"] }

$points
[tool.setuptools]
py-modules = ["$module"]
"""
HOOKS = """\
[project.entry-points.seqdata]
$entry = "$module"

[project.entry-points."seqdata.api"]
$level = "$entry"
"""
SUFFIXES = """
[project.entry-points."seqdata.suffixes"]
"$suffix" = "$name"
"""
CLASSES = """\
[project.entry-points."seqdata.classes"]
$cls = "$module:$cls"
"""
README = """\
# $distribution

$about for seqdata (`lightning-seqdata`).

```sh
pip install -e '.[test]'
pytest
```

$use
"""
WORKFLOW = """\
on: [push, pull_request]
jobs:
  test:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with: { python-version: "3.12" }
      - run: pip install '.[test]' && pytest
"""


@dataclass(frozen=True, slots=True)
class KindTemplate:
    """The files of one kind of plugin.

    Attributes:
        about: Description of the package.
        cls: Name of its class, with ``${camel}`` for the name of the plugin.
        points: Its entry points.
        use: How it is used, for the README.
        module: Its module.
        tests: Tests of the module.
    """

    about: str
    cls: str
    points: str
    use: str
    module: str
    tests: str


FORMAT = KindTemplate(
    about="Files of the format $name",
    cls="${camel}Files",
    points=HOOKS + SUFFIXES,
    use="""\
`open_store("data/a$suffix")` and every command of seqdata open such files, folders and URLs:
`seqdata stats data/`. Check your own: `seqdata plugins check $name data/`.""",
    module='''\
"""$about: a line of JSON, then float32 samples."""

import json

import numpy as np

from seqdata.backends import Extents, FileFormat, FileIndex, RandomAccessFile, hookimpl


class $cls(FileFormat):
    """Says in which bytes of a file the values of each sequence lie; seqdata does the rest."""

    suffixes = ("$suffix",)

    def index(self, file: RandomAccessFile) -> FileIndex:
        """Return the extents of a file; an error that is raised here names the file."""
        line = file.read(0, 1 << 24).split(b"\\n")[0]
        about = json.loads(line)  # [{"id": "a", "steps": 5, "label": 1}, ...]
        steps = np.array([each["steps"] for each in about], dtype=np.int64)
        ends = len(line) + 1 + np.cumsum(steps * 2 * 4)  # two channels of float32
        labels = np.array([each["label"] for each in about], dtype=np.int64)
        nowhere = np.full(len(about), -1)  # in no bytes of their own: kept in the index
        fields = {
            "x": Extents(ends - steps * 2 * 4, ends, dtype="<f4", shape=(2,)),
            "label": Extents(nowhere, nowhere, dtype="int64", axis=None, values=labels),
        }
        return FileIndex(fields, ids=[each["id"] for each in about])


@hookimpl
def seqdata_register_backends():
    """Offer the format as a backend."""
    return {"$name": $cls()}
''',
    tests="""\
import json

import numpy as np
from $module import $cls
from seqdata_testing.contract import FormatContract


def write(path, sequences):
    about = [{"id": s["id"], "steps": len(s["x"]), "label": int(s["label"])} for s in sequences]
    values = b"".join(sequence["x"].tobytes() for sequence in sequences)
    path.write_bytes(json.dumps(about).encode() + b"\\n" + values)


class Test$cls(FormatContract):
    backend = $cls()
    sequences = [
        {"id": f"s{n}", "x": np.full((n, 2), n, np.float32), "label": np.int64(n)}
        for n in (0, 1, 7, 30)
    ]

    def make(self, folder):  # or `location = "tests/data"`: files that are there
        write(folder / "a$suffix", self.sequences[:2])
        write(folder / "b$suffix", self.sequences[2:])
        return folder
""",
)

STORE = KindTemplate(
    about="Archives of the format $name",
    cls="${camel}Store",
    points=HOOKS + SUFFIXES,
    use="""\
`open_store("data/a$suffix")` and every command of seqdata open it: `seqdata stats data/a$suffix`.
Check your own: `seqdata plugins check $name data/a$suffix`.""",
    module='''\
"""$about: what `numpy.savez_compressed` writes, an array per sequence."""

import hashlib
import zlib
from pathlib import Path

import numpy as np

from seqdata.backends import ArrayColumn, Field, hookimpl
from seqdata.errors import ConfigError, DataError


class $cls:
    """A store; `seqdata.protocols.Store` describes each member."""

    fields = {"x": Field("float32", (), "time")}

    def __init__(self, location, *, verify=None):
        self.path = Path(location).absolute()  # a worker process may run in another folder
        arrays = self.load()
        self.names = list(arrays)
        self.lengths = np.array([len(values) for values in arrays.values()], dtype=np.int64)
        self.lengths_of = {"time": self.lengths}
        self.shards = (self.path.name,)
        content = repr([(name, zlib.crc32(values)) for name, values in arrays.items()])
        self.fingerprint = hashlib.sha256(content.encode()).hexdigest()[:32]

    def __reduce__(self):  # a pickled store is its path: each process opens it again
        return type(self), (str(self.path),)

    def __len__(self):
        return len(self.names)

    def keys(self, numbers):
        return [self.names[number] for number in numbers]

    def base_numbers(self, numbers):  # only views have others
        return numbers

    def load(self, names=None):
        try:
            with np.load(self.path) as archive:
                names = archive.files if names is None else names
                return {name: archive[name].astype(np.float32) for name in names}
        except Exception as error:  # of zip files, zlib, NumPy
            raise DataError(f"{self.path}: cannot be read ({error}). Restore it") from error

    def read(self, spans, fields, *, axis="time"):
        if axis != "time" or not set(fields) <= set(self.fields):
            raise ConfigError(f"{self.path}: has no fields {list(fields)} along {axis!r}")
        for number, start, stop in spans.tolist():
            if not (0 <= number < len(self) and 0 <= start <= stop <= self.lengths[number]):
                raise ConfigError(f"{self.path}: sequence {number} has no {start}..{stop}")
        arrays = self.load({self.names[number] for number in spans[:, 0]})
        pieces = [arrays[self.names[n]][start:stop].copy() for n, start, stop in spans.tolist()]
        return {name: ArrayColumn(np.dtype("float32"), (), pieces) for name in fields}


@hookimpl
def seqdata_register_backends():
    """Offer the store as a backend: `open(location, *, verify)`."""
    return {"$name": $cls}
''',
    tests="""\
import numpy as np
from $module import $cls
from seqdata_testing.contract import FormatContract


class Test$cls(FormatContract):
    backend = $cls
    sequences = [{"id": f"s{n}", "x": np.arange(n, dtype=np.float32)} for n in (0, 1, 7, 3000)]

    def make(self, folder):  # or `location = "tests/data/a$suffix"`: an existing file
        with open(folder / "a$suffix", "wb") as file:
            np.savez_compressed(file, **{each["id"]: each["x"] for each in self.sequences})
        return folder / "a$suffix"
""",
)

POLICY = KindTemplate(
    about="The batching policy $name",
    cls="${camel}Policy",
    points=HOOKS,
    use="""\
`SequenceDataModule(train=..., batching="$name")`, `Loader(store, $cls(batch_size=8))`,
`seqdata plan STORE --batching $name`.""",
    module='''\
"""$about: neighbours by length, in batches that come in random order."""

from dataclasses import dataclass

import numpy as np

from seqdata import Plan, hookimpl


@dataclass(frozen=True)
class $cls:
    """Batches of ``batch_size`` sequences of similar lengths.

    Pure (index, seed and epoch make the plan), constant in number, and every sequence once.
    """

    batch_size: int = 32
    shuffle: bool = True  # evaluation plans with False
    axis: str = "time"

    def plan(self, index, *, seed, epoch):
        """Return the plan of an epoch; spans are (sequence, first timestep, one past the last)."""
        lengths = index.run(self.axis, 0, len(index))
        order = np.argsort(lengths, kind="stable")
        order = order[lengths[order] > 0]
        batches = np.arange(self.num_batches(index))
        if self.shuffle:  # of Philox the raw draws: they are the same in every version of NumPy
            draws = np.random.Philox(key=[seed, epoch]).random_raw(len(batches))
            batches = np.argsort(draws, kind="stable")
        cuts = [order[n * self.batch_size : (n + 1) * self.batch_size] for n in batches.tolist()]
        order = np.concatenate([order[:0], *cuts])
        spans = np.stack([order, np.zeros_like(order), lengths[order]], axis=1)
        return Plan(spans, offsets=np.cumsum([0, *map(len, cuts)]))

    def num_batches(self, index):
        """Return the number of batches of every epoch."""
        lengths = index.run(self.axis, 0, len(index))
        return -(-int((lengths > 0).sum()) // self.batch_size)


@hookimpl
def seqdata_register_policies():
    """Offer the policy."""
    return {"$name": $cls}
''',
    tests="""\
from $module import $cls
from seqdata_testing.contract import PolicyContract


class Test$cls(PolicyContract):
    policy = $cls(batch_size=3)
""",
)

COLLATOR = KindTemplate(
    about="The collator $name",
    cls="${camel}Collator",
    points=HOOKS,
    use="""\
`Loader(store, batching, collator="$name")` and `SequenceDataModule(..., collator="$name")`.""",
    module='''\
"""$about: rows padded to a multiple of timesteps, so that few shapes come."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from seqdata import hookimpl
from seqdata.errors import ConfigError


@dataclass(frozen=True)
class $cls:
    """Pads rows to a multiple of ``multiple`` timesteps."""

    multiple: int = 16
    layout: ClassVar[str] = "padded"

    def __call__(self, columns, batch):
        """Fill ``batch.data``, each tensor once; the metadata of the batch is there already."""
        if batch.segments is not None:
            raise ConfigError("collator '$name': `batching` must not pack rows, but does")
        batch.padded_length = -(-batch.padded_length // self.multiple) * self.multiple
        for name, column in columns.items():
            axis = batch.axes.along(name)
            if isinstance(column, list):  # texts
                batch.data[name] = column
                continue
            width = 1 if axis is None else batch.padded_length + batch.horizon
            if axis not in (None, batch.axes.axis):
                width = max(1, int(column.lengths.max(initial=0)))
                batch.lengths_of[axis] = torch.from_numpy(column.lengths)
            values = np.empty((len(column) * width, *column.shape), column.dtype)
            column.fill(values, np.arange(len(column) + 1) * width, None)
            rows = torch.from_numpy(values).reshape(len(column), width, *column.shape)
            batch.data[name] = rows[:, 0] if axis is None else rows
        return batch


@hookimpl
def seqdata_register_collators():
    """Offer the collator."""
    return {"$name": $cls}
''',
    tests="""\
from $module import $cls
from seqdata_testing.contract import CollatorContract


class Test$cls(CollatorContract):
    collator = $cls()

    def test_widths_are_multiples(self):
        assert {batch["frames"].shape[1] % 16 for batch in self.make_loader(self.collator)} == {0}
""",
)

READER = KindTemplate(
    about="The input format $name of seqdata write",
    cls="${camel}Reader",
    points=HOOKS,
    use="""\
`seqdata write 'logs/*$suffix' store/`, or of files of another suffix with `--format $name`.""",
    module='''\
"""$about: numbers between blanks, a line per timestep."""

import numpy as np

from seqdata import hookimpl
from seqdata.errors import DataError


class $cls:
    """Reads a sequence of each file: ``x``, float32 (lines, numbers of a line)."""

    def __call__(self, files, options):
        """Yield the sequences of files, which have ``path``, and ``key``: a good id."""
        for file in files:
            lines = [line.split() for line in file.path.read_text("utf-8").splitlines()]
            try:
                values = np.array(lines, dtype=np.float32).reshape(len(lines), -1)
            except ValueError as error:
                raise DataError(
                    f"{file.path}: lines must have the same number of values, but do not "
                    f"({error}). Correct the file"
                ) from error
            yield {"id": file.key, options.field or "x": values}


@hookimpl
def seqdata_register_readers():
    """Offer the reader, by its name and by the suffix of files."""
    return {"$name": $cls(), "$suffix": $cls()}
''',
    tests="""\
from types import SimpleNamespace

import numpy as np
import pytest
from $module import $cls

from seqdata import open_store, write_store
from seqdata.errors import DataError


def read(path, text):
    path.write_text(text, "utf-8")
    return $cls()([SimpleNamespace(path=path, key=path.name)], SimpleNamespace(field=None))


def test_what_is_read_can_be_written_and_opened(tmp_path):
    write_store(tmp_path / "store", read(tmp_path / "a$suffix", "1 2\\n3 4\\n5 6\\n"))
    (sequence,) = open_store(tmp_path / "store")
    assert sequence["id"] == "a$suffix"
    np.testing.assert_array_equal(sequence["x"], np.float32([[1, 2], [3, 4], [5, 6]]))


@pytest.mark.parametrize("text", ["1 2\\n3\\n", "1 a\\n"])
def test_what_is_no_table_of_numbers_is_an_error_that_names_the_file(tmp_path, text):
    with pytest.raises(DataError, match="a$suffix: lines must have the same number of values"):
        list(read(tmp_path / "a$suffix", text))
""",
)

TRANSFORM = KindTemplate(
    about="The transform $name",
    cls="${camel}Transform",
    points=CLASSES,
    use="""\
`SequenceDataModule(train=..., transform=$cls(factor=2))`, with `from $module import $cls`; in YAML
`transform: {class_path: $module.$cls}`.""",
    module='''\
"""$about: the mean of neighbouring timesteps."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class $cls:
    """Replaces each ``factor`` timesteps of a field by their mean; a rest is dropped.

    Called in worker processes, for one sequence at a time: (T, *shape) -> (T // factor, *shape).
    """

    factor: int = 2
    field: str = "x"

    def __call__(self, sequence, rng):
        """Return the sequence with its field; ``rng`` is a NumPy Generator of this sequence."""
        values = sequence[self.field]
        count = len(values) // self.factor
        parts = values[: count * self.factor].reshape(count, self.factor, *values.shape[1:])
        return {**sequence, self.field: parts.mean(axis=1).astype(values.dtype)}

    def lengths(self, lengths):
        """Return the lengths after it: batches are planned by them, without reading data."""
        return np.asarray(lengths) // self.factor
''',
    tests="""\
import numpy as np
import pytest
from $module import $cls

from seqdata import Fixed, Loader

SEQUENCES = [{"x": np.arange(n, dtype=np.float32), "y": n} for n in (2, 5, 9)]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_have_the_means_and_the_lengths(num_workers):
    batching, transform = Fixed(3, shuffle=False), $cls(factor=2)
    (batch,) = Loader(SEQUENCES, batching, transform=transform, num_workers=num_workers)
    assert batch.lengths.tolist() == [1, 2, 4]
    assert batch["x"][2].tolist() == [0.5, 2.5, 4.5, 6.5]
    assert batch["y"].tolist() == [2, 5, 9]
""",
)

KINDS = {
    "format": FORMAT,
    "store": STORE,
    "policy": POLICY,
    "collator": COLLATOR,
    "reader": READER,
    "transform": TRANSFORM,
}
"""Kind -> its files."""
