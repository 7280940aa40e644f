"""Quick checks of a dataset: its files, versions and lengths, and a few of its sequences."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from seqdata.api import open_store
from seqdata.cli._doctor.finding import DoctorFinding
from seqdata.detect import detect_backend
from seqdata.errors import SeqDataError, SeqDataWarning
from seqdata.protocols import Store
from seqdata.storage.local_files import is_remote
from seqdata.storage.remote.options import Remote, resolve_remote
from seqdata.storage.remote.transport import make_remote_files
from seqdata.storage.remote.urls import redact_secrets, split_url

_SAMPLE_SEQUENCES = 16  # sequences that are read
_SAMPLE_TIMESTEPS = 4_096  # most timesteps of each


def open_checked(
    location: str, backend: str | None = None, remote: str | Remote | None = None
) -> tuple[Store | None, list[DoctorFinding]]:
    """Open a dataset; return it, or None if it cannot be opened, and the findings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SeqDataWarning)
        try:
            store = open_store(location, backend=backend, remote=remote)
        except (SeqDataError, OSError) as error:
            return None, [
                DoctorFinding(
                    redact_secrets(location), "store", "bad", str(error), "see the message's end"
                )
            ]
    findings = [
        DoctorFinding(
            redact_secrets(location), "store", "warn", str(warning.message), "see the message's end"
        )
        for warning in caught
        if issubclass(warning.category, SeqDataWarning)
    ]
    return store, findings


def check_data(
    location: str, store: Store, remote: str | Remote | None = None
) -> Iterator[DoctorFinding]:
    """Yield findings about an opened dataset."""
    count, shards = len(store), len(store.shards)
    summary = f"{count:,} sequences in {shards:,} shard{'s' if shards != 1 else ''}"
    is_foreign = detect_backend(location) == "foreign"
    sizes = "" if is_foreign else " and of the recorded size"
    yield DoctorFinding(redact_secrets(location), "shards", "ok", f"{summary}, all present{sizes}")
    for axis, lengths in store.lengths_of.items():
        yield check_lengths(location, axis, lengths)
    if is_foreign:
        yield DoctorFinding(
            redact_secrets(location), "checksums", "note",
            "none: seqdata did not write these files, so damage is not detected",
            "write them as a store: seqdata write",
        )  # fmt: skip
        if is_remote(location):
            yield _check_versions(location, store, resolve_remote(remote))
    if count:
        yield _check_sample(location, store)


def _check_versions(location: str, store: Store, remote: Remote) -> DoctorFinding:
    """Check whether the server distinguishes versions of a file that has no digest."""
    where, name = redact_secrets(location), store.shards[0]
    folder, last = split_url(location)
    files = make_remote_files(folder if last == name else location, remote)
    try:
        tag = files.stat(name).tag
    except SeqDataError as error:
        return DoctorFinding(where, "versions", "bad", str(error), "see the message's end")
    if tag is not None:
        return DoctorFinding(where, "versions", "ok", "the server reports when a file was replaced")
    return DoctorFinding(
        where, "versions", "warn",
        (f"the server sends no ETag and no modification time for {name!r}: replacing it by a file "
        "of the same size is not noticed, and the cached copy is still read"),
        ("name each version differently, use another server, or write the files as a store: "
        "seqdata write"),
    )  # fmt: skip


def check_lengths(location: str, axis: str, lengths: Any) -> DoctorFinding:
    """Return a finding about the lengths along an axis: whether a plan can use them."""
    name = f"lengths of {axis!r}"
    dtype = np.asarray(lengths[:1]).dtype
    longest = int(lengths.max()) if len(lengths) else 0
    summary = f"{dtype}, up to {longest:,} timesteps"
    if dtype.kind not in "iu":
        return DoctorFinding(
            redact_secrets(location),
            name,
            "bad",
            f"{summary}: not integers",
            "repair the backend, whose lengths must be integers",
        )
    if len(lengths) and not longest:
        return DoctorFinding(
            redact_secrets(location),
            name,
            "bad",
            "all are 0: there is nothing to plan",
            "write sequences that have timesteps",
        )
    empty = int(np.count_nonzero(lengths == 0))
    if empty:
        return DoctorFinding(
            redact_secrets(location), name, "note", f"{summary}; {empty:,} are 0 and will be "
                                                    "dropped",
            "pass empty='error' to the policy if there should be none",
        )  # fmt: skip
    return DoctorFinding(redact_secrets(location), name, "ok", summary)


def _check_sample(location: str, store: Store) -> DoctorFinding:
    """Read the first timesteps of a few sequences, spread over the dataset."""
    numbers = np.unique(np.linspace(0, len(store) - 1, _SAMPLE_SEQUENCES).astype(np.int64))
    fix = shlex.join(["seqdata", "verify", redact_secrets(location)])
    try:
        for axis, lengths in store.lengths_of.items():
            names = [name for name, field in store.fields.items() if field.axis in (axis, None)]
            stops = np.minimum(np.asarray(lengths)[numbers].astype(np.int64), _SAMPLE_TIMESTEPS)
            spans = np.stack([numbers, np.zeros_like(stops), stops], axis=1)
            for column in store.read(spans, names, axis=axis).values():
                _read_column(column)
    except (SeqDataError, OSError) as error:
        return DoctorFinding(redact_secrets(location), "data", "bad", str(error), fix)
    summary = f"the beginnings of {len(numbers)} sequences were read; to read all: {fix}"
    return DoctorFinding(redact_secrets(location), "data", "ok", summary)


def _read_column(column: Any) -> None:
    if isinstance(column, list):
        return
    offsets = np.zeros(len(column) + 1, dtype=np.int64)
    np.cumsum(column.lengths, out=offsets[1:])
    column.fill(np.empty((int(offsets[-1]), *column.shape), dtype=column.dtype), offsets, None)
