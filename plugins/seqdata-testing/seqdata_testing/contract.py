"""The contracts of backends, policies and collators: test classes to inherit from.

::

    class TestMine(FormatContract):
        location = "tests/data/day.rec"

    class TestMineAsWritten(StoreContract):
        def make(self, folder, sequences):
            write_mine(folder / "data", sequences)
            return open_mine(folder / "data")
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seqdata.errors import SeqDataError
from seqdata.index import SequenceIndex
from seqdata.plan import Plan
from seqdata.policies.fixed import Fixed
from seqdata.protocols import Collator, Policy, Store
from seqdata.storage.memory import MemoryStore
from seqdata.storage.views import take
from seqdata_testing import ConformanceError, locations
from seqdata_testing.location_case import LocationCase
from seqdata_testing.plans import check_policy
from seqdata_testing.sharing import check_resume, check_shares
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

if TYPE_CHECKING:
    from seqdata.loading.loader import Loader


def sample_sequences(count: int = 23) -> list[dict[str, Any]]:
    """Return sequences of lengths 0, 1 and more, with tokens, frames, a number and a name."""
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
    """Tests that every backend must pass; pytest collects a subclass with a name ``Test…``.

    Attributes:
        make: ``make(folder, sequences)`` writes the sequences into an empty folder, and returns the
            opened store.
        sequences: The sequences to write; replace them if a backend cannot store them. If each has
            an ``id``, it is compared with that of the store, unless the store has a field of this
            name.
        methods: Start methods of child processes.
    """

    make: Callable[[Path, Sequences], Store]
    sequences: Sequences = sample_sequences()
    methods: Sequence[str] = ("fork", "spawn")

    def test_it_describes_what_was_written(self, tmp_path: Path) -> None:
        """Check fields, lengths, ids and fingerprint."""
        check_description(self.make(tmp_path, self.sequences), self.sequences)

    def test_any_spans_read_as_they_were_written(self, tmp_path: Path) -> None:
        """Check that only the requested timesteps are read, in any order, with repeats."""
        check_reads(self.make(tmp_path, self.sequences), self.sequences)

    def test_raw_texts_are_those_that_are_read(self, tmp_path: Path) -> None:
        """Check the raw bytes of ids and of fields of strings, if the store returns them."""
        check_raw_texts(self.make(tmp_path, self.sequences))

    def test_it_can_be_looked_at(self, tmp_path: Path) -> None:
        """Check access by index, by iteration and through views."""
        check_looks(self.make(tmp_path, self.sequences), self.sequences)

    def test_what_is_not_there_is_refused(self, tmp_path: Path) -> None:
        """Check that missing fields, axes, sequences and timesteps are errors."""
        check_refusals(self.make(tmp_path, self.sequences))

    def test_it_reopens_after_pickling(self, tmp_path: Path) -> None:
        """Check that an unpickled store is the same."""
        check_pickling(self.make(tmp_path, self.sequences), self.sequences)

    def test_child_processes_read_the_same(self, tmp_path: Path) -> None:
        """Check reads in child processes, after fork and after spawn."""
        check_processes(self.make(tmp_path, self.sequences), self.methods)

    def test_views_of_it_read_the_same(self, tmp_path: Path) -> None:
        """Check reads of a view of a view, with repeats and in another order."""
        turned = list(self.sequences)[::-1]
        numbers = [*range(len(turned))[::2], 0, 0]
        view = take(self.make(tmp_path, self.sequences), range(len(turned))[::-1])
        check_reads(take(view, numbers), [turned[number] for number in numbers])


class FormatContract:
    """Tests that every backend must pass on existing data; a subclass is named ``Test…``.

    Each sequence is read whole, and other reads are compared with it. Only copies are damaged. The
    command ``seqdata plugins check`` runs the same checks.

    Attributes:
        location: The location to open: a path, a pattern, a URL, or a list of these. A subclass
            that writes the data overrides ``make(folder)`` instead, which returns the location.
        backend: Name of a backend, a format, or a function that opens a location; None: detected
            from the location by the installed packages.
        sequences: The expected content of each sequence, field -> value, and its ``id``; None: not
            known.
        methods: Start methods of child processes.
    """

    location: Any = None
    backend: Any = None
    sequences: Sequences | None = None
    methods: Sequence[str] = ("fork", "spawn")

    def make(self, folder: Path) -> Any:
        """Return the location of the data.

        Args:
            folder: An empty folder, to write data into.

        Raises:
            ConformanceError: If ``location`` is not set.
        """
        del folder
        if self.location is None:
            raise ConformanceError(
                f"{type(self).__name__}: `location` must be the location of data, but is None. Set "
                "it, or write data in `make(folder)`"
            )
        return self.location

    def check(self, check: Callable[[LocationCase], None], folder: Path) -> None:
        """Run a check of ``seqdata_testing.locations``."""
        data, copies = folder / "data", folder / "copies"
        data.mkdir()
        copies.mkdir()
        backend = type(self).backend  # a function is not made a method
        case = LocationCase(
            self.make(data), copies, backend, sequences=self.sequences, methods=self.methods
        )
        check(case)

    def test_it_describes_itself(self, tmp_path: Path) -> None:
        """Check fields, lengths of each axis, and the form of the fingerprint."""
        self.check(locations.check_description, tmp_path)

    def test_ids_are_different_texts(self, tmp_path: Path) -> None:
        """Check that ids are distinct strings in UTF-8, also if only some are requested."""
        self.check(locations.check_ids, tmp_path)

    def test_values_have_the_dtype_of_their_field(self, tmp_path: Path) -> None:
        """Check dtypes; all data is read once, sequence by sequence."""
        self.check(locations.check_dtypes, tmp_path)

    def test_values_have_the_shape_of_their_field(self, tmp_path: Path) -> None:
        """Check shapes; a value per sequence is (1, *shape)."""
        self.check(locations.check_shapes, tmp_path)

    def test_values_have_the_lengths_of_their_axis(self, tmp_path: Path) -> None:
        """Check the number of timesteps of whole sequences."""
        self.check(locations.check_lengths, tmp_path)

    def test_sequences_are_the_same_together_and_alone(self, tmp_path: Path) -> None:
        """Check batches of sequences, also across the end of a file."""
        self.check(locations.check_together, tmp_path)

    def test_spans_are_parts_of_whole_sequences(self, tmp_path: Path) -> None:
        """Check spans in any order, with repeats, along every axis."""
        self.check(locations.check_spans, tmp_path)

    def test_views_read_the_same(self, tmp_path: Path) -> None:
        """Check access by index, by iteration and through views."""
        self.check(locations.check_views, tmp_path)

    def test_values_stay_as_they_were_read(self, tmp_path: Path) -> None:
        """Check that a read does not change the values of another."""
        self.check(locations.check_kept_values, tmp_path)

    def test_what_is_not_there_is_refused(self, tmp_path: Path) -> None:
        """Check that missing fields, axes, sequences and timesteps are errors."""
        self.check(locations.check_missing, tmp_path)

    def test_it_reopens_after_pickling(self, tmp_path: Path) -> None:
        """Check an unpickled store in a new process, in another folder."""
        self.check(locations.check_reopening, tmp_path)

    def test_child_processes_read_the_same(self, tmp_path: Path) -> None:
        """Check reads in child processes, which must not share open files with this one."""
        self.check(locations.check_children, tmp_path)

    def test_each_opening_has_one_fingerprint(self, tmp_path: Path) -> None:
        """Check that another opening has the same fingerprint and content."""
        self.check(locations.check_fingerprint, tmp_path)

    def test_an_index_that_is_built_again_says_the_same(self, tmp_path: Path) -> None:
        """Check a rebuilt index of a copy; skipped if the backend has no index."""
        self.check(locations.check_index, tmp_path)

    def test_verify_finds_nothing(self, tmp_path: Path) -> None:
        """Check the data like ``seqdata verify``; skipped if the backend has no audit."""
        self.check(locations.check_audit, tmp_path)

    def test_a_changed_byte_is_found(self, tmp_path: Path) -> None:
        """Check that damage to a copy is detected; skipped without checksums."""
        self.check(locations.check_damage, tmp_path)

    def test_a_file_that_is_cut_off_or_gone_is_an_error(self, tmp_path: Path) -> None:
        """Check that a lost or truncated file of an opened copy is an error."""
        self.check(locations.check_loss, tmp_path)

    def test_the_content_is_the_expected_one(self, tmp_path: Path) -> None:
        """Check the content against ``sequences``; skipped without them."""
        self.check(locations.check_content, tmp_path)


class PolicyContract:
    """Tests that every batching policy must pass; a subclass is named ``Test…``.

    Attributes:
        policy: The policy, with small arguments: batches of a few sequences.
        lengths: Number of timesteps of each sequence that is planned.
        shuffled: Whether epochs and seeds must differ in their order; None: they may.
        worlds: Numbers of ranks to check.
    """

    policy: Policy
    lengths: Sequence[int] = (5, 9, 7, 3, 11, 8, 40, 2, 4, 6, 5, 9, 1, 30, 20, 10) * 4
    shuffled: bool | None = True
    worlds: Sequence[int] = (1, 2, 3)

    def make_index(self) -> SequenceIndex:
        """Return the index of the lengths, along the axis of the policy."""
        return SequenceIndex.from_lengths(self.lengths, axis=self.policy.axis)

    def make_plan(self) -> Plan:
        """Return the plan of an epoch."""
        return self.policy.plan(self.make_index(), seed=1, epoch=0)

    def test_it_plans_by_lengths_alone_and_each_timestep(self) -> None:
        """Check that plans are deterministic, equal in size, complete, and match their reports."""
        check_policy(self.policy, self.make_index(), shuffled=self.shuffled)

    def test_all_ranks_have_equal_steps(self) -> None:
        """Check that all ranks have equally many steps, and each row comes once."""
        for size in self.worlds:
            check_shares(self.make_plan(), size)

    def test_it_resumes_where_it_stopped(self) -> None:
        """Check that a resumed epoch continues exactly, on the same number of ranks."""
        for size in self.worlds:
            check_resume(self.make_plan(), size, cuts=[1, 2])

    def test_a_copy_plans_the_same(self) -> None:
        """Check that copies and unpickled copies are equal, and make the same plans."""
        due = self.make_plan().fingerprint
        for label, other in (
            ("a copy", copy.deepcopy(self.policy)),
            ("a pickled copy", pickle.loads(pickle.dumps(self.policy))),
        ):
            found = other.plan(self.make_index(), seed=1, epoch=0).fingerprint
            if found != due or other != self.policy:
                raise ConformanceError(
                    f"policy: {label} must equal the policy and plan the same, but does not. Make "
                    "it a frozen dataclass"
                )


class CollatorContract:
    """Tests that every collator of whole sequences must pass; a subclass is named ``Test…``.

    Attributes:
        collator: The collator.
        sequences: The sequences of the batches.
        batch_size: Number of sequences of a batch.
    """

    collator: Collator
    sequences: Sequences = sample_sequences()
    batch_size: int = 4

    def make_loader(self, collator: Any, **options: Any) -> Loader:
        """Return a loader of the sequences with a collator."""
        from seqdata.loading.loader import Loader  # torch is imported only if needed

        store = MemoryStore.from_sequences(self.sequences)
        return Loader(store, Fixed(self.batch_size, shuffle=False), collator=collator, **options)

    def list_contents(self, collator: Any, **options: Any) -> list[dict[str, Any]]:
        """Return field -> dtype, shape and values, for each batch."""
        loader = self.make_loader(collator, **options)
        return [{name: _describe(batch[name]) for name in batch} for batch in loader]

    def test_its_batches_are_consistent(self) -> None:
        """Check that rows, widths, masks and counts match the data."""
        for batch in self.make_loader(self.collator):
            try:
                batch.validate()
            except SeqDataError as error:
                raise ConformanceError(f"collator: {error}") from error

    def test_a_batch_holds_every_field(self) -> None:
        """Check that no field is omitted."""
        due = {name for name in self.sequences[0] if name != "id"}
        for batch in self.make_loader(self.collator):
            if missing := sorted(due - set(batch)):
                raise ConformanceError(
                    f"collator: batch {batch.number} must have the fields {missing}, but lacks them"
                )

    def test_equal_batches_are_made_again(self) -> None:
        """Check that the collator and an unpickled copy make the same batches again."""
        due = self.list_contents(self.collator)
        again = pickle.loads(pickle.dumps(self.collator))
        for label, collator in (("it", self.collator), ("a pickled copy of it", again)):
            if self.list_contents(collator) != due:
                raise ConformanceError(
                    f"collator: {label} must make the same batches again, but does not"
                )

    def test_workers_make_the_same_batches(self) -> None:
        """Check that batches do not depend on the number of workers."""
        if self.list_contents(self.collator, num_workers=1) != self.list_contents(self.collator):
            raise ConformanceError(
                "collator: it must make the same batches in a worker, but does not"
            )


def _describe(value: Any) -> Any:
    """Return a value of a batch in a form that can be compared."""
    if isinstance(value, list):
        return value
    values = value.values() if getattr(value, "is_nested", False) else value
    return str(value.dtype), tuple(values.shape), np.asarray(values).tobytes()
