"""Sources and parts: packages that may be missing, names, tables or stores."""

import re

import numpy as np
import pandas as pd
import pytest

from seqdata import ConfigError, open_store, write_store
from seqdata.suite import sources
from seqdata.suite.sources import as_names, find_backend, is_grouped, list_parts


def refuses(message):
    return pytest.raises(ConfigError, match=f"^{re.escape(message)}")


def test_a_backend_is_found_by_its_name():
    assert find_backend("arrow", "This") is sources.default_host().find("backend", "arrow")


def test_the_package_of_a_backend_that_is_missing_is_named():
    message = (
        "This needs the package seqdata-nothing, which is not installed. pip install "
        "seqdata-nothing, or do that"
    )
    with refuses(message):
        find_backend("nothing", "This", ", or do that")


@pytest.mark.parametrize(
    ("value", "names"),
    [("load", ("load",)), (["a", "b"], ("a", "b")), (("a",), ("a",)), ((), ()), ("", ("",))],
)
def test_a_name_or_several_are_a_tuple(value, names):
    assert as_names("who", "target", value) == names


@pytest.mark.parametrize("value", [3, None, ["a", 3], {"a"}, {"a": 1}, np.array(["a"])])
def test_what_are_no_names_is_refused(value):
    message = (
        f"who: `target` must be a string or a list of strings, but is {value!r}. Pass e.g. ['a', "
        "'b']"
    )
    with refuses(message):
        as_names("who", "target", value)


def test_tables_are_still_to_be_grouped_and_stores_are_not(tmp_path):
    table = pd.DataFrame({"site": ["a"], "x": [1.0]})
    store = write_store(tmp_path / "store", [{"x": [1.0]}])
    table.to_csv(tmp_path / "table.csv", index=False)
    for source in (table, tmp_path / "table.csv", str(tmp_path / "table.csv"), tmp_path):
        assert is_grouped(source)
    for source in (store, open_store([{"x": [1.0]}]), tmp_path / "store", str(tmp_path / "store")):
        assert not is_grouped(source)


def test_a_url_with_the_suffix_of_a_table_is_not_asked():
    assert is_grouped("s3://nowhere/table.parquet")
    assert is_grouped("https://user:secret@nowhere.invalid/a/table.csv?token=secret")


def test_the_parts_of_a_split_are_without_its_options():
    split = {"train": 0.8, "val": 0.2, "seed": 3, "by": "site", "exact": True, "stratify": "y"}
    assert list_parts(split) == [0.8, 0.2]
    assert list_parts({"train": "..2024", "val": "2024..", "along": "time"}) == ["..2024", "2024.."]
