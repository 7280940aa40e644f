"""The backend of tables with a row per timestep.

It reads the columns that group and order rows, and makes a store.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from seqdata.errors import ConfigError, FingerprintMismatch, SeqDataWarning
from seqdata_frames.delta import list_parts
from seqdata_frames.opening import Axes, Missing, Request, open_rows
from seqdata_frames.scan import AUTO
from seqdata_frames.sources import SpoolFolder, is_stream, is_table, open_tables, spool
from seqdata_frames.store import FrameStore


@dataclass(frozen=True, kw_only=True)
class Frames:
    """Backend for tables with a row per timestep, in files, in memory or from a stream.

    Rows with equal values in a column are a sequence. Rows that are already in order are read in
    place, one row group at a time. Other rows of files are sorted once on disk, into a copy that is
    kept; those of less than a million rows, and of tables in memory, are sorted in memory.

    Attributes:
        group: Column that identifies the sequence of a row; None: ``group`` of ``open_store``.
        order: Column by which the rows of a group are sorted, such as the time; None: ``order`` of
            ``open_store``. Without either, rows must be in order.
        static: Columns with one value per sequence, which must be constant in each group;
            ``"auto"``: the columns of numbers that are constant in each group and differ between
            groups. Strings that are constant in each group have one value per sequence anyway.
        freq: Step of a regular grid, such as ``"h"``, ``"15min"`` or ``"D"``, or an integer for a
            column of integers. In timesteps without a row, numbers are NaN, dates NaT, and the
            field ``mask`` is False; integers become float64.
        cache_bytes: Maximum size in bytes of the decoded row groups that a process keeps.
        sort_bytes: Approximate memory in bytes of a sort on disk, which needs more if one group is
            larger.
        cache_dir: Folder for the index, the sorted copy and decoded row groups; None:
            ``seqdata-index`` next to the data, or else the cache of the user.
        progress: Whether to show a progress bar; None: if standard error is a terminal.

    Examples:
        >>> frames = Frames(group="series_id", order="timestamp", freq="h")
        >>> open_store("sales.parquet", backend=frames)  # doctest: +SKIP
    """

    group: str | None = None
    order: str | None = None
    static: str | Sequence[str] = ()
    freq: str | int | None = None
    cache_bytes: int = 64 << 20
    sort_bytes: int = 256 << 20
    cache_dir: str | None = None
    progress: bool | None = None

    def __call__(
        self,
        location: Any,
        *,
        verify: str | None = None,
        group: str | None = None,
        order: str | None = None,
        missing: Missing | None = None,
        axes: Axes | None = None,
        remote: Any = None,
    ) -> FrameStore:
        """Open a table.

        Args:
            location: A path, glob, folder or URL, or several; a pandas, Polars or Arrow table; a
                Polars ``LazyFrame``; or an object with ``__arrow_c_stream__``, which is read once.
            verify: ``"first_read"``: compare the checksums of cache files, once in a process;
                None, ``"off"``: do not.
            group: Column of groups, in place of the attribute.
            order: Column that orders the rows of a group, in place of the attribute.
            missing: The rule for missing values, as in ``open_store``; not ``"drop"``.
            axes: Field -> axis; None: one value per sequence, which must be constant.
            remote: Access to URLs, as in ``open_store``; files are downloaded into
                ``Remote(cache_dir=)``.

        Raises:
            ConfigError: If an argument is invalid, a column does not exist, or no column has a
                value per timestep.
            DataError: If a file is damaged, a value is missing, or rows are not in order.
            CacheError: If a cache file cannot be written.
            SeqDataError: If a file at a URL cannot be fetched.
        """
        frames = replace(self, group=group or self.group, order=order or self.order)
        request = frames._make_request(axes or {}, verify, missing)
        spooled = None
        if is_stream(location) and not is_table(location):
            spooled = SpoolFolder(self.cache_dir)
            location = spool(location, spooled.path)
        location = _make_absolute(location)
        tables = open_tables(location, remote)
        opened = open_rows(tables, request)
        return FrameStore(
            tables.location, tables.names, tables.fingerprint, opened.index, opened.columns,
            version=None if spooled else tables.version, order=frames.order,
            folder=None if spooled else tables.folder,
            sorted_in=opened.sorted_in,
            reopen=(reopen, (frames, location, missing, axes, verify, remote, tables.version)),
            is_copied_to_workers=tables.folder is None, held=spooled or tables.copies,
        )  # fmt: skip

    def list_files(self, location: str, *, remote: Any = None) -> Sequence[str]:
        """Return the files of a Delta table; of anything else, the location itself."""
        return [os.fspath(part) for part in list_parts(location, remote)]

    def _make_request(self, axes: Axes, verify: str | None, missing: Missing | None) -> Request:
        """Check the options, and return them.

        Raises:
            ConfigError: If an option is invalid.
        """
        if self.group is None:
            raise ConfigError(
                "frames: `group` must name the column whose equal values make a sequence, but is "
                "None. Pass open_store(..., group=), or Frames(group=)"
            )
        if self.freq is not None and self.order is None:
            raise ConfigError(
                f"frames: `freq` requires `order`, the column of the time, but is {self.freq!r} "
                "and `order` is None. Pass `order`, or leave `freq` out"
            )
        if verify not in (None, "off", "first_read"):
            raise ConfigError(
                f"frames: `verify` must be 'first_read', 'off' or None, but is {verify!r}. Only "
                "the cache files of a table have checksums"
            )
        if isinstance(self.static, str) and self.static != AUTO:
            raise ConfigError(
                f"frames: `static` must be 'auto' or a list of columns, but is {self.static!r}. "
                f"Pass [{self.static!r}]"
            )
        if missing == "drop":
            raise ConfigError(
                "frames: `missing` must be 'nan', 'error' or a number, but is 'drop', which is "
                "not possible because rows are read in place. Drop the rows first, or pass the "
                "table without `backend`"
            )
        static = AUTO if self.static == AUTO else tuple(self.static)
        return Request(
            group=self.group, order=self.order, missing=missing, axes=axes, static=static,
            freq=self.freq, cache_bytes=self.cache_bytes, sort_bytes=self.sort_bytes,
            cache_dir=self.cache_dir, progress=self.progress, verify=verify == "first_read",
        )  # fmt: skip


def reopen(
    frames: Frames,
    location: Any,
    missing: Missing | None,
    axes: Axes | None,
    verify: str | None,
    remote: Any,
    version: str,
) -> FrameStore:
    """Open a store again in another process, without repeating its warnings.

    Raises:
        FingerprintMismatch: If the files have changed since they were opened first.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeqDataWarning)
        store = frames(location, missing=missing, axes=axes, verify=verify, remote=remote)
    if store.version not in (None, version):
        raise store.locate(-1).make_error(
            FingerprintMismatch,
            "must be the table that was opened first, but its files have changed since then. Open "
            "it again",
        )
    return store


def _make_absolute(location: Any) -> Any:
    """Return local paths as absolute paths; return anything else unchanged."""
    if isinstance(location, list | tuple):
        return [_make_absolute(each) for each in location]
    if not isinstance(location, str | os.PathLike) or "://" in os.fspath(location):
        return location
    return os.path.abspath(location)
