"""The contract of a backend, as a class of tests for its own tests to inherit.

::

    class TestMine(StoreContract):
        def make(self, folder, sequences):
            write_mine(folder / "data", sequences)
            return open_mine(folder / "data")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from seqdata.protocols import Store
from seqdata.storage.views import take
from seqdata_testing.stores import (
    Sequences,
    check_description,
    check_looks,
    check_pickling,
    check_processes,
    check_raw_texts,
    check_reads,
    check_refusals,
)


def sample_sequences(count: int = 23) -> list[dict[str, Any]]:
    """Make sequences of lengths 0, 1 and more: tokens, frames, a number and a name each."""
    random = np.random.default_rng(count)
    lengths = [0, 1, *random.integers(1, 40, max(0, count - 3)), 700][:count]
    return [
        {
            "tokens": random.integers(0, 1 << 15, length).astype(np.int32),
            "frames": random.standard_normal((length, 3)).astype(np.float32),
            "label": np.int64(number % 5),
            "name": f"sequence {number} é",
        }
        for number, length in enumerate(lengths)
    ]


class StoreContract:
    """Tests that every backend passes; a subclass named ``Test…`` is collected by pytest.

    Attributes:
        make: ``make(folder, sequences) -> Store``: writes and opens, in an empty folder.
        sequences: What is written; where a backend cannot hold the sample, another one. With an
            ``id`` in each, the store's ids are compared, unless it has a field of that name.
        methods: Start methods of child processes.
    """

    make: Callable[[Path, Sequences], Store]
    sequences: Sequences = sample_sequences()
    methods: Sequence[str] = ("fork", "spawn")

    def test_it_describes_what_was_written(self, tmp_path: Path) -> None:
        """Fields, lengths, ids and a fingerprint."""
        check_description(self.make(tmp_path, self.sequences), self.sequences)

    def test_any_spans_read_as_they_were_written(self, tmp_path: Path) -> None:
        """Only the requested timesteps are read, in any order, with repeats."""
        check_reads(self.make(tmp_path, self.sequences), self.sequences)

    def test_raw_texts_are_those_that_are_read(self, tmp_path: Path) -> None:
        """Of ids and of fields of texts, where the store gives them."""
        check_raw_texts(self.make(tmp_path, self.sequences))

    def test_it_can_be_looked_at(self, tmp_path: Path) -> None:
        """By number, in an iteration, through views."""
        check_looks(self.make(tmp_path, self.sequences), self.sequences)

    def test_what_is_not_there_is_refused(self, tmp_path: Path) -> None:
        """Fields, axes, sequences and timesteps."""
        check_refusals(self.make(tmp_path, self.sequences))

    def test_it_reopens_after_pickling(self, tmp_path: Path) -> None:
        """The same store, and few bytes."""
        check_pickling(self.make(tmp_path, self.sequences), self.sequences)

    def test_child_processes_read_the_same(self, tmp_path: Path) -> None:
        """After fork and after spawn."""
        check_processes(self.make(tmp_path, self.sequences), self.methods)

    def test_views_of_it_read_the_same(self, tmp_path: Path) -> None:
        """A view of a view, with repeats and in any order."""
        turned = list(self.sequences)[::-1]
        numbers = [*range(len(turned))[::2], 0, 0]
        view = take(self.make(tmp_path, self.sequences), range(len(turned))[::-1])
        check_reads(take(view, numbers), [turned[number] for number in numbers])
