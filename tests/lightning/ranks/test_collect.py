"""What ranks are told of each other, in words; how they tell it is in ``tests/distributed``."""

import pytest
import torch

from seqdata.lightning.ranks.collect import GatherGroup, describe_differences


def test_equal_facts_have_no_difference():
    assert describe_differences([{"a": 1, "b": None}] * 3) == ""
    assert describe_differences([{"a": 1}]) == ""


@pytest.mark.parametrize(
    ("values", "text"),
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
def test_each_difference_is_told_with_its_ranks(values, text):
    assert describe_differences(values) == text


def test_a_count_is_not_the_fraction_that_is_equal_to_it():
    text = describe_differences([{"limit_val_batches": 1}, {"limit_val_batches": 1.0}])
    assert text == "`limit_val_batches` is 1 on rank 0 but 1.0 on rank 1"


def test_a_group_of_one_rank_leaves_the_default_group_alone(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        group = GatherGroup()
        group.open()
        assert group.all_gather("value") == ["value"]
        group.close()
        group.close()
        assert torch.distributed.is_initialized()
    finally:
        torch.distributed.destroy_process_group()
