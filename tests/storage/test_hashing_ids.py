"""Ids are looked at again where their hashes are equal, and only there."""

import numpy as np
import pytest

from seqdata.errors import DecodeError
from seqdata.storage.hashing import check_unique_ids


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_other_ids_with_one_hash_are_no_error(dtype):
    looked = []
    names = ["a", "b", "c"]
    hashes = np.array([-5, 7, -5]).astype(dtype)
    check_unique_ids(hashes, lambda i: looked.append(i) or names[i])
    assert looked == [0, 2]


def test_one_id_twice_is_an_error_that_names_both():
    with pytest.raises(
        DecodeError,
        match="sequence 12: the id must be unique, but 'a' is also the id of sequence 10",
    ):
        check_unique_ids(np.array([5, 7, 5, 5]), lambda i: "abac"[i], first=10)


def test_sequences_and_a_remedy_may_be_named_otherwise():
    text = "row 2: the id must be unique, but 'a' is also the id of row 0. Make ids unique, or pray"
    with pytest.raises(DecodeError, match=text):
        check_unique_ids(
            np.array([5, 7, 5]), lambda i: "aba"[i], remedy="pray", describe="row {}".format
        )


def test_no_ids_are_no_error():
    check_unique_ids(np.empty(0, dtype=np.int64), str)
