"""States as trees: one tensor, or tuples, lists and dicts of them, changed leaf by leaf."""

import pytest
import torch

from seqdata.errors import ConfigError
from seqdata.recurrent.trees import (
    iter_contained,
    iter_leaves,
    map_leaves,
    select_rows,
    where_rows,
    zeros_like,
)

FIRST = torch.arange(6.0).reshape(3, 2)
TREE = {"lstm": (FIRST, FIRST + 10), "gru": [FIRST + 20]}


def same(one, other):
    pairs = zip(iter_leaves(one), iter_leaves(other), strict=True)
    return all(torch.equal(left, right) for left, right in pairs)


@pytest.mark.parametrize("tree", [FIRST, (FIRST, FIRST), [FIRST], {"a": FIRST}, TREE, ()])
def test_a_changed_tree_has_the_same_form(tree):
    changed = map_leaves(lambda leaf: leaf + 1, tree)
    assert type(changed) is type(tree)
    assert same(map_leaves(lambda leaf: leaf - 1, changed), tree)


def test_leaves_come_in_order_and_are_changed_with_those_in_their_place():
    assert [leaf[0, 0].item() for leaf in iter_leaves(TREE)] == [0, 10, 20]
    summed = map_leaves(torch.add, TREE, TREE)
    assert [leaf[0, 0].item() for leaf in iter_leaves(summed)] == [0, 20, 40]
    assert list(summed) == ["lstm", "gru"]


def test_rows_are_selected_along_their_dimension():
    rows = torch.tensor([2, 0, 0])
    assert torch.equal(select_rows((FIRST,), rows, 0)[0], FIRST[[2, 0, 0]])
    assert torch.equal(select_rows(FIRST.T, rows, 1), FIRST.T[:, [2, 0, 0]])


@pytest.mark.parametrize("dim", [0, 1])
def test_each_row_is_taken_from_one_of_two_trees(dim):
    tree = map_leaves(lambda leaf: leaf if dim == 0 else leaf.T, TREE)
    mask = torch.tensor([True, False, True])
    chosen = where_rows(mask, tree, zeros_like(tree, 3, dim), dim)
    for leaf, whole in zip(iter_leaves(chosen), iter_leaves(tree), strict=True):
        rows, expected = (leaf, whole) if dim == 0 else (leaf.T, whole.T)
        assert torch.equal(rows[mask], expected[mask])
        assert not rows[1].any()


def test_zeros_have_as_many_rows_as_asked_for_and_the_dtype_of_each_leaf():
    zeros = zeros_like((FIRST, FIRST.double()), 5, 0)
    assert [(leaf.shape, leaf.dtype) for leaf in zeros] == [
        ((5, 2), torch.float32), ((5, 2), torch.float64),
    ]  # fmt: skip


@pytest.mark.parametrize("tree", [None, 3, (FIRST, None), {"a": "x"}, torch.Size([1])])
def test_what_is_no_tensor_is_refused(tree):
    with pytest.raises(ConfigError, match="lanes: a state must be a tensor, or a tuple, list"):
        list(iter_leaves(tree))


@pytest.mark.parametrize("other", [FIRST, [FIRST, FIRST], (FIRST,), {"a": FIRST, "b": FIRST}])
def test_trees_of_other_forms_do_not_go_together(other):
    with pytest.raises(ConfigError, match="one form"):
        map_leaves(torch.add, (FIRST, FIRST), other)


def test_what_is_contained_has_the_path_of_its_keys():
    value = ["b", {"one": 1, 2: ("c", ["d"]), ("key",): "e", None: 5}, {"f"}]
    found = dict(iter_contained(str, "x", value, set()))
    assert found == {"x[0]": "b", "x[1][2][0]": "c", "x[1][2][1][0]": "d", "x[1][item 2]": "e"}
    assert dict(iter_contained(str, "x", "alone", set())) == {"x": "alone"}
    assert not dict(iter_contained(str, "x", ["data"] * 1001, set()))
