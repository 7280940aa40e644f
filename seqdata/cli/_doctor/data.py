"""Is a data set whole, as far as that can be told in a second?

Place in the flow: ``seqdata doctor`` asks. Reads: sizes, footers, lengths, a few sequences. Makes:
findings.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from seqdata.cli._doctor.finding import Finding
from seqdata.detect import form_of
from seqdata.errors import SeqDataError, SeqDataWarning
from seqdata.protocols import Store
from seqdata.resolve_store import open_store
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.transport import remote_files
from seqdata.storage.remote.urls import is_remote, parted, without_secrets

_READ = 16  # sequences that are looked at
_STEPS = 4_096  # timesteps of each, at most


def opened(location: str, backend: str | None = None) -> tuple[Store | None, list[Finding]]:
    """Open a data set, and say what that tells; None where it cannot be opened."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", SeqDataWarning)
        try:
            store = open_store(location, backend=backend)
        except (SeqDataError, OSError) as error:
            return None, [
                Finding(
                    without_secrets(location), "store", "bad", str(error), "see the message's end"
                )
            ]
    found = [
        Finding(
            without_secrets(location), "store", "warn", str(one.message), "see the message's end"
        )
        for one in said
        if issubclass(one.category, SeqDataWarning)
    ]
    return store, found


def data_findings(location: str, store: Store) -> Iterator[Finding]:
    """Say what an opened data set is like."""
    count, shards = len(store), len(store.shards)
    told = f"{count:,} sequences in {shards:,} shard{'s' if shards != 1 else ''}"
    yield Finding(without_secrets(location), "shards", "ok", f"{told}, all there and of their size")
    for axis, lengths in store.lengths_of.items():
        yield lengths_finding(location, axis, lengths)
    if form_of(location) == "foreign":
        yield Finding(
            without_secrets(location), "checksums", "note",
            "none: the files are not ours, damage is not noticed",
            "write them as a store: seqdata write",
        )  # fmt: skip
        if is_remote(location):
            yield _versions(location, store)
    if count:
        yield _sample(location, store)


def _versions(location: str, store: Store) -> Finding:
    """Look whether the server tells one version of a file without a digest from another."""
    where, name = without_secrets(location), store.shards[0]
    files = remote_files(parted(location)[0] if where.endswith(name) else location, Remote())
    try:
        tag = files.stat(name).tag
    except SeqDataError as error:
        return Finding(where, "versions", "bad", str(error), "see the message's end")
    if tag is not None:
        return Finding(where, "versions", "ok", "the server tells when a file is another")
    return Finding(
        where, "versions", "warn",
        f"the server tells no ETag and no time of change of {name!r}: a file that is replaced by "
        "one of the same size is not noticed, and the copy in the cache goes on being read",
        "give each version a name of its own, serve the files by another server, or write them as "
        "a store: seqdata write",
    )  # fmt: skip


def lengths_finding(location: str, axis: str, lengths: Any) -> Finding:
    """Say whether lengths along an axis can be planned with."""
    name = f"lengths of {axis!r}"
    dtype = np.asarray(lengths[:1]).dtype
    longest = int(lengths.max()) if len(lengths) else 0
    told = f"{dtype}, up to {longest:,} timesteps"
    if dtype.kind not in "iu":
        return Finding(
            without_secrets(location), name, "bad", f"{told}: no integers", "repair the backend"
        )
    if len(lengths) and not longest:
        return Finding(
            without_secrets(location),
            name,
            "bad",
            "all are 0: there is nothing to plan",
            "look at them",
        )
    empty = int(np.count_nonzero(lengths == 0))
    if empty:
        return Finding(
            without_secrets(location), name, "note", f"{told}; {empty:,} are 0 and will be dropped",
            "say empty='error' in the policy if there should be none",
        )  # fmt: skip
    return Finding(without_secrets(location), name, "ok", told)


def _sample(location: str, store: Store) -> Finding:
    """Read a few sequences all over the data set; their checksums are looked at."""
    numbers = np.unique(np.linspace(0, len(store) - 1, _READ).astype(np.int64))
    fix = f"seqdata verify {without_secrets(location)}"
    try:
        for axis, lengths in store.lengths_of.items():
            names = [name for name, field in store.fields.items() if field.axis in (axis, None)]
            stops = np.minimum(np.asarray(lengths)[numbers].astype(np.int64), _STEPS)
            spans = np.stack([numbers, np.zeros_like(stops), stops], axis=1)
            for column in store.read(spans, names, axis=axis).values():
                _look_at(column)
    except (SeqDataError, OSError) as error:
        return Finding(without_secrets(location), "data", "bad", str(error), fix)
    read = f"{len(numbers)} sequences read; all of them: {fix}"
    return Finding(without_secrets(location), "data", "ok", read)


def _look_at(column: Any) -> None:
    if isinstance(column, list):
        return
    bounds = np.zeros(len(column) + 1, dtype=np.int64)
    np.cumsum(column.lengths, out=bounds[1:])
    column.fill(np.empty((int(bounds[-1]), *column.shape), dtype=column.dtype), bounds, None)
