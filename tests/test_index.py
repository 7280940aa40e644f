import numpy as np
import pytest

from seqdata.errors import ConfigError, PlanError
from seqdata.index import SCAN_CHUNK, SequenceIndex, validate_lengths


def test_lengths_of_a_list_make_an_index():
    index = SequenceIndex.from_lengths([3, 1, 2])
    assert len(index) == 3
    assert index.lengths.tolist() == [3, 1, 2]
    assert index.run("time", 1, 3).tolist() == [1, 2]


def test_a_mapped_array_stays_mapped(tmp_path):
    np.arange(10, dtype=np.uint32).tofile(tmp_path / "lengths")
    mapped = np.memmap(tmp_path / "lengths", dtype=np.uint32, mode="r")
    assert np.shares_memory(SequenceIndex.from_lengths(mapped).lengths_of["time"], mapped)


def test_no_lengths_make_an_empty_index():
    assert len(SequenceIndex.from_lengths([])) == 0


@pytest.mark.parametrize("lengths", [[1.5, 2.0], [[1, 2]], ["a"], 3])
def test_lengths_that_are_no_integers_in_a_row_are_refused(lengths):
    with pytest.raises(ConfigError, match="must be integers in one dimension"):
        SequenceIndex.from_lengths(lengths)


def test_a_negative_length_is_refused_by_number():
    lengths = np.ones(SCAN_CHUNK + 10, dtype=np.int64)
    lengths[SCAN_CHUNK + 3] = -4
    with pytest.raises(
        ConfigError, match=f"the length of sequence {SCAN_CHUNK + 3} must be at least 0, but is -4"
    ):
        validate_lengths(lengths)


def test_axes_with_unequal_numbers_of_sequences_are_refused():
    with pytest.raises(ConfigError, match="must have the same number of sequences, but have"):
        SequenceIndex({"time": np.ones(2, int), "text": np.ones(3, int)})


def test_an_index_without_an_axis_is_refused():
    with pytest.raises(ConfigError, match="must have at least one axis"):
        SequenceIndex({})


def test_an_unknown_axis_is_named_with_those_there_are():
    index = SequenceIndex({"time": np.ones(2, int), "text": np.ones(2, int)})
    with pytest.raises(PlanError, match="no axis 'tme'; did you mean 'time'"):
        index.run("tme", 0, 2)


def test_shifted_lengths_lose_a_timestep_but_never_fall_below_zero():
    index = SequenceIndex.from_lengths(np.array([3, 1, 0], dtype=np.uint32)).shifted("time", 1)
    assert index.run("time", 0, 3).tolist() == [2, 0, 0]
    assert index.lengths.tolist() == [2, 0, 0]


def test_the_fingerprint_follows_lengths_and_what_is_done_to_them():
    one, same = SequenceIndex.from_lengths([3, 1]), SequenceIndex.from_lengths(np.uint32([3, 1]))
    assert one.fingerprint == same.fingerprint
    assert len(one.fingerprint) == 32
    other = SequenceIndex.from_lengths([1, 3])
    prints = {one.fingerprint, other.fingerprint, one.shifted("time", 1).fingerprint}
    assert len(prints) == 3


def test_the_fingerprint_of_a_store_makes_no_pass_over_the_lengths():
    class Untouchable:
        def __len__(self):
            return 5

        def __getitem__(self, key):
            raise AssertionError("read")

    assert len(SequenceIndex({"time": Untouchable()}, digest="abc").fingerprint) == 32


def test_sequences_are_named_by_their_ids_in_messages():
    index = SequenceIndex.from_lengths([1] * 9, keys=[f"utt-{k}" for k in range(9)])
    assert index.names([3]) == "'utt-3'"
    assert index.names(range(8)).endswith("'utt-4' and 3 more")
    assert SequenceIndex.from_lengths([1, 1]).names([1]) == "1"


def test_what_is_remembered_is_made_once():
    index, made = SequenceIndex.from_lengths([1]), []
    for _ in range(2):
        index.remember("key", lambda: made.append(1))
    assert made == [1]


def test_what_has_a_key_without_a_hash_is_made_each_time():
    """Such an object may be changed, and what was made of it before would not fit."""
    index, key = SequenceIndex.from_lengths([1]), [1]
    assert index.remember(("sum", key), lambda: sum(key)) == 1
    key.append(2)
    assert index.remember(("sum", key), lambda: sum(key)) == 3


def test_an_index_of_targets_knows_what_it_was_made_of():
    index = SequenceIndex.from_lengths([4, 1, 7])
    targets = index.shifted("time", 2)
    whole, by = targets.unshifted("time")
    assert (whole.lengths.tolist(), by) == ([4, 1, 7], 2)
    assert targets.lengths.tolist() == [2, 0, 5]
    assert whole is targets.unshifted("time")[0]  # what it remembers is kept
    assert index.unshifted("time") == (index, 0)
    assert whole.fingerprint == index.fingerprint != targets.fingerprint


def test_lengths_that_are_changed_again_after_a_shift_are_whole():
    index = SequenceIndex.from_lengths([4, 1]).shifted("time", 1)
    changed = index.mapped("time", "double", lambda lengths: 2 * lengths)
    assert changed.unshifted("time") == (changed, 0)
