"""Parts, folds and unions of whatever holds sequences.

Place in the flow: before a Loader or DataModule. Reads: ids or one field. Makes: views.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seqdata.errors import ConfigError
from seqdata.resolve_store import is_location, is_store, resolve_store
from seqdata.storage import splitting
from seqdata.storage.concat import concat_stores
from seqdata.storage.splitting import Folds
from seqdata.storage.views import SequenceStore, View


def split(
    store: Any,
    parts: Mapping[str, float],
    *,
    seed: int = 0,
    by: str | None = None,
    exact: bool = False,
    stratify: str | None = None,
    lengths: Any = None,
) -> dict[str, View]:
    """Split sequences into parts by a hash of each id, or of what it belongs to.

    A sequence stays in its part when data is appended or reordered, and sequences with one value of
    ``by`` stay together. The hash is one of the text (of a number: of its 8 bytes as int64 or
    float64), the same on every machine and for every kind of store. Parts have *about* their
    fractions; with ``exact`` they have them, and a few sequences may change their part when data is
    appended.

    Args:
        store: A store, a location, or whatever ``open_store`` takes.
        parts: Name -> fraction of the sequences; they add up to 1.
        seed: Another seed gives another split.
        by: A ``str`` field, or one number per sequence, such as ``"speaker"``; None: the id.
        exact: Whether each part has its fraction of the sequences, rounded; with ``by``, of the
            values of ``by``.
        stratify: A ``str`` field, or one number per sequence, such as ``"label"``: every part has
            its fraction of each value, as nearly as whole sequences allow. Implies ``exact``.
        lengths: Of the items of a torch Dataset.

    Returns:
        Name -> view, in the store's order.

    Raises:
        ConfigError: If fractions do not add up to 1, a field is not there or has many values per
            sequence, both ``by`` and ``stratify`` are given, or a part is empty.

    Examples:
        >>> rows = [{"x": [number], "y": number % 2} for number in range(10)]
        >>> parts = split(rows, {"train": 0.8, "val": 0.2}, exact=True)
        >>> len(parts["train"]), len(parts["val"])
        (8, 2)
        >>> parts = split(rows, {"train": 0.8, "val": 0.2}, stratify="y")
        >>> sorted(int(row["y"]) for row in parts["val"])
        [0, 1]
    """
    opened = resolve_store(store, lengths=lengths)
    return splitting.split(opened, parts, seed=seed, by=by, exact=exact, stratify=stratify)


def folds(
    store: Any,
    count: int,
    *,
    seed: int = 0,
    by: str | None = None,
    stratify: str | None = None,
    lengths: Any = None,
) -> Folds:
    """Return the pairs (training view, validation view) of a cross-validation.

    Every sequence is in exactly one validation view. Ids, or the values of ``by``, are ordered by
    the hash of ``split`` and dealt out one by one, so that folds differ by at most one of them.

    Args:
        store: A store, a location, or whatever ``open_store`` takes.
        count: Number of folds, at least 2.
        seed: Another seed gives other folds.
        by: A ``str`` field, or one number per sequence, whose values stay together; None: the id.
        stratify: A ``str`` field, or one number per sequence: the sequences of each value are dealt
            out evenly.
        lengths: Of the items of a torch Dataset.

    Returns:
        A sequence of ``count`` pairs; a pair is made when it is asked for.

    Raises:
        ConfigError: If there are fewer sequences, or values of ``by``, than folds; a field is not
            there; or both ``by`` and ``stratify`` are given.

    Examples:
        >>> [len(val) for train, val in folds([[1], [2], [3], [4], [5]], 2)]
        [3, 2]
    """
    opened = resolve_store(store, lengths=lengths)
    return splitting.folds(opened, count, seed=seed, by=by, stratify=stratify)


def concat(stores: Sequence[Any]) -> SequenceStore:
    """Return the sequences of several stores as one store, one after the other.

    It goes wherever a store goes. A sequence keeps its id and its place in messages; ids that are
    just numbers are numbered through.

    Args:
        stores: Stores, locations, or whatever ``open_store`` takes, all with the same fields; with
            ``select`` and ``rename`` they are made so.

    Raises:
        ConfigError: If there is none, their fields differ (both are shown), or they carry different
            transforms.

    Examples:
        >>> store = concat([[[1, 2], [3]], [[4, 5, 6]]])
        >>> store.lengths.tolist()
        [2, 1, 3]
    """
    if is_location(stores) or is_store(stores) or not isinstance(stores, Sequence):
        raise ConfigError(
            f"concat: stores must be given as a list, but this is a {type(stores).__name__}. Write "
            "concat([first, second])"
        )
    return concat_stores([resolve_store(source) for source in stores])
