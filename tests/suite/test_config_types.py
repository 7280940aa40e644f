"""Types of arguments in words, and which values they take."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest

from seqdata.lightning.policy_names import PolicyName
from seqdata.policies.windows import Windows
from seqdata.protocols import Policy
from seqdata.suite import config_types

pytest.importorskip("jsonargparse")


@pytest.mark.parametrize(("hint", "expected"), [
    (int, "an integer"),
    (float | None, "a number or null"),
    (bool | Literal["warn"], "true or false or 'warn'"),
    (str | Path | Any, "a string, a path or any value"),
    (Literal["a", "b"] | None, "'a', 'b' or null"),
    (Literal[tuple(map(str, range(14)))], ", ".join(repr(str(n)) for n in range(12)) + " or another name"),  # noqa: E501
    (list[int] | Sequence[str], "a list"),
    (tuple[int, int] | tuple[int, ...], "a list of 2 items or a list"),
    (dict[str, int] | Mapping[str, Any], "a dict"),
    (Callable[[int], int] | Callable, "the import path of a function"),
    (Policy | PolicyName | str, "a Policy (class_path, init_args) or a string"),
    (Fraction, "a Fraction (class_path, init_args)"),
    (TypeVar("T"), "~T"),
])  # fmt: skip
def test_a_type_in_words(hint, expected):
    assert config_types.describe_type(hint) == expected


@pytest.mark.parametrize(("value", "hint", "expected"), [
    (3, int, True),
    ("abc", int, False),
    (None, int | None, True),
    ([1], list[int], True),
    (["x"], list[int], False),
    ("x", "not a type", True),
])  # fmt: skip
def test_whether_the_parser_takes_a_value(value, hint, expected):
    assert config_types.is_accepted(value, hint) is expected


def test_classes_that_a_type_takes():
    assert config_types.list_bases(list[Windows] | Policy | PolicyName | str | None) == [
        Windows, Policy,
    ]  # fmt: skip
    assert config_types.list_bases(dict[str, Any] | Literal["a"] | Path) == []


def test_arguments_of_a_class():
    class Some:
        def __init__(self, size: int, *, name: str = "a", other=None) -> None:
            pass

    found = config_types.list_arguments(Some)
    assert [*found] == ["size", "name", "other"]
    assert found["size"] == config_types.Argument(int, True)
    assert found["name"] == config_types.Argument(str, False)
    assert not found["other"].is_required
