"""Checks of a backend on existing data, which is read but not written.

All data is read once, sequence by sequence. Other reads are compared with it: of many sequences, of
spans, in other processes, with a rebuilt index. Only copies are damaged.
"""

from __future__ import annotations

import itertools
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np

from seqdata.errors import SeqDataError
from seqdata.protocols import Field, Store, SupportsAudit, SupportsIndexing
from seqdata.storage.fields import FIELD_DTYPES, kind_of
from seqdata.storage.views import take
from seqdata_testing import ConformanceError
from seqdata_testing.location_case import INDEX_FOLDER, LocationCase, list_ids
from seqdata_testing.processes import find_moved_files, reopen_elsewhere
from seqdata_testing.stores import (
    DIGITS,
    check_looks,
    check_processes,
    check_raw_texts,
    check_reads,
    check_refusals,
    digest_of,
)

_TOGETHER = 256  # sequences that are read at once


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check.

    Attributes:
        name: Name of the check.
        state: ``ok``, ``failed`` or ``skipped``.
        text: Description of the failure, or the reason why the check was skipped.
    """

    name: str
    state: str
    text: str = ""


def check_location(
    location: Any, backend: Any = None, *, methods: Sequence[str] = ("fork", "spawn")
) -> Iterator[CheckResult]:
    """Run all checks on existing data; yield the result of each.

    Args:
        location: The location to open.
        backend: Name of a backend, a format, or a function that opens a location; None: found from
            the location.
        methods: Start methods of child processes.
    """
    with tempfile.TemporaryDirectory() as folder:
        case = LocationCase(location, Path(folder), backend, methods=methods)
        for name, check in CHECKS.items():
            try:
                check(case)
            except SkipTest as left_out:
                yield CheckResult(name, "skipped", str(left_out))
            except ConformanceError as error:
                yield CheckResult(name, "failed", str(error))
            except Exception as error:  # the code of a plugin may raise anything
                yield CheckResult(name, "failed", f"{type(error).__name__}: {error}")
            else:
                yield CheckResult(name, "ok")


def check_description(case: LocationCase) -> None:
    """Check the fields, the lengths of each axis and the form of the fingerprint.

    Raises:
        ConformanceError: If one of these is wrong.
    """
    store = case.store
    if not isinstance(store.fields, Mapping) or not store.fields:
        raise ConformanceError(f"store: `fields` must map names to fields, but is {store.fields!r}")
    for name, each in store.fields.items():
        if not isinstance(each, Field) or each.dtype not in FIELD_DTYPES:
            raise ConformanceError(
                f"store: field {name!r} must be a Field of a dtype that seqdata knows, but is "
                f"{each!r}"
            )
    axes = {each.axis for each in store.fields.values() if each.axis is not None}
    if set(store.lengths_of) != axes or not axes:
        raise ConformanceError(
            f"store: `lengths_of` has axes {sorted(store.lengths_of)}, but must have those of the "
            f"fields, {sorted(axes)}, at least one"
        )
    for axis, given in store.lengths_of.items():
        lengths = np.asarray(given)
        if lengths.dtype.kind not in "iu" or lengths.shape != (len(store),) or (lengths < 0).any():
            raise ConformanceError(
                f"store: lengths along {axis!r} must be {len(store)} integers, 0 or more, but are "
                f"{lengths.dtype} of shape {lengths.shape}"
            )
    mark = store.fingerprint
    if len(mark) != DIGITS or set(mark) - set("0123456789abcdef"):
        raise ConformanceError(f"store: `fingerprint` must be 32 hex digits, but is {mark!r}")


def check_ids(case: LocationCase) -> None:
    """Check that each sequence has a unique id, which is a string.

    Raises:
        ConformanceError: If an id is not a string, or two sequences share one.
    """
    store = case.store
    ids = list_ids(store)
    if len(ids) != len(store):
        raise ConformanceError(
            f"store: `keys` returns {len(ids)} ids, but must return {len(store)}"
        )
    for number, key in enumerate(ids):
        if not isinstance(key, str):
            raise ConformanceError(
                f"store: the id of sequence {number} must be a str, but is {key!r}"
            )
        try:
            key.encode()
        except UnicodeEncodeError as error:
            raise ConformanceError(
                f"store: the id of sequence {number} must be a string that UTF-8 can encode, but "
                "is "
                f"{key!r}. Escape its bytes, or refuse the file"
            ) from error
    if len(set(ids)) != len(ids):
        first = dict[str, int]()
        again = next(n for n, key in enumerate(ids) if first.setdefault(key, n) != n)
        raise ConformanceError(
            f"store: sequences {first[ids[again]]} and {again} have the same id, {ids[again]!r}, "
            "but ids must be unique"
        )
    some = np.arange(len(ids))[::-2]
    if list_ids(store, some) != [ids[number] for number in some]:
        raise ConformanceError(
            "store: `keys` of some sequences must return their ids, but returns others"
        )


def check_dtypes(case: LocationCase) -> None:
    """Check that values can be read, and have the dtype of their field.

    Raises:
        ConformanceError: If a value cannot be read or has another dtype.
    """
    _raise_problem(case, "dtype")


def check_shapes(case: LocationCase) -> None:
    """Check that values have a dimension of timesteps, and then the shape of their field.

    Raises:
        ConformanceError: If a value has another shape.
    """
    _raise_problem(case, "shape")


def check_lengths(case: LocationCase) -> None:
    """Check that values of whole sequences have the lengths of their axis.

    Raises:
        ConformanceError: If a value has another length.
    """
    _raise_problem(case, "length")


def _raise_problem(case: LocationCase, kind: str) -> None:
    if kind in case.whole.problems:
        raise ConformanceError(f"store: {case.whole.problems[kind]}")


def check_together(case: LocationCase) -> None:
    """Check that sequences read together equal sequences read one by one.

    Raises:
        ConformanceError: If a timestep is missing, added or different.
    """
    store, reference = case.store, case.reference
    for axis, lengths in store.lengths_of.items():
        for first in range(0, len(store), _TOGETHER):
            numbers = np.arange(first, min(first + _TOGETHER, len(store)))
            spans = np.stack([numbers, 0 * numbers, np.asarray(lengths)[numbers]], axis=1)
            columns = store.read(spans.astype(np.int64), list(store.fields), axis=axis)
            for name, column in columns.items():
                if len(column) != len(numbers):
                    raise ConformanceError(
                        f"store: {len(numbers)} sequences read together have {len(column)} pieces "
                        f"of field {name!r}, but must have one each"
                    )
                for at, number in enumerate(numbers.tolist()):
                    _compare_alone(store, name, number, column[at], reference[number][name])


def _compare_alone(store: Store, name: str, number: int, piece: Any, alone: Any) -> None:
    value = piece[0] if store.fields[name].axis is None and isinstance(piece, np.ndarray) else piece
    if isinstance(alone, np.ndarray):
        if np.shape(value) != alone.shape:
            raise ConformanceError(
                f"store: field {name!r} of sequence {number} has shape {np.shape(value)} if it is "
                f"read with others, but {alone.shape} alone: none of its timesteps may be lost"
            )
        is_same = np.asarray(value).tobytes() == alone.tobytes()
    else:
        is_same = value == alone
    if not is_same:
        raise ConformanceError(
            f"store: field {name!r} of sequence {number} must be the same alone and with others, "
            "but differs"
        )


def check_spans(case: LocationCase) -> None:
    """Check that spans, in any order and with repeats, are slices of the whole sequences.

    Raises:
        ConformanceError: If a span is not such a slice.
    """
    if not case.reference:
        raise SkipTest("there is no sequence")
    check_reads(case.store, case.reference)
    check_raw_texts(case.store)


def check_views(case: LocationCase) -> None:
    """Check access by index and by iteration, and reads of views.

    Raises:
        ConformanceError: If a sequence differs.
    """
    if not case.reference:
        raise SkipTest("there is no sequence")
    check_looks(case.store, case.reference)
    numbers = [*range(len(case.reference))[::-2], 0, 0]
    check_reads(take(case.store, numbers), [case.reference[number] for number in numbers])


def check_kept_values(case: LocationCase) -> None:
    """Check that later reads or writes do not change values that were read.

    Raises:
        ConformanceError: If a later read changes them, or two reads share writable memory.
    """
    store = case.store
    for axis, lengths in store.lengths_of.items():
        numbers = np.arange(min(len(store), _TOGETHER))
        spans = np.stack([numbers, 0 * numbers, np.asarray(lengths)[numbers]], axis=1)
        spans = spans.astype(np.int64)
        names = [name for name, each in store.fields.items() if kind_of(each).is_array]
        columns = store.read(spans.copy(), names, axis=axis)
        kept = {name: [columns[name][at] for at in range(len(spans))] for name in names}
        copies = {name: [piece.copy() for piece in kept[name]] for name in names}
        store.read(spans[::-1].copy(), names, axis=axis)
        for name, at in itertools.product(names, range(len(spans))):
            if kept[name][at].tobytes() != copies[name][at].tobytes():
                raise ConformanceError(
                    f"store: field {name!r} of sequence {at} changed when others were read after "
                    "it, but must stay: give each read memory of its own"
                )
        again = store.read(spans.copy(), names, axis=axis)
        for name, at in itertools.product(names, range(len(spans))):
            piece, later = kept[name][at], again[name][at]
            if piece.flags.writeable and np.may_share_memory(piece, later):
                raise ConformanceError(
                    f"store: two reads of field {name!r} of sequence {at} share writable memory, "
                    "so a change to one changes the data: return a view that is read-only "
                    "(`values.flags.writeable = False`), or a copy"
                )


def check_missing(case: LocationCase) -> None:
    """Check that reading what does not exist is an error.

    Raises:
        ConformanceError: If such a read does not raise.
    """
    if not len(case.store):
        raise SkipTest("there is no sequence")
    check_refusals(case.store)


def check_reopening(case: LocationCase) -> None:
    """Check that a pickled store opens in a new process, which runs in another folder.

    Raises:
        ConformanceError: If it cannot be pickled, or differs there.
    """
    try:
        content = pickle.dumps(case.store)
        pickle.loads(content)
    except Exception as error:
        raise ConformanceError(
            f"store: cannot be pickled ({type(error).__name__}: {error}), but must be: a worker "
            "process opens it again. Return its class and location from `__reduce__`"
        ) from error
    due = f"{case.store.fingerprint} {digest_of(case.store)}"
    with tempfile.TemporaryDirectory() as elsewhere:
        found = reopen_elsewhere(content, elsewhere)
    if found != due:
        raise ConformanceError(
            "store: opened again in a new process, in another folder, it must have fingerprint and "
            f"content {due}, but there is {found}. Keep an absolute path"
        )


def check_children(case: LocationCase) -> None:
    """Check that child processes read the same, and do not share file positions with this one.

    Raises:
        ConformanceError: If a child reads other values, or moves a file position of this process.
    """
    check_processes(case.store, case.methods)
    moved = find_moved_files(case.store, _list_files(case)) if "fork" in case.methods else []
    if moved:
        raise ConformanceError(
            f"store: a forked process that reads moves the position in {moved[0]!r} here, too: "
            "both have one open file. Open it in each process, use `os.pread`, or map it"
        )


def check_fingerprint(case: LocationCase) -> None:
    """Check that each opening has the same fingerprint and content.

    Raises:
        ConformanceError: If one differs.
    """
    again = case.open(case.location)
    if again.fingerprint != case.store.fingerprint:
        raise ConformanceError(
            f"store: has fingerprint {again.fingerprint} when it is opened again, but must have "
            f"{case.store.fingerprint}: it follows from the data alone"
        )
    if digest_of(again) != digest_of(case.store):
        raise ConformanceError("store: opened again it must read the same, but does not")


def check_index(case: LocationCase) -> None:
    """Check that a rebuilt index describes the same store.

    Raises:
        ConformanceError: If the new index differs.
    """
    opener: object = case.opener
    if not isinstance(opener, SupportsIndexing):
        raise SkipTest("the backend has no index")
    copy = case.copy()
    before = case.open(copy)
    opener.build_index(str(copy), rebuild=True, progress=False)
    after = case.open(copy)
    if (after.fingerprint, digest_of(after)) != (before.fingerprint, digest_of(before)):
        raise ConformanceError("store: with a rebuilt index it must be the same, but differs")


def check_audit(case: LocationCase) -> None:
    """Check that ``seqdata verify`` finds no damage in undamaged data.

    Raises:
        ConformanceError: If it finds something.
    """
    texts, _ = _audit(case, case.location)
    if texts:
        raise ConformanceError(f"store: verify must find nothing in whole data, but finds {texts}")


def check_damage(case: LocationCase) -> None:
    """Check that a changed byte is detected, if there are checksums.

    Raises:
        ConformanceError: If changed values are read, or verify does not find the byte.
    """
    _, has_checksums = _audit(case, case.location)
    if not has_checksums:
        raise SkipTest("the backend has no checksums")
    copy = case.copy()
    due = digest_of(case.open(copy))
    path = _find_largest(copy)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)
    found, error = _read_again(lambda: case.open(copy))
    if error is None and found != due:
        raise ConformanceError(
            f"store: a changed byte of {path.name!r} must be an error, but other values are read"
        )
    texts, _ = _audit(case, copy)
    if not texts:
        raise ConformanceError(
            f"store: verify must find the changed byte of {path.name!r}, but finds nothing"
        )


def check_loss(case: LocationCase) -> None:
    """Check that a file that was cut off or removed after opening is an error.

    Raises:
        ConformanceError: If other values are read without an error.
    """
    for label in ("gone", "cut off"):
        copy = case.copy()
        store = case.open(copy)
        due, mark, content = digest_of(store), store.fingerprint, pickle.dumps(store)
        path = _find_largest(copy)
        del store
        if label == "gone":
            path.unlink()
        else:
            os.truncate(path, path.stat().st_size // 2)
        marks: list[str] = []

        def open_again(content: bytes = content, marks: list[str] = marks) -> Store:
            opened: Store = pickle.loads(content)
            marks.append(opened.fingerprint)
            return opened

        found, error = _read_again(open_again)
        if error is None and marks == [mark] and found != due:
            raise ConformanceError(
                f"store: {path.name!r} is {label} since it was opened, but other values are read "
                "without an error. Never ignore an error of a file"
            )
        if error is not None and not isinstance(error, SeqDataError | OSError):
            raise ConformanceError(
                f"store: {path.name!r} is {label}, which must be a DataError that names it, but is "
                f"{type(error).__name__}: {error}"
            ) from error


def check_content(case: LocationCase) -> None:
    """Check that the data has the expected content.

    Raises:
        ConformanceError: If the data differs from it.
    """
    if case.sequences is None:
        raise SkipTest("the expected content (`sequences`) is not given")
    if len(case.store) != len(case.sequences):
        raise ConformanceError(
            f"store: has {len(case.store)} sequences, but must have {len(case.sequences)}"
        )
    check_reads(case.store, case.sequences)


CHECKS: Mapping[str, Callable[[LocationCase], None]] = {
    "it describes itself": check_description,
    "ids are different texts": check_ids,
    "values have the dtype of their field": check_dtypes,
    "values have the shape of their field": check_shapes,
    "values have the lengths of their axis": check_lengths,
    "sequences are the same together and alone": check_together,
    "spans are parts of whole sequences": check_spans,
    "views read the same": check_views,
    "values stay as they were read": check_kept_values,
    "what is not there is refused": check_missing,
    "it reopens after pickling": check_reopening,
    "child processes read the same": check_children,
    "each opening has one fingerprint": check_fingerprint,
    "an index that is built again says the same": check_index,
    "verify finds nothing": check_audit,
    "a changed byte is found": check_damage,
    "a file that is cut off or gone is an error": check_loss,
    "the content is the expected one": check_content,
}
"""Name of each promise -> its check."""


def _list_files(case: LocationCase) -> list[Path]:
    path = Path(str(case.location).removeprefix("file://"))
    if path.is_file():
        return [path]
    return [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else []


def _find_largest(location: Path) -> Path:
    files = [location] if location.is_file() else location.rglob("*")
    held = [path for path in files if path.is_file() and INDEX_FOLDER not in path.parts]
    return max(held, key=lambda path: (path.stat().st_size, path.name))


def _read_again(open_again: Callable[[], Store]) -> tuple[str, Exception | None]:
    """Return the digest of all values, or "" and the error."""
    try:
        return digest_of(open_again()), None
    except Exception as error:  # compared by the caller: it must be one of seqdata's
        return "", error


def _audit(case: LocationCase, location: Any) -> tuple[list[str], bool]:
    """Return the findings of an audit, and whether it compared checksums.

    Raises:
        SkipTest: If the backend has no audit.
    """
    opener: object = case.opener
    if not isinstance(opener, SupportsAudit):
        raise SkipTest("the backend has no audit")
    found: Any = location if isinstance(location, list) else str(location)
    try:
        _, reports = opener.audit(found, shard=None, repair=False, on_progress=lambda _: None)
        listed = list(reports)
    except SeqDataError as error:
        return [str(error)], True
    texts = [finding.text for report in listed for finding in report.findings]
    return texts, any(report.by != "structure" for report in listed)
