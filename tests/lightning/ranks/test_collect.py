"""A group of gathers on one rank; gathers of several are in ``tests/distributed``."""

import torch

from seqdata.lightning.ranks.collect import GatherGroup


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
