"""Everything that may become of a saved state: each part deleted, or replaced by something else."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

GONE = object()
ANYTHING: list[Any] = [
    None, -1, 0, 1, 10**30, 2**62, -(2**63), 1.5, float("nan"), True, "", "x" * 400, [], {}, (),
    [1, 2], {"a": 1}, torch.zeros(3), torch.tensor(4), GONE,
]  # fmt: skip


def damaged(state: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Return the path of each part of a state, and the state with something else in its place."""
    for path in _paths(state):
        was = _part(state, path)
        for other in (*ANYTHING, *_near(was)):
            if not _same(was, other):
                yield path, _replaced(state, path, other)


def _paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    names = list(value) if isinstance(value, dict) else range(len(value)) if _many(value) else ()
    for name in names:
        yield (*at, name)
        yield from _paths(value[name], (*at, name))


def _many(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _part(value: Any, path: tuple[Any, ...]) -> Any:
    for name in path:
        value = value[name]
    return value


def _replaced(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    name, *rest = path
    made = list(value) if _many(value) else dict(value)
    if rest:
        made[name] = _replaced(value[name], tuple(rest), other)
    elif other is GONE:
        del made[name]
    else:
        made[name] = other
    return tuple(made) if isinstance(value, tuple) else made


def _near(was: Any) -> list[Any]:
    """Return what is nearly the same."""
    if isinstance(was, Tensor) and was.numel():
        one = was.clone().reshape(-1)
        one[0] += 1
        return [
            was[:0], was[:-1], was.reshape(-1, 1, 1), was.unsqueeze(0), was.float(), was.to(int),
            torch.cat([was, was]), was.to_sparse(), one.reshape(was.shape), was.bool(),
        ]  # fmt: skip
    if isinstance(was, str):
        return [was[:-1], f"{was}0", was.upper()]
    return [was + 1, str(was), float(was), -was] if type(was) is int else []


def _same(was: Any, other: Any) -> bool:
    if type(was) is not type(other):
        return False
    return (
        torch.equal(was, other)
        if isinstance(was, Tensor) and was.layout == other.layout and was.dtype == other.dtype
        else not isinstance(was, Tensor) and bool(was == other)
    )
