"""What plugin authors implement, on one page: Store, Column, Policy, Collator, Transform.

An interface here is met by any object with these members; nothing is inherited. Arrays are NumPy
unless a name says tensor. Place in the flow: every layer speaks in these terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from seqdata.batch.batch import SequenceBatch
    from seqdata.index import SequenceIndex
    from seqdata.plan import Plan
    from seqdata.storage.integrity.audit import AuditReport


@dataclass(frozen=True, slots=True)
class Field:
    """What a store holds under one name.

    Attributes:
        dtype: NumPy name of one element (``"float32"``), or ``"str"`` or ``"bytes"``.
        shape: Shape of one timestep, or of the whole value where there is no axis: ``()``,
            ``(40,)``.
        axis: The timeline the field runs along; None: one value per sequence.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    axis: str | None = "time"


@runtime_checkable
class Column(Protocol):
    """One field of the spans that were read, not copied yet: n pieces of some timesteps each.

    A per-sequence field of numbers is a column whose pieces have one timestep.
    """

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of one element."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one timestep."""
        ...

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Timesteps of each piece, int64 (n,)."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> NDArray[Any]:
        """Return one piece, (length, *shape): a view where bytes are mapped; not for writing."""
        ...

    def fill(self, out: NDArray[Any], bounds: NDArray[np.int64], padding: bytes | None) -> None:
        """Copy all pieces into place, each timestep of ``out`` written once.

        Args:
            out: (timesteps, *shape), C-contiguous, of the column's dtype.
            bounds: int64 (n+1,), rising: piece i goes to ``out[bounds[i]:]``, and what is left up
                to ``bounds[i+1]`` is padding.
            padding: The bytes of one element of padding; None: zeros.

        Raises:
            DataError: If a piece's recorded place is wrong, or its checksum; naming the sequence.
        """
        ...


Columns = Mapping[str, "Column | Sequence[str] | Sequence[bytes]"]
"""What a read gives: a ``Column`` for numbers, a list for ``str`` and ``bytes`` fields."""


@runtime_checkable
class Store(Protocol):
    """One opened data set. Cheap to pickle (it reopens itself), safe after fork and spawn.

    What is reopened must be what was opened: keep an absolute path, and compare the fingerprint.
    Worker processes compare it, too.

    A store never pads, shuffles, or knows a rank. One that also has ``raw_texts``
    (``storage.raw.SupportsRawTexts``) is split without a Python object for each id.
    """

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> field."""
        ...

    @property
    def lengths(self) -> NDArray[Any]:
        """Timesteps of each sequence along the default axis, integers (sequences,)."""
        ...

    @property
    def lengths_of(self) -> Mapping[str, NDArray[Any]]:
        """Axis -> timesteps of each sequence, integers (sequences,)."""
        ...

    @property
    def shards(self) -> Sequence[str]:
        """Names of the storage files, in the order of their sequences."""
        ...

    @property
    def fingerprint(self) -> str:
        """Digest of lengths, ids, schema and content (32 hex digits); made without reading data."""
        ...

    def __len__(self) -> int: ...

    def keys(self, numbers: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """Return the ids of *base* sequences, the numbers that ``batch.ids`` holds."""
        ...

    def base_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Translate this store's numbers to the base store's; the same where it is no view."""
        ...

    def read(
        self, spans: NDArray[np.int64], fields: Iterable[str], *, axis: str = "time"
    ) -> dict[str, Any]:
        """Read a whole batch: only the timesteps asked for, nothing copied that is mapped.

        Args:
            spans: int64 (n, 3): sequence, start, stop in timesteps of ``axis``.
            fields: Names. Fields of another axis, and per-sequence fields, come whole.
            axis: The axis that spans cut.

        Returns:
            Name -> ``Column`` of n pieces, or a list of n ``str`` or ``bytes``.

        Raises:
            DataError: If what is stored is damaged.
            ConfigError: If a field or the axis is not there.
        """
        ...


@runtime_checkable
class SupportsPrefetch(Protocol):
    """A store that can use it to know early what will be read: what reading ahead asks."""

    def expect(self, numbers: NDArray[np.int64]) -> bool:
        """Begin to fetch what sequences need, and return at once.

        Args:
            numbers: int64 (n,), in the order in which they will be read.

        Returns:
            Whether more may be told now; else what was told may have been too much, and is told
            again later.
        """
        ...


@runtime_checkable
class SupportsObserver(Protocol):
    """A store that runs somebody else's code for each sequence: what worker processes ask."""

    def watched(self, tell: Callable[[int], None]) -> Store:
        """Return the same store, which tells the number of each sequence before it is read."""
        ...


@runtime_checkable
class SupportsItems(Protocol):
    """A store of a Dataset's items: what a collator asks that hands them out as they were."""

    @property
    def item_form(self) -> Any:
        """What items look like, as ``ItemForm``; None: they are dicts of tensors."""
        ...


@runtime_checkable
class SupportsCopy(Protocol):
    """A store whose pickle holds its data: worker processes get a copy, and open nothing again."""

    @property
    def is_copied_to_workers(self) -> bool:
        """Whether it does; else its fingerprint is compared where it is opened again."""
        ...


class Policy(Protocol):
    """How an epoch is batched: a frozen dataclass that sees lengths only."""

    @property
    def axis(self) -> str:
        """The axis that is planned on."""
        ...

    def plan(self, index: SequenceIndex, *, seed: int, epoch: int) -> Plan:
        """Make the epoch's plan: a pure function of the arguments and the policy's fields.

        Raises:
            PlanError: If the lengths cannot be batched so; naming the sequences.
        """
        ...

    def num_batches(self, index: SequenceIndex) -> int:
        """Return the number of batches of every epoch."""
        ...


@runtime_checkable
class SupportsVaryingEpochs(Protocol):
    """What a policy has, too, whose epochs may differ in their number of batches."""

    @property
    def varies(self) -> bool:
        """Whether they do."""
        ...

    def num_batches_of(self, index: SequenceIndex, epoch: int) -> int:
        """Return the number of batches of an epoch, whatever the seed."""
        ...


@runtime_checkable
class SupportsCrops(Protocol):
    """What a policy has, too, that cuts windows out of sequences, whose exact lengths it needs."""

    @property
    def random(self) -> bool:
        """Whether windows lie at random places, others in every epoch."""
        ...

    def crop_numbers(
        self, index: SequenceIndex, spans: NDArray[np.int64], *, seed: int, epoch: int
    ) -> NDArray[np.int64]:
        """Return which of its sequence's windows each span is, int64 (n,).

        A transform draws other random numbers for each of them, whatever batch it comes in.

        Args:
            index: The lengths that were planned over.
            spans: int64 (n, 3): sequence, start, stop.
            seed: Of the plan.
            epoch: Of the plan.
        """
        ...


class Collator(Protocol):
    """Lays the columns of one batch out as tensors, filling each final tensor once. Never reads."""

    def __call__(self, columns: Columns, batch: SequenceBatch) -> SequenceBatch:
        """Fill `batch.data`, whose rows are described already, and give the batch back."""
        ...


Transform = Callable[[dict[str, Any], Any], Mapping[str, Any]]
"""One sequence at a time: ``transform(sequence, rng) -> dict`` with a
``numpy.random.SequenceGenerator``.

Or, marked with ``columnar``, a whole batch: ``transform(columns, seeds) -> columns`` with uint64
seeds, one per sequence. It keeps lengths, or has ``.lengths(lengths) -> lengths`` along the planned
axis. New fields run along that axis, or as ``.axes`` (field -> axis) says."""

Opener = Callable[..., Store]
"""A backend: ``open(location, *, verify) -> Store``; it may do more: ``SupportsIndexing``,
``SupportsWriting``.

``verify`` is ``"off"``, ``"first_read"`` or ``"always"``; or None: what suits the data best. What
was asked for and cannot be done is a ``ConfigError``."""


@runtime_checkable
class SupportsIndexing(Protocol):
    """A backend that reads by an index, made once: what ``seqdata index`` asks."""

    def build_index(
        self,
        location: str,
        *,
        anew: bool = False,
        executor: Executor | None = None,
        progress: bool | None = None,
    ) -> Mapping[str, Any]:
        """Make the index of what has none, or of all; gives facts for people and for JSON.

        Raises:
            DataError: If what lies there cannot be indexed.
        """
        ...


@runtime_checkable
class SupportsAudit(Protocol):
    """A backend that knows how its data must be: what ``seqdata verify`` asks."""

    def audit(
        self, location: str, *, shard: int | None, repair: bool, told: Callable[[int], None]
    ) -> tuple[int, Iterator[AuditReport]]:
        """Return the bytes there are to look at, and reports as they are made.

        Args:
            location: The data set.
            shard: The number of one shard; None: all.
            repair: Whether to make indexes anew that are missing, damaged or of other data.
            told: Called with bytes that were looked at, from any thread.
        """
        ...


@runtime_checkable
class SupportsWriting(Protocol):
    """A backend that writes, too: what ``write_store`` asks; its arguments are the same.

    One that writes to URLs also takes ``remote``.
    """

    def write(
        self,
        location: str,
        sequences: Iterable[Any],
        *,
        axes: Mapping[str, str | None] | None,
        shard_bytes: int,
        key: str,
        executor: Executor | None,
        resume: bool,
        progress: bool | Callable[[int, int], None] | None,
        overwrite: bool,
    ) -> Store:
        """Write sequences, whole or not at all, and open what was written."""
        ...


PolicyFactory = Callable[..., Policy]
CollatorFactory = Callable[..., Collator]
Reader = Callable[..., Iterable[Mapping[str, Any]]]
"""An input format of ``seqdata write``: ``read(files, options) -> iterable of sequences``."""
