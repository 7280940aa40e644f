"""What a rank tells of its machine and software."""

import re

import pytest
import torch

from seqdata.lightning.ranks.settings import get_environment, get_versions


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
