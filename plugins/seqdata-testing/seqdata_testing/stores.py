"""Checks of a store: its description, reads, errors, pickling, and child processes."""

from __future__ import annotations

import hashlib
import multiprocessing
import pickle
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.capabilities import get_base_keys
from seqdata.errors import SeqDataError, must_be
from seqdata.protocols import Column, Field, Store
from seqdata.storage.fields import default_axis, kind_of
from seqdata.storage.text_bytes import SupportsRawTexts, concat_texts
from seqdata.storage.views import as_sequence_store
from seqdata_testing import ConformanceError

Sequences = Sequence[Mapping[str, Any]]
PATIENCE = 60.0  # seconds that a child process may take
DIGITS = 32


def check_store(store: Store, sequences: Sequences, *, methods: Sequence[str] = ()) -> None:
    """Check all that a store promises.

    Args:
        store: The store.
        sequences: Expected content: per sequence, field -> array, number, str or bytes; and ``id``
            -> its id, if the store has no field of that name.
        methods: Start methods of child processes in which to read, too: ``fork``, ``spawn``.

    Raises:
        ConformanceError: If a check fails.
    """
    check_description(store, sequences)
    check_reads(store, sequences)
    check_raw_texts(store)
    check_looks(store, sequences)
    check_refusals(store)
    check_pickling(store, sequences)
    check_processes(store, methods)


def check_description(store: Store, sequences: Sequences) -> None:
    """Check the number of sequences, fields, lengths of every axis, ids and fingerprint.

    Raises:
        ConformanceError: If one of these is wrong.
    """
    if len(store) != len(sequences):
        raise ConformanceError(f"store: has {len(store)} sequences, but must have {len(sequences)}")
    due_fields = set(sequences[0]) - ({"id"} - set(store.fields))
    if set(store.fields) != due_fields:
        raise ConformanceError(
            f"store: has fields {sorted(store.fields)}, but must have {sorted(due_fields)}"
        )
    for name, field in store.fields.items():
        if field.axis is None:
            continue
        due = [len(sequence[name]) for sequence in sequences]
        lengths = np.asarray(store.lengths_of[field.axis])
        if lengths.dtype.kind not in "iu" or lengths.tolist() != due:
            raise ConformanceError(
                f"store: lengths along {field.axis!r} are {lengths.tolist()[:5]} "
                f"({lengths.dtype}), but must be those of field {name!r}, integers: {due[:5]}"
            )
    first = default_axis(store.lengths_of)
    if not np.array_equal(store.lengths, store.lengths_of[first]):
        raise ConformanceError(f"store: `lengths` must be `lengths_of[{first!r}]`, but differ")
    _check_ids(store, sequences)
    mark = store.fingerprint
    if len(mark) != DIGITS or set(mark) - set("0123456789abcdef"):
        raise ConformanceError(must_be("store: `fingerprint`", "32 hex digits", f"{mark!r}"))


def _check_ids(store: Store, sequences: Sequences) -> None:
    numbers = np.arange(len(store))
    ids = get_base_keys(store, store.base_numbers(numbers))
    if not isinstance(ids, list) or len(ids) != len(store):
        raise ConformanceError(
            f"store: `keys` returns a {type(ids).__name__} of {len(ids)}, but must return a list "
            "of "
            f"{len(store)}"
        )
    if len(set(ids)) != len(ids) or not all(isinstance(key, str) for key in ids):
        raise ConformanceError(f"store: `keys` returns {ids[:5]}, but must return distinct strings")
    if "id" in store.fields:
        return
    for number, (key, sequence) in enumerate(zip(ids, sequences, strict=True)):
        if key != sequence.get("id", key):
            raise ConformanceError(
                f"store: `keys` returns {key!r} for sequence {number}, but must return its `id`, "
                f"{sequence['id']!r}"
            )


def check_reads(store: Store, sequences: Sequences, *, rounds: int = 8) -> None:
    """Check reads of whole sequences and of random spans, along every axis.

    Args:
        store: The store.
        sequences: Expected content.
        rounds: Number of batches of random spans per axis.

    Raises:
        ConformanceError: If a value, dtype, shape or length differs from the expected one, a field
            is missing when fields are read in another order, or a read changes the spans.
    """
    random = np.random.default_rng(0)
    for axis, lengths in store.lengths_of.items():
        full = np.arange(len(store)), np.zeros(len(store), dtype=np.int64), lengths
        batches = [np.stack(full, axis=1).astype(np.int64), np.empty((0, 3), dtype=np.int64)]
        batches += [random_spans(lengths, random) for _ in range(rounds)]
        for spans in batches:
            given = spans.copy()
            names = [str(name) for name in random.permutation(list(store.fields))]
            columns = store.read(given, names, axis=axis)
            if set(columns) != set(names):
                raise ConformanceError(
                    f"store: `read` must return the fields {', '.join(names)}, in any order, but "
                    f"returns {', '.join(columns) or 'none'}"
                )
            if not np.array_equal(given, spans):
                raise ConformanceError(
                    "store: `read` writes to its spans, but must leave them as they are: they may "
                    "be the plan's own"
                )
            for name, field in store.fields.items():
                values = [_cut(sequences[n][name], field, axis, (a, b)) for n, a, b in spans]
                _check_column(f"store: field {name!r}", columns[name], field, values, random)


def check_raw_texts(store: Store) -> None:
    """Check that ``raw_texts`` returns the strings of ``keys`` and ``read``, if the store has it.

    Raises:
        ConformanceError: If its bytes or offsets differ.
    """
    if not isinstance(store, SupportsRawTexts):
        return
    numbers = store.base_numbers(np.arange(len(store))[::-1])
    spans = np.stack([numbers, 0 * numbers, 0 * numbers], axis=1)
    texts = [name for name, field in store.fields.items() if not kind_of(field).is_array]
    due = store.read(spans, texts, axis=default_axis(store.lengths_of))
    for name in (None, *texts):
        values, offsets = store.raw_texts(name, numbers)
        expected = concat_texts(get_base_keys(store, numbers) if name is None else due[name])
        if not (np.array_equal(values, expected[0]) and np.array_equal(offsets, expected[1])):
            label = "the ids" if name is None else f"field {name!r}"
            raise ConformanceError(
                f"store: raw texts of {label} differ from those that are read, but must be the "
                "same bytes"
            )


def check_looks(store: Store, sequences: Sequences) -> None:
    """Check access to a store by index, by iteration and through views.

    Raises:
        ConformanceError: If a sequence read by index, by iteration or through a view differs.
    """
    looked = as_sequence_store(store)
    last = len(sequences) - 1
    turned = looked.take(np.arange(len(sequences))[::-1]).rename({})
    found = [(number, looked[number]) for number in (0, last, -1)]
    found += [*enumerate(looked), (last, turned[0]), (0, turned[-1])]
    for number, sequence in found:
        for name in store.fields:
            value = sequences[number][name]
            got, field = sequence[name], store.fields[name]
            due = np.asarray(value, dtype=field.dtype) if kind_of(field).is_array else value
            if not isinstance(due, np.ndarray):
                is_same = got == due
            else:
                is_same = np.shape(got) == due.shape and np.asarray(got).tobytes() == due.tobytes()
            if not is_same:
                raise ConformanceError(
                    f"store: store[{number}][{name!r}] is {got!r:.80}, but must be {value!r:.80}"
                )
    if len(found) != len(sequences) + 5:
        raise ConformanceError(
            f"store: iterates over {len(found) - 5} sequences, but must iterate over "
            f"{len(sequences)}"
        )
    try:
        looked[len(sequences)]
    except IndexError:
        return
    raise ConformanceError(f"store: store[{len(sequences)}] must raise an IndexError")


def check_refusals(store: Store) -> None:
    """Check that reading what does not exist is an error, never padding or a wrong value.

    Raises:
        ConformanceError: If such a read does not raise.
    """
    name = next((name for name, field in store.fields.items() if field.axis is not None), None)
    if name is None:
        raise ConformanceError("store: has no field with an axis, but must have one")
    axis = store.fields[name].axis or ""
    lengths = store.lengths_of[axis]
    longest = int(np.argmax(lengths))
    past = int(lengths[longest]) + 1
    requests = {
        "an unknown field": ([[0, 0, 0]], "no such field", axis),
        "an unknown axis": ([[0, 0, 0]], name, "no such axis"),
        f"sequence {len(store)}": ([[len(store), 0, 1]], name, axis),
        "sequence -1": ([[-1, 0, 1]], name, axis),
        f"timestep {past} of sequence {longest}": ([[longest, 0, past]], name, axis),
        "a span from -1 on": ([[longest, -1, 1]], name, axis),
    }
    for label, (spans, field, along) in requests.items():
        for use in (_all_pieces, _fill_all):
            try:
                use(store.read(np.array(spans, dtype=np.int64), [field], axis=along)[field])
            except SeqDataError:
                continue
            raise ConformanceError(f"store: reads {label}, but must raise an error of seqdata")


def check_pickling(store: Store, sequences: Sequences) -> None:
    """Check that an unpickled store is the same store.

    Raises:
        ConformanceError: If it has another fingerprint or content.
    """
    again: Store = pickle.loads(pickle.dumps(store))
    if again.fingerprint != store.fingerprint:
        raise ConformanceError(
            f"store: has fingerprint {again.fingerprint} after pickling, but must have "
            f"{store.fingerprint}"
        )
    check_description(again, sequences)
    check_reads(again, sequences, rounds=1)


def check_processes(store: Store, methods: Sequence[str]) -> None:
    """Check that child processes read the same as this process.

    Args:
        store: The store; this process reads it first.
        methods: Start methods: ``fork``, ``spawn`` or ``forkserver``.

    Raises:
        ConformanceError: If a child reads different data, or does not answer in time.
    """
    due = digest_of(store)
    for method in methods:
        digest = _in_child(method, store)
        if digest != due:
            raise ConformanceError(
                f"store: a child process started by {method} must read {due}, but reads {digest}"
            )


def digest_of(store: Store) -> str:
    """Read all sequences of a store, and return a digest of them (32 hex digits)."""
    digest = hashlib.sha256()
    for axis, lengths in store.lengths_of.items():
        spans = np.stack([np.arange(len(store)), np.zeros(len(store)), lengths], axis=1)
        columns = store.read(spans.astype(np.int64), list(store.fields), axis=axis)
        for name in sorted(columns):
            for piece in _pieces(columns[name]):
                digest.update(
                    piece.tobytes() if isinstance(piece, np.ndarray) else str(piece).encode()
                )
    return digest.hexdigest()[:DIGITS]


def random_spans(lengths: NDArray[Any], random: np.random.Generator) -> NDArray[np.int64]:
    """Draw spans of some sequences, in any order, with repeats, int64 (n, 3)."""
    numbers = random.integers(0, len(lengths), random.integers(1, 9))
    edges = np.sort(random.integers(0, lengths[numbers].astype(np.int64) + 1, (2, len(numbers))), 0)
    return np.stack([numbers, *edges], axis=1).astype(np.int64)


def _cut(value: Any, field: Field, axis: str, span: tuple[int, int]) -> Any:
    if not kind_of(field).is_array:
        return value
    array = np.asarray(value, dtype=field.dtype)
    if field.axis is None:
        return array.reshape(1, *field.shape)
    return array[span[0] : span[1]] if field.axis == axis else array


def _check_column(
    where: str, column: Any, field: Field, values: list[Any], random: np.random.Generator
) -> None:
    if not kind_of(field).is_array:
        if list(column) != values:
            raise ConformanceError(f"{where} must read {values[:3]}, but reads {list(column)[:3]}")
        return
    if not isinstance(column, Column):
        raise ConformanceError(f"{where} must read a Column, but reads a {type(column).__name__}")
    actual = (len(column), column.dtype, tuple(column.shape), column.lengths.tolist())
    due = (len(values), np.dtype(field.dtype), tuple(field.shape), [len(value) for value in values])
    if actual != due:
        raise ConformanceError(
            f"{where} reads a column of (pieces, dtype, shape, lengths) {actual}, but must be {due}"
        )
    for number, value in enumerate(values):
        piece = column[number]
        if piece.dtype != column.dtype:
            raise ConformanceError(
                f"{where}: piece {number} must be {column.dtype}, but is {piece.dtype}"
            )
        if piece.shape != value.shape or piece.tobytes() != value.tobytes():
            raise ConformanceError(f"{where}: piece {number} differs from what was written")
    for padding in (None, np.ones(1, field.dtype).tobytes()):
        _check_fill(where, column, values, padding, random)


def _check_fill(
    where: str,
    column: Column,
    values: list[Any],
    padding: bytes | None,
    random: np.random.Generator,
) -> None:
    sizes = [len(value) + int(random.integers(0, 4)) for value in values]
    bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    out = np.empty((int(bounds[-1]), *column.shape), dtype=column.dtype)
    out.view(np.uint8)[...] = 0xA5  # what nobody wrote
    due = np.zeros_like(out) if padding is None else np.ones_like(out)
    for begin, value in zip(bounds[:-1], values, strict=True):
        due[begin : begin + len(value)] = value
    column.fill(out, bounds, padding)
    if out.tobytes() != due.tobytes():
        raise ConformanceError(
            f"{where}: `fill` with padding {padding!r} must write each piece, then padding, but "
            "differs"
        )


def _pieces(column: Any) -> list[Any]:
    return [column[number] for number in range(len(column))]


def _all_pieces(column: Column) -> None:
    _pieces(column)


def _fill_all(column: Column) -> None:
    bounds = np.concatenate([[0], np.cumsum(column.lengths)]).astype(np.int64)
    column.fill(np.empty((int(bounds[-1]), *column.shape), dtype=column.dtype), bounds, None)


def _in_child(method: str, store: Store) -> str:
    context: Any = multiprocessing.get_context(method)
    own_end, child_end = context.Pipe(duplex=False)
    child = context.Process(target=_send_digest, args=(child_end, store), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads: tried on purpose
        child.start()
    child_end.close()
    try:
        digest = str(own_end.recv()) if own_end.poll(PATIENCE) else "nothing in time"
    except EOFError:
        digest = "nothing: it died"
    child.join(timeout=PATIENCE)
    if child.is_alive():
        child.kill()
    return digest


def _send_digest(pipe: Connection, store: Store) -> None:
    pipe.send(digest_of(store))
