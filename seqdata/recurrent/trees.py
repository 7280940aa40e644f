"""Recurrent states as trees: a tensor, or tuples, lists and dicts of them.

The state of an LSTM is a pair, that of a GRU a tensor, that of a model with several layers any
nesting; all are handled leaf by leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from seqdata.errors import ConfigError, must_be

_MOST_ITEMS = 1000  # size of a list or dict that is searched; larger ones are data
Found = TypeVar("Found")

Tree = Any
"""A tensor, or a tuple, list or dict of trees."""


def map_leaves(change: Callable[..., Tensor], tree: Tree, *others: Tree) -> Tree:
    """Return a tree of the same form, whose tensors are functions of the corresponding tensors.

    Args:
        change: Function of a tensor of each tree.
        tree: The first tree, whose form the result has.
        others: Trees of the same form.

    Raises:
        ConfigError: If the tree contains anything but tensors, tuples, lists and dicts, or forms
            differ.
    """
    _check_form(tree, others)
    if isinstance(tree, Tensor):
        return change(tree, *others)
    if isinstance(tree, dict):
        return {
            name: map_leaves(
                change, tree[name], *(tree_of_others[name] for tree_of_others in others)
            )
            for name in tree
        }
    branches = [map_leaves(change, *parts) for parts in zip(tree, *others, strict=True)]
    return branches if isinstance(tree, list) else tuple(branches)


def iter_leaves(tree: Tree) -> Iterator[Tensor]:
    """Yield the tensors of a tree.

    Raises:
        ConfigError: If it contains anything but tensors, tuples, lists and dicts.
    """
    _check_form(tree, ())
    if isinstance(tree, Tensor):
        yield tree
        return
    for branch in tree.values() if isinstance(tree, dict) else tree:
        yield from iter_leaves(branch)


def iter_contained(
    kind: type[Found], path: str, value: Any, seen: set[int]
) -> Iterator[tuple[str, Found]]:
    """Yield the objects of a kind in a value, with their paths: in lists, tuples and dicts.

    Args:
        kind: Class of the objects.
        path: Path of the value; items have an index or key behind it, ``path[0]['a']``.
        value: Any value, such as an object of the kind.
        seen: Identities of lists and dicts that are not searched again.
    """
    if isinstance(value, kind):
        yield path, value
    is_container = isinstance(value, list | tuple | dict) and len(value) <= _MOST_ITEMS
    if not is_container or id(value) in seen:
        return
    seen.add(id(value))
    items = list(value.items() if isinstance(value, dict) else enumerate(value))
    for position, (key, item) in enumerate(items):
        name = repr(key) if isinstance(key, int | str) else f"item {position}"
        yield from iter_contained(kind, f"{path}[{name}]", item, seen)


def select_rows(tree: Tree, rows: Tensor, dim: int) -> Tree:
    """Return the selected rows of a tree.

    Args:
        tree: A tree with rows along ``dim``.
        rows: int64 (n,), on the CPU.
        dim: The dimension of rows.
    """
    return map_leaves(lambda leaf: leaf.index_select(dim, to_device(rows, leaf.device)), tree)


def where_rows(mask: Tensor, tree: Tree, other: Tree, dim: int) -> Tree:
    """Return the rows of ``tree`` where ``mask`` is true, and those of ``other`` elsewhere.

    Args:
        mask: bool (n,), on the device of the trees.
        tree: A tree with n rows along ``dim``.
        other: A tree of the same form.
        dim: The dimension of rows.
    """

    def choose(first: Tensor, second: Tensor) -> Tensor:
        shape = [1] * first.ndim
        shape[dim] = -1
        return torch.where(mask.view(shape), first, second)

    return map_leaves(choose, tree, other)


def zeros_like(tree: Tree, rows: int, dim: int) -> Tree:
    """Return zeros of a tree's form, with a number of rows."""

    def zeros(leaf: Tensor) -> Tensor:
        shape = list(leaf.shape)
        shape[dim] = rows
        return leaf.new_zeros(shape)

    return map_leaves(zeros, tree)


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Return a small CPU tensor on a device, without waiting for the device."""
    return values if device.type == "cpu" else values.to(device, non_blocking=True)


def _check_form(tree: Tree, others: tuple[Tree, ...]) -> None:
    if not isinstance(tree, Tensor) and type(tree) not in (tuple, list, dict):
        raise ConfigError(
            must_be(
                "lanes: a state",
                "a tensor, or a tuple, list or dict of tensors",
                f"a {type(tree).__name__}",
                "Pass its tensors as a tuple",
            )
        )
    for state in others:
        if _describe_form(state) != _describe_form(tree):
            raise ConfigError(
                "lanes: the states of a table must have one form, but are "
                f"{_describe_form(state)} and {_describe_form(tree)}. Put back the state of "
                "`run` or of the module, and pass `initial` in this form."
            )


def _describe_form(tree: Tree) -> str:
    if isinstance(tree, dict):
        return f"a dict of {', '.join(map(repr, tree))}"
    if isinstance(tree, tuple | list):
        return f"a {type(tree).__name__} of {len(tree)}"
    return "a tensor" if isinstance(tree, Tensor) else f"a {type(tree).__name__}"
