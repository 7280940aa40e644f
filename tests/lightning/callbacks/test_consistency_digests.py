"""A digest sees every bit of a tensor and its place."""

import pytest
import torch

from seqdata.lightning.callbacks.consistency import digest_tensors

TYPES = [
    torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.complex64, torch.complex128,
]  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES)
def test_equal_tensors_have_equal_digests_and_any_other_another(dtype):
    one = torch.arange(60).reshape(4, 15).to(dtype)
    (digest,) = digest_tensors([one])
    assert digest_tensors([one.clone(), one.t().contiguous().t(), one[:, 1:]])[:2] == [digest] * 2
    changed = one.clone()
    changed[3, 14] = 0
    assert digest_tensors([changed, one[:, 1:], one.flip(0)]).count(digest) == 0


def test_the_last_bit_of_one_of_many_values_is_seen():
    one = torch.ones(3_000_000)
    two = one.clone()
    two[2_999_998] = torch.nextafter(two[0], torch.tensor(2.0))
    (first, second) = digest_tensors([one, two])
    assert first != second


def test_two_values_that_change_places_are_seen():
    one = torch.arange(2_500_000)
    two = one.clone()
    two[[7, 2_400_000]] = one[[2_400_000, 7]]
    assert len(set(digest_tensors([one, two]))) == 2


def test_zeros_are_told_from_other_zeros_by_their_sign_and_nan_is_like_itself():
    nan = torch.tensor([float("nan"), 0.0])
    one, two, three = digest_tensors([nan, nan.clone(), torch.tensor([float("nan"), -0.0])])
    assert one == two != three


def test_nothing_has_a_digest_too():
    assert digest_tensors([]) == []
    assert len(digest_tensors([torch.empty(0), torch.tensor(3.0)])) == 2
