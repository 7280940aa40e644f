"""Where parts are, as text: in states, and where a mixture replaces another one."""

import pytest

from seqdata.errors import ConfigError, ResumeError
from seqdata.index import SequenceIndex
from seqdata.planning.part_order import PartWeights, parse_part_weights
from seqdata.planning.part_positions import (
    PartChanges,
    PartPosition,
    PartPositions,
    SavedPart,
    SavedParts,
    digest_part,
)
from seqdata.policies.fixed import Fixed

POSITIONS = PartPositions((PartPosition(3, 17), PartPosition(0, 0)))


def test_positions_are_told_from_weights_by_their_text():
    assert POSITIONS.digest == "@3.17,0.0"
    assert parse_part_weights(POSITIONS.digest, 2) == POSITIONS
    weights = PartWeights((1.0, 0.5))
    assert parse_part_weights(weights.digest, 2) == weights
    assert POSITIONS.count_batches([20, 7]) == (77, 0)


@pytest.mark.parametrize("text", ["@", "@1.2", "@1.2,3", "@1.2,3.4,5.6", "@1.2,-3.4", "@1.2;3.4"])
def test_damaged_positions_are_refused(text):
    with pytest.raises(ConfigError, match="saved positions must be those of 2 parts, but are '"):
        PartPositions.from_text(text, 2)


def test_what_a_state_has_of_parts_is_read_as_it_was_written():
    names = ["plain", "with space", "a=b;c@d", "größe", ""]
    parts = {name: SavedPart("Ab-_09", PartPosition(i, 2 * i)) for i, name in enumerate(names)}
    saved = SavedParts(40, parts)
    assert SavedParts.from_text(saved.text) == saved
    assert saved.text.startswith("40;plain=Ab-_09@0.0;with space=Ab-_09@1.2;")


@pytest.mark.parametrize("text", ["", "40", "40;", "x;a=Ab-_09@0.0", "40;a=Ab@0.0", "40;a=Ab-_09"])
def test_a_damaged_state_of_parts_is_refused(text):
    with pytest.raises(ResumeError, match="`parts` of the state must be parts of a mixture, but"):
        SavedParts.from_text(text)


def test_changes_name_the_parts():
    saved = {name: SavedPart(name, PartPosition(0, 0)) for name in "abc"}
    changes = PartChanges.from_saved(saved, {"b": "b", "c": "other", "d": "d", "e": "e"})
    assert changes == (["d", "e"], ["a"], ["c"])
    assert str(changes) == (
        "'d' and 'e' were added, 'a' was removed, 'c' has other data or another policy"
    )
    assert str(PartChanges([], [], [])) == "other weights or options"


def test_a_part_is_told_by_its_lengths_and_its_policy():
    index = SequenceIndex.from_lengths([3, 1])
    digests = [
        digest_part(index, Fixed(1)),
        digest_part(index, Fixed(2)),
        digest_part(SequenceIndex.from_lengths([1, 3]), Fixed(1)),
    ]
    assert len(set(digests)) == 3
    assert digests[0] == digest_part(SequenceIndex.from_lengths([3, 1]), Fixed(1))
    assert {len(digest) for digest in digests} == {6}
