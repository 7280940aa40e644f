"""The interfaces that plugins implement: Store, Column, Policy, Collator, Transform.

Any object with the members of an interface implements it; nothing is inherited. Arrays are NumPy
arrays unless a name says tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from seqdata.capabilities import SupportsBase as SupportsBase
from seqdata.capabilities import SupportsCopy as SupportsCopy
from seqdata.capabilities import SupportsItems as SupportsItems
from seqdata.capabilities import SupportsLocality as SupportsLocality
from seqdata.capabilities import SupportsObserver as SupportsObserver
from seqdata.capabilities import SupportsPrefetch as SupportsPrefetch
from seqdata.capabilities import SupportsShardCache as SupportsShardCache
from seqdata.capabilities import SupportsStores as SupportsStores
from seqdata.logical_types import LogicalType

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from seqdata.batch.batch import SequenceBatch
    from seqdata.index import SequenceIndex
    from seqdata.plan import Plan
    from seqdata.storage.integrity.audit import AuditReport


@dataclass(frozen=True, slots=True, repr=False)
class Field:
    """Description of a field of a store.

    Attributes:
        dtype: NumPy name of one element (``"float32"``), or ``"str"`` or ``"bytes"``.
        shape: Shape of one timestep, or of the whole value where there is no axis: ``()``,
            ``(40,)``.
        axis: Name of the timeline along which the field runs; None: one value per sequence.
        logical: Meaning of integers: a ``Timestamp``, ``Duration`` or ``Categories``
            (``seqdata.logical_types``); None: plain numbers.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    axis: str | None = "time"
    logical: LogicalType | None = None

    def __repr__(self) -> str:
        logical = "" if self.logical is None else f", logical={self.logical!r}"
        return f"Field(dtype={self.dtype!r}, shape={self.shape!r}, axis={self.axis!r}{logical})"


@runtime_checkable
class Column(Protocol):
    """A field of the spans that were read, not yet copied: n pieces of timesteps.

    A per-sequence field of numbers is a column whose pieces have one timestep.
    """

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of one element."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one timestep."""
        ...

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of timesteps of each piece, int64 (n,)."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> NDArray[Any]:
        """Return one piece, (length, *shape): a read-only view if bytes are mapped."""
        ...

    def fill(self, out: NDArray[Any], bounds: NDArray[np.int64], padding: bytes | None) -> None:
        """Copy all pieces into ``out``, whose timesteps are written once each.

        Args:
            out: (timesteps, *shape), C-contiguous, of the column's dtype.
            bounds: int64 (n+1,), non-decreasing: piece i goes to ``out[bounds[i]:]``, and the rest
                up to ``bounds[i+1]`` is padding.
            padding: Bytes of one element of padding; None: zeros.

        Raises:
            DataError: If a piece's recorded offsets or checksum are wrong; it names the sequence.
        """
        ...


Columns = Mapping[str, Column | Sequence[str] | Sequence[bytes]]
"""The result of a read: a ``Column`` for numbers, a list for ``str`` and ``bytes`` fields."""


@runtime_checkable
class Store(Protocol):
    """An opened dataset. Cheap to pickle (it reopens itself), safe after fork and spawn.

    The reopened data must be the same: store an absolute path, and compare the fingerprint. Worker
    processes compare it as well.

    A store does not pad, shuffle or know about ranks. One that also has ``raw_texts``
    (``storage.text_bytes.SupportsRawTexts``) is split without a Python object per id.
    """

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> field."""
        ...

    @property
    def lengths(self) -> NDArray[Any]:
        """Number of timesteps of each sequence along the default axis, integers (sequences,)."""
        ...

    @property
    def lengths_of(self) -> Mapping[str, NDArray[Any]]:
        """Axis -> number of timesteps of each sequence, integers (sequences,)."""
        ...

    @property
    def shards(self) -> Sequence[str]:
        """Names of the storage files, in the order of their sequences."""
        ...

    @property
    def fingerprint(self) -> str:
        """Digest of lengths, ids, schema and content (32 hex digits); no data is read for it."""
        ...

    def __len__(self) -> int: ...

    def keys(self, numbers: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """Return the ids of *base* sequences by their indices, as in ``batch.ids``."""
        ...

    def base_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices in the base store; unchanged if the store is not a view."""
        ...

    def read(
        self, spans: NDArray[np.int64], fields: Iterable[str], *, axis: str = "time"
    ) -> dict[str, Any]:
        """Read a whole batch: only the requested timesteps, without copying what is mapped.

        Args:
            spans: int64 (n, 3): sequence, start, stop in timesteps of ``axis``. Not to be written
                to: they may be the plan's own.
            fields: Names. Fields of another axis, and per-sequence fields, are read whole.
            axis: The axis that spans cut.

        Returns:
            Name -> ``Column`` of n pieces, or a list of n ``str`` or ``bytes``.

        Raises:
            DataError: If stored data is damaged.
            ConfigError: If a field or the axis does not exist.
        """
        ...


@runtime_checkable
class SupportsParts(Protocol):
    """A store of several named stores, one after the other, for mixtures."""

    @property
    def parts(self) -> Mapping[str, Store]:
        """Name -> store, in the order of their sequences."""
        ...

    def own_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices of sequences in the base stores of their parts, int64 (n,)."""
        ...


class Policy(Protocol):
    """A batching policy: a frozen dataclass that plans by lengths and values per sequence."""

    @property
    def axis(self) -> str:
        """The axis that is planned on."""
        ...

    def plan(self, index: SequenceIndex, *, seed: int, epoch: int) -> Plan:
        """Return the epoch's plan, a pure function of the arguments and the policy's fields.

        Raises:
            PlanError: If the lengths cannot be batched; it names the sequences.
        """
        ...

    def num_batches(self, index: SequenceIndex) -> int:
        """Return the number of batches of every epoch."""
        ...


class Collator(Protocol):
    """Lays out the columns of one batch as tensors, each filled once; it reads nothing.

    A collator that does not pad to the longest row sets ``batch.padded_length`` to its width, which
    masks follow. In tests ``batch.validate()`` finds attributes that do not fit.
    """

    def __call__(self, columns: Columns, batch: SequenceBatch) -> SequenceBatch:
        """Fill ``batch.data`` and return the batch, whose metadata exists already."""
        ...


Transform = Callable[[dict[str, Any], Any], Mapping[str, Any]]
"""One sequence at a time: ``transform(sequence, rng) -> dict`` with a
``numpy.random.Generator``.

Or, marked with ``columnar``, a whole batch: ``transform(columns, seeds) -> columns`` with uint64
seeds, one per sequence. It keeps lengths, or has ``.lengths(lengths) -> lengths`` along the planned
axis. New fields run along that axis, or as ``.axes`` (field -> axis) says."""

Opener = Callable[..., Store]
"""A backend: ``open(location, *, verify) -> Store``; it may do more: ``SupportsIndexing``,
``SupportsWriting``, ``SupportsTableLogs``.

``verify`` is ``"off"``, ``"first_read"`` or ``"always"``; or None: the best for the data. If it is
not possible, a ``ConfigError`` is raised."""


@runtime_checkable
class SupportsIndexing(Protocol):
    """A backend that reads with an index, which is built once: used by ``seqdata index``."""

    def build_index(
        self,
        location: str,
        *,
        rebuild: bool = False,
        executor: Executor | None = None,
        progress: bool | None = None,
    ) -> Mapping[str, Any]:
        """Build missing indexes, or all of them; return details for messages and JSON.

        Raises:
            DataError: If the data cannot be indexed.
        """
        ...


@runtime_checkable
class SupportsAudit(Protocol):
    """A backend that can check its data: used by ``seqdata verify``."""

    def audit(
        self, location: str, *, shard: int | None, repair: bool, on_progress: Callable[[int], None]
    ) -> tuple[int, Iterator[AuditReport]]:
        """Return the number of bytes to check, and an iterator of reports.

        Args:
            location: The dataset.
            shard: Index of one shard; None: all.
            repair: Whether to rebuild indexes that are missing, damaged or of other data.
            on_progress: Called with the number of bytes checked, from any thread.
        """
        ...


@runtime_checkable
class SupportsWriting(Protocol):
    """A backend that can write: used by ``write_store``, with the same arguments.

    A backend that writes to URLs also takes ``remote``, and one that writes in a random order
    ``shuffle``, its seed; ``seqdata.backends.write_files`` does both.
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
        """Write sequences, completely or not at all, and open the result."""
        ...


@runtime_checkable
class SupportsTableLogs(Protocol):
    """A backend of tables whose log says which files hold their rows: used by ``seqdata write``."""

    def list_files(self, location: str, *, remote: Any = None) -> Sequence[str]:
        """Return the files of a table at its current version; the location if it has no log.

        Args:
            location: A path or a URL.
            remote: Access to a URL, as in ``open_store``.

        Raises:
            SeqDataError: If the log cannot be read, or files do not hold the rows as they are.
        """
        ...


PolicyFactory = Callable[..., Policy]
CollatorFactory = Callable[..., Collator]
Reader = Callable[..., Iterable[Mapping[str, Any]]]
"""An input format of ``seqdata write``: ``read(files, options) -> iterable of sequences``."""
