"""A store of somebody else: only what the protocol asks for."""

from dataclasses import dataclass

import numpy as np

from seqdata.protocols import Store


class Plain:
    """A column that has no more than a ``Column``."""

    def __init__(self, column):
        self._column = column
        self.dtype, self.shape, self.lengths = column.dtype, column.shape, column.lengths

    def __len__(self):
        return len(self._column)

    def __getitem__(self, number):
        return self._column[number]

    def fill(self, out, bounds, padding):
        self._column.fill(out, bounds, padding)


@dataclass
class Somebodys:
    inner: Store
    location: str = "there.h5"

    def __len__(self):
        return len(self.inner)

    fields = property(lambda self: self.inner.fields)
    lengths = property(lambda self: self.inner.lengths)
    lengths_of = property(lambda self: self.inner.lengths_of)
    shards = property(lambda self: self.inner.shards)
    fingerprint = property(lambda self: self.inner.fingerprint)

    def keys(self, numbers):
        return self.inner.keys(numbers)

    def base_numbers(self, numbers):
        return np.asarray(numbers)

    def read(self, spans, fields, *, axis="time"):
        columns = self.inner.read(spans, fields, axis=axis)
        return {name: one if isinstance(one, list) else Plain(one) for name, one in columns.items()}
