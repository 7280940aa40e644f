"""Named stores as one, which a policy draws from: numbered through, each still known by its name.

Place in the flow: between the stores that a user names and a policy that draws from them. Reads:
stores. Makes: a store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.capabilities import get_base_keys
from seqdata.errors import ConfigError, must_be
from seqdata.protocols import Field, Store
from seqdata.storage.concat import ConcatStore, have_common_transform, join_transforms
from seqdata.storage.fields import make_unknown_name_error
from seqdata.storage.ids import is_batch
from seqdata.storage.selection import MeasuredTransform
from seqdata.storage.store_repr import format_shape
from seqdata.storage.views import format_title, get_measured_transform, without_transform


class PartsStore(ConcatStore):
    """The sequences of several named stores, one store after the other. Made by ``join_parts``.

    Args:
        parts: Name -> store; with the same fields, unless each is read by itself.
    """

    def __init__(self, parts: Mapping[str, Store]) -> None:
        super().__init__(list(parts.values()))
        self._names = tuple(parts)
        self._fields: dict[str, Field] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return PartsStore, (dict(self.parts),)

    @property
    def title(self) -> str:
        """One line that names the parts."""
        names = ", ".join(f"{name!r}: {format_title(part)}" for name, part in self.parts.items())
        return f"parts({len(self)} sequences of {names})"

    @property
    def parts(self) -> Mapping[str, Store]:
        """Name -> store, in the order of their sequences."""
        return dict(zip(self._names, self.stores, strict=True))

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> field, of the fields that all parts have with the same dtype and shape."""
        if self._fields is None:
            first, *others = self.stores
            self._fields = {
                name: field
                for name, field in first.fields.items()
                if all(_describe(store, name) == _describe(first, name) for store in others)
            }
        return self._fields

    @property
    def fingerprint(self) -> str:
        """Digest of the parts and their names, in their order (32 hex digits)."""
        if self._fingerprint is None:
            digest = hashlib.sha256(b"parts\n")
            for name, part in self.parts.items():
                digest.update(f"{name!r}={part.fingerprint}\n".encode())
            self._fingerprint = digest.hexdigest()[:32]
        return self._fingerprint

    @property
    def measured_transform(self) -> MeasuredTransform | None:
        """The transform that all parts carry; None: there is none, or they differ."""
        return join_transforms(self.stores) if have_common_transform(self.stores) else None

    def keys(self, numbers: Any) -> list[str]:
        """Return the ids of a batch's rows, each in the store of its part.

        Raises:
            ConfigError: If these are numbers, or rows of no part of this store.
        """
        if not is_batch(numbers) or not numbers.part:
            found = "one without `part`" if is_batch(numbers) else f"{numbers!r:.80}"
            raise ConfigError(
                must_be(
                    "keys: the argument for a mixture",
                    "one of its batches, whose rows know their part",
                    found,
                    "Pass `keys(batch)`, or use `parts[name].ids[numbers]` for positions in a part "
                    "and `ids[numbers]` for those in all parts",
                )
            )
        ids = np.asarray(numbers.ids, dtype=np.int64)
        parts = [numbers.part] * len(ids) if isinstance(numbers.part, str) else numbers.part
        found_names = [""] * len(ids)
        for name in dict.fromkeys(part for part in parts if part):
            if name not in self.parts:
                raise make_unknown_name_error("keys", "part", name, self.parts)
            rows = [row for row, part in enumerate(parts) if part == name and ids[row] >= 0]
            keys = get_base_keys(self.parts[name], ids[rows])
            for row, key in zip(rows, keys, strict=True):
                found_names[row] = key
        return found_names

    def base_keys(self, numbers: NDArray[np.int64]) -> list[str]:
        """Return the ids of sequences, numbered over all parts."""
        return self._read_keys(numbers)

    @property
    def carries_transforms(self) -> bool:
        """Whether a part carries a transform, so that no other view can select from all of them."""
        return any(get_measured_transform(part) is not None for part in self.stores)

    def own_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers that sequences have in the base stores of their parts, int64 (n,)."""
        own = np.empty(len(numbers), dtype=np.int64)
        for part, rows, local in self.split_by_store(numbers):
            own[rows] = self.stores[part].base_numbers(local)
        return own

    def _with_stores(self, stores: Sequence[Store]) -> PartsStore:
        return PartsStore(dict(zip(self._names, stores, strict=True)))


def join_parts(parts: Mapping[str, Store], *, read_together: bool = True) -> PartsStore:
    """Return named stores as the parts of one.

    Args:
        parts: Name -> store.
        read_together: Whether they are read as one store. If each is read by itself, fields may
            differ, and each may carry a transform.

    Raises:
        ConfigError: If there is none, a name is not a string, a part is empty, or they cannot be
            read together since their fields or transforms differ.
    """
    if not parts:
        raise ConfigError("parts: at least one store must be named, but the mapping is empty.")
    for name, part in parts.items():
        if not isinstance(name, str):
            raise ConfigError(must_be("parts: a name", "a string", f"{name!r}"))
        if not len(part):
            raise ConfigError(
                f"parts: {name!r} must have at least one sequence, but has none. Leave it out."
            )
    if read_together:
        _check_fields(parts)
        _check_transforms(parts)
    return PartsStore(parts)


def _check_transforms(parts: Mapping[str, Store]) -> None:
    if have_common_transform(parts.values()):
        return
    carried = {name: get_measured_transform(part) for name, part in parts.items()}
    described = ", ".join(
        f"{name!r} {'none' if found is None else _describe_transform(found)}"
        for name, found in carried.items()
    )
    raise ConfigError(
        "parts: all must carry the same transform, or none, since rows of all are collated "
        f"alike, but carry {described}. Pass one function to `measure_lengths` of each part."
    )


def find_carried_transform(store: Store) -> MeasuredTransform | None:
    """Return the transform that a store, or each part of it, carries; None: there is none.

    Raises:
        ConfigError: If its parts carry different ones.
    """
    if isinstance(store, PartsStore):
        _check_transforms(store.parts)
        return store.measured_transform
    return get_measured_transform(store)


def drop_transform(store: Store) -> Store:
    """Return the same sequences without the transform that they carry."""
    if isinstance(store, PartsStore):
        return PartsStore({name: without_transform(part) for name, part in store.parts.items()})
    return without_transform(store)


def _check_fields(parts: Mapping[str, Store]) -> None:
    first_name, first = next(iter(parts.items()))
    for name, part in parts.items():
        for field in (*first.fields, *part.fields):
            described = [_describe(store, field) for store in (first, part)]
            if described[0] != described[1]:
                raise ConfigError(
                    f"parts: all must have the same fields, but field {field!r} is {described[1]} "
                    f"in {name!r} and {described[0]} in {first_name!r}. Use `select` and `rename` "
                    "to make them equal, or write one of them again."
                )


def _describe_transform(carried: MeasuredTransform) -> str:
    name = getattr(carried.transform, "__qualname__", type(carried.transform).__name__)
    return f"{name} along {carried.axis!r}"


def _describe(store: Store, field: str) -> str:
    found = store.fields.get(field)
    return "missing" if found is None else f"{found.dtype} {format_shape(found)}"
