"""A column over arrays is filled piece by piece, with padding up to the next."""

import numpy as np
import pytest

from seqdata.errors import ConfigError
from seqdata.storage.array_column import ArrayColumn, check_spans
from seqdata.storage.data_location import ShardLayout

PIECES = [np.array([[1, 2], [3, 4]], dtype="i4"), np.empty((0, 2), "i4"), np.array([[5, 6]], "i4")]
COLUMN = ArrayColumn(np.dtype("i4"), (2,), PIECES)


def filled(bounds, padding=None, size=6, dtype="i4"):
    out = np.full((size, 2), -1, dtype=dtype)
    COLUMN.fill(out, np.array(bounds), padding)
    return out[:, 0].tolist()


def test_it_is_a_sequence_of_its_pieces():
    assert len(COLUMN) == 3
    assert COLUMN.lengths.tolist() == [2, 0, 1]
    assert COLUMN[2] is PIECES[2]


def test_pieces_lie_where_they_begin_and_padding_between():
    assert filled([0, 3, 4, 6]) == [1, 3, 0, 0, 5, 0]
    assert filled([0, 2, 2, 3]) == [1, 3, 5, -1, -1, -1]  # nothing behind the last one


def test_padding_is_the_value_whose_bytes_are_passed():
    assert filled([1, 4, 4, 6], np.int32(9).tobytes()) == [-1, 1, 3, 9, 5, 9]


@pytest.mark.parametrize(
    ("bounds", "options"),
    [
        ([0, 2, 3], {}),
        ([0, 3, 2, 6], {}),
        ([-1, 2, 3, 6], {}),
        ([0, 2, 3, 7], {}),
        ([0, 2, 3, 6], {"dtype": "i8"}),
    ],
)
def test_bounds_and_outputs_that_do_not_fit_are_refused_before_a_byte_is_written(bounds, options):
    with pytest.raises(ValueError, match="fill: `out` must be int32 "):
        filled(bounds, **options)


LAYOUT = ShardLayout("data", ("a", "b"), np.array([0, 2, 3]), {"time": np.array([4, 0, 7])})


def test_spans_inside_of_their_sequences_have_the_lengths_of_these():
    spans = np.array([[2, 3, 7], [0, 4, 4], [1, 0, 0]])
    assert check_spans(LAYOUT, "x", "time", spans).tolist() == [7, 4, 0]
    assert check_spans(LAYOUT, "y", None, np.array([[1, 0, 1]])).tolist() == [1]


@pytest.mark.parametrize("span", [(0, 3, 5), (0, -1, 2), (0, 3, 2), (1, 0, 1)])
def test_timesteps_that_are_not_there_are_named(span):
    number, start, stop = span
    with pytest.raises(ConfigError, match=f"sequence {number}, field 'x': .*{start}..{stop}"):
        check_spans(LAYOUT, "x", "time", np.array([(2, 0, 1), span]))


@pytest.mark.parametrize("number", [-1, 3])
def test_a_sequence_that_is_not_there_is_an_error(number):
    with pytest.raises(ConfigError, match=str(number)):
        check_spans(LAYOUT, "x", "time", np.array([[number, 0, 1]]))
