"""Recurrent states as trees: a tensor, or tuples, lists and dicts of them.

An LSTM's state is a pair, a GRU's one tensor, a model's of several layers anything nested; all are
handled leaf by leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from seqdata.errors import ConfigError

Tree = Any
"""A tensor, or a tuple, list or dict of trees."""


def map_leaves(change: Callable[..., Tensor], tree: Tree, *others: Tree) -> Tree:
    """Return a tree of the same form, each tensor changed together with those in its place.

    Args:
        change: Takes a tensor of each tree.
        tree: Whose form it has.
        others: Trees of the same form.

    Raises:
        ConfigError: If something in the tree is no tensor, tuple, list or dict, or another tree has
            another form.
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
        ConfigError: If something in it is no tensor, tuple, list or dict.
    """
    _check_form(tree, ())
    if isinstance(tree, Tensor):
        yield tree
        return
    for part in tree.values() if isinstance(tree, dict) else tree:
        yield from iter_leaves(part)


def select_rows(tree: Tree, rows: Tensor, dim: int) -> Tree:
    """Return the rows of a tree that are named.

    Args:
        tree: With rows along ``dim``.
        rows: int64 (n,), on the CPU.
        dim: Where rows lie.
    """
    return map_leaves(lambda leaf: leaf.index_select(dim, to_device(rows, leaf.device)), tree)


def where_rows(mask: Tensor, tree: Tree, other: Tree, dim: int) -> Tree:
    """Return the rows of one tree where ``mask`` holds, else those of the other.

    Args:
        mask: bool (n,), on the device of the trees.
        tree: With n rows along ``dim``.
        other: The same form.
        dim: Where rows lie.
    """

    def choose(first: Tensor, second: Tensor) -> Tensor:
        shape = [1] * first.ndim
        shape[dim] = -1
        return torch.where(mask.view(shape), first, second)

    return map_leaves(choose, tree, other)


def zeros_like(tree: Tree, rows: int, dim: int) -> Tree:
    """Return zeros of a tree's form, with so many rows."""

    def zeros(leaf: Tensor) -> Tensor:
        shape = list(leaf.shape)
        shape[dim] = rows
        return leaf.new_zeros(shape)

    return map_leaves(zeros, tree)


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Return a small CPU tensor on a device; nothing waits for the device."""
    return values if device.type == "cpu" else values.to(device, non_blocking=True)


def _check_form(tree: Tree, others: tuple[Tree, ...]) -> None:
    if not isinstance(tree, Tensor) and type(tree) not in (tuple, list, dict):
        raise ConfigError(
            f"lanes: a state holds {type(tree).__name__}, must be tensors, in tuples, lists or "
            "dicts if there are several; hand its tensors on as a tuple"
        )
    for other in others:
        if _describe_form(other) != _describe_form(tree):
            raise ConfigError(
                f"lanes: states of one table are {_describe_form(other)} and "
                f"{_describe_form(tree)}, must have one "
                "form; put back what `run` or the module gives, and let `initial` have its form"
            )


def _describe_form(tree: Tree) -> str:
    if isinstance(tree, dict):
        return f"a dict of {', '.join(map(repr, tree))}"
    if isinstance(tree, tuple | list):
        return f"a {type(tree).__name__} of {len(tree)}"
    return "a tensor" if isinstance(tree, Tensor) else f"a {type(tree).__name__}"
