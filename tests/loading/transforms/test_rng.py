"""Repeats of a sequence draw apart: by their position in a view, and by their crop."""

import numpy as np

from seqdata.loading.transforms.rng import Occurrences, count_occurrences
from seqdata.storage.memory import MemoryStore

STORE = MemoryStore.from_sequences([[1.0], [2.0], [3.0]])
SPANS = np.array([[2, 0, 1], [0, 0, 1], [3, 0, 1]])


def crops(spans, epoch, index):
    return spans[:, 0] + 10 * epoch


def test_a_store_that_repeats_nothing_needs_no_numbers():
    assert count_occurrences(STORE).number_spans(SPANS[:2], 0) is None


def test_positions_that_hold_the_same_sequence_are_counted():
    view = STORE.take([1, 0, 1, 1])
    assert count_occurrences(view).number_spans(SPANS, 5).tolist() == [1, 0, 2]


def test_crops_have_their_number_of_the_epoch():
    assert count_occurrences(STORE, crops).number_spans(SPANS[:2], 3).tolist() == [32, 30]


def test_a_position_and_a_crop_are_never_mistaken_for_each_other():
    both = Occurrences(np.array([0, 0, 1, 2]), crops).number_spans(SPANS, 1)
    assert both.tolist() == [(1 << 32) + 12, 10, (2 << 32) + 13]
    assert both.dtype == np.int64
