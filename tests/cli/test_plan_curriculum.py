"""A limit that rises: its pairs are parsed, and its options are taken from all others."""

import click
import pytest

from seqdata import Bucketed, Curriculum
from seqdata.cli.plan import limit_lengths, parse_rules, take_curriculum_options
from seqdata.errors import ConfigError


def test_pairs_are_numbers_and_limits():
    assert parse_rules(None, None, None) is None
    assert parse_rules(None, None, "0:256,2:1024,5: None ") == ((0, 256), (2, 1024), (5, None))


@pytest.mark.parametrize("text", ["", "0", "0:", "a:1", "0:1;2:3", "0:1.5"])
def test_other_text_is_not_pairs(text):
    with pytest.raises(click.BadParameter, match="must be pairs like 0:256,2:1024,5:none, but is"):
        parse_rules(None, None, text)


@pytest.mark.parametrize("text", ["1:256", "0:1,0:2", "0:1,3:2,2:5", "0:0", "0:-4"])
def test_numbers_rise_from_nothing_and_limits_are_lengths(text):
    with pytest.raises(click.BadParameter, match="must rise from 0, with lengths of at least 1"):
        parse_rules(None, None, text)


def test_its_options_are_taken_from_the_others():
    options = {"curriculum": ((0, 8),), "segment": 4, "batches": 10, "by": "batches"}
    mixed = dict(options)
    assert take_curriculum_options(options, has_mix=False) == {
        "max_length": ((0, 8),), "segment": 4, "batches": 10,
    }  # fmt: skip
    assert options == {"by": "batches"}
    assert "batches" not in take_curriculum_options(mixed, has_mix=True)
    assert mixed == {"batches": 10, "by": "batches"}
    assert take_curriculum_options({"batches": 3}, has_mix=False) == {}


def test_segments_need_a_limit():
    with pytest.raises(ConfigError, match="`--segment` requires `--curriculum`, but there"):
        take_curriculum_options({"segment": 4}, has_mix=False)


def test_a_policy_without_options_stays_as_it_is():
    policy = Bucketed(4)
    assert limit_lengths(policy, {}) is policy
    assert isinstance(limit_lengths(policy, {"max_length": ((0, 8), (2, None))}), Curriculum)
