"""Ids that are made of a file's name and a number: the same in any order, and none outside."""

import numpy as np
import pytest

from seqdata.errors import ConfigError
from seqdata.storage.indexed.shard_index import NumberedIds

IDS = NumberedIds("/d", ["a.bin", "empty.bin", "b.bin"], [0, 2, 2, 5])


def test_an_id_is_the_file_and_the_number_in_it():
    assert IDS.take(range(5)) == ["a.bin/0", "a.bin/1", "b.bin/0", "b.bin/1", "b.bin/2"]
    assert IDS.take([4, 0, 4]) == ["b.bin/2", "a.bin/0", "b.bin/2"]


def test_their_bytes_are_their_texts_end_to_end():
    values, offsets = IDS.read_bytes(np.array([1, 3]))
    assert values.tobytes() == b"a.bin/1b.bin/1"
    assert offsets.tolist() == [0, 7, 14]


@pytest.mark.parametrize("number", [-1, 5])
def test_a_sequence_outside_has_no_id(number):
    assert not IDS.is_readable(number)
    with pytest.raises(
        ConfigError, match=rf"/d: the index of a sequence must be in \[0, 5\), but is {number}"
    ):
        IDS.take([number])
