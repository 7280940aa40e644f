"""What ranks are told of each other, in words; how they tell it is in ``tests/distributed``."""

import re

import pytest
import torch

from seqdata.lightning.ranks.collect import describe_differences
from seqdata.lightning.ranks.environment import get_environment, get_versions


def test_equal_facts_have_no_difference():
    assert describe_differences([{"a": 1, "b": None}] * 3) == ""
    assert describe_differences([{"a": 1}]) == ""


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ([{"a": 1}, {"a": 2}], "`a` is 1 on rank 0 but 2 on rank 1"),
        ([{"a": 1}, {"a": 2}, {"a": 1}], "`a` is 1 on ranks 0, 2 but 2 on rank 1"),
        ([{"a": 1}, {"a": 2}, {"a": 3}], "`a` is 1 on rank 0 but 2 on rank 1 but 3 on rank 2"),
        ([{}, {"a": "x"}], "`a` is None on rank 0 but 'x' on rank 1"),
        (
            [{"a": 1, "b": 1}, {"a": 2, "b": 2}],
            "`a` is 1 on rank 0 but 2 on rank 1; `b` is 1 on rank 0 but 2 on rank 1",
        ),
        ([{"a": 0}] * 63 + [{"a": 1}], "`a` is 0 on ranks 0, 1, 2, 3 and 59 more but 1 on rank 63"),
    ],
)
def test_each_difference_is_told_with_its_ranks(facts, text):
    assert describe_differences(facts) == text


def test_versions_and_settings_are_plain_and_known():
    assert set(get_versions()) == {"python", "seqdata", "torch", "lightning", "numpy"}
    assert all(isinstance(one, str) and one[0].isdigit() for one in get_versions().values())
    found = get_environment()
    assert {type(one) for one in found.values()} <= {str, int, bool, type(None)}
    assert isinstance(found["plugins"], str)


def test_the_device_is_told_by_its_kind_and_instructions():
    told = get_environment(torch.device("cpu"))
    assert told["device"] == "cpu"
    assert told["vector instructions"]
    assert get_environment()["device"] is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a card")
def test_a_card_is_told_by_its_model_and_size():
    told = get_environment(torch.device("cuda", 0))
    assert re.fullmatch(r"NVIDIA .*, \d+ processors, \d+ MiB", told["device"])
