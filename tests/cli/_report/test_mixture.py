"""Mixtures of ``seqdata plan``: weights, names of parts, and what an epoch draws of each."""

import click
import numpy as np
import pytest

from seqdata import Fixed, write_store
from seqdata.cli._report.mixture import (
    PartStats,
    compute_part_stats,
    iter_parts_table,
    make_mixture,
    make_zip,
    name_parts,
    open_parts,
    parse_weights,
)
from seqdata.errors import ConfigError
from tests.cli.commands import read_rows


def test_weights_are_numbers():
    assert parse_weights(None, None, None) is None
    assert parse_weights(None, None, "0.7, 3") == (0.7, 3.0)
    for text in ("", "0.7;0.3", "a,b"):
        with pytest.raises(click.BadParameter, match=r"must be weights like 0\.7,0\.3, but is"):
            parse_weights(None, None, text)


def test_parts_have_the_last_names_of_their_locations():
    assert name_parts(["a/books", "b/code/", "s3://x/y.tar"]) == ["books", "code", "y.tar"]
    assert name_parts(["a/x", "b/x", "c/y"]) == ["a/x", "b/x", "y"]


def test_parts_of_urls_have_no_secrets_in_their_names():
    signed = ["https://host/x/a.parquet?sig=SECRET", "https://me:SECRET@host/y/a.parquet#SECRET"]
    assert name_parts(signed[:1]) == ["a.parquet"]
    assert name_parts(signed) == ["https://host/x/a.parquet", "https://host/y/a.parquet"]
    assert name_parts(["http://me:SECRET@host/", "http://host?sig=SECRET"]) == [
        "http://host", "http://host-2",
    ]  # fmt: skip
    assert name_parts(["what?/why?", "when#1"]) == ["why?", "when#1"]  # names of files


def test_parts_that_would_have_one_name_are_numbered():
    urls = ["https://host/a?sig=1", "https://host/a?sig=2", "https://host/a?sig=3"]
    assert name_parts(urls) == ["https://host/a", "https://host/a-2", "https://host/a-3"]
    assert name_parts(["x/a", "x/a", "y/x/a-2"]) == ["x/a", "x/a-2", "a-2"]
    assert name_parts(["a", "a", "a-2"]) == ["a", "a-3", "a-2"]


def test_the_lead_is_found_by_its_name_or_its_url():
    urls = ["https://host/a.parquet?sig=SECRET", "https://me:SECRET@host/b.parquet"]
    names = ("b.parquet", urls[1])
    assert [make_zip(urls, [1, 2], name, Fixed).lead for name in names] == ["b.parquet"] * 2
    assert make_zip(urls, [1, 2], "a.parquet?sig=SECRET", Fixed).lead == "a.parquet"
    twice = ["https://host/a?sig=SECRET", "https://host/a?sig=SECOND"]
    assert make_zip(twice, [1, 2], "https://host/a-2", Fixed).lead == "https://host/a-2"
    assert make_zip(twice, [1, 2], twice[1], Fixed).lead == "https://host/a-2"


@pytest.mark.parametrize("lead", ["c?sig=SECRET", "https://me:SECRET@host/c"])
def test_a_lead_that_is_not_there_is_named_without_secrets(lead):
    with pytest.raises(ConfigError, match=r"must be one of 'a', 'b', but is '.*c'") as caught:
        make_zip(["https://host/a?sig=SECRET", "b"], [1, 2], lead, Fixed)
    assert "SECRET" not in str(caught.value)


def test_there_is_a_weight_for_each_store():
    with pytest.raises(ConfigError, match=r"a weight for each of 3 stores, but has 2.*--mix 1,1,1"):
        make_mixture(["a", "b", "c"], [1, 2], {}, lambda: Fixed(2))


def test_the_policy_is_asked_for_once_all_else_is_right():
    def never():
        raise AssertionError

    with pytest.raises(ConfigError):
        make_mixture(["a", "b"], [1, -1], {}, never)
    mix = make_mixture(["x/a", "y/b"], [1, 3], {"batches": 8}, lambda: Fixed(5))
    assert list(mix.parts) == ["a", "b"]
    assert mix.policies["b"] == Fixed(5)


def test_figures_of_the_parts_are_those_of_the_plan(tmp_path):
    locations = [str(tmp_path / name) for name in ("a", "b")]
    write_store(locations[0], [{"x": np.zeros(3)}] * 4)
    write_store(locations[1], [{"x": np.zeros(5)}] * 6)
    mix = make_mixture(
        locations,
        [1, 3],
        {"by": "batches", "batches": 8, "batches_per_update": 1},
        lambda: Fixed(2),
    )
    index = open_parts(mix, locations, None)
    plan = mix.plan(index, seed=0, epoch=0)
    stats = compute_part_stats(mix, index, plan, plan.measures)
    assert [(part.part, part.batches, part.share) for part in stats] == [
        ("a", 2, 0.25), ("b", 6, 0.75),
    ]  # fmt: skip
    assert [part.timesteps for part in stats] == [2 * 2 * 3, 6 * 2 * 5]
    assert [part.passes for part in stats] == [1.0, 2.0]
    assert sum(part.timestep_share for part in stats) == pytest.approx(1)


def test_the_table_has_a_row_for_each_part():
    title, row = iter_parts_table([PartStats("a", 1234, 0.25, 10, 0.5, 1.5)])
    assert title.plain.startswith("part   batches     share")
    assert read_rows(row.plain) == [["a", "1,234", "25.00 %", "10", "50.00 %", "1.50"]]
