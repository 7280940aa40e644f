"""Columns in the names of folders."""

import pytest

from seqdata.storage.find_files import find_partitions


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.parquet", "b/c.parquet"], [{}, {}]),
        (["y=1/m=01/a", "y=2/m=12/b"], [{"y": 1, "m": 1}, {"y": 2, "m": 12}]),
        (["k=1/a", "k=x/a"], [{"k": "1"}, {"k": "x"}]),
        (["k=-1/a", "k=/a"], [{"k": "-1"}, {"k": ""}]),
        (["k=a%2Fb%3D/x", "k=a b/x"], [{"k": "a/b="}, {"k": "a b"}]),
        (["k=__HIVE_DEFAULT_PARTITION__/x", "k=3/x"], [{"k": None}, {"k": 3}]),
        (["k=1/x", "x"], [{"k": 1}, {}]),
        (["k=1=2/x"], [{"k": "1=2"}]),
        (["k=1/y=2.parquet"], [{"k": 1}]),  # of a folder, not of a file
        (["k=99999999999999999999/x"], [{"k": "99999999999999999999"}]),
        (["=1/x"], [{}]),
    ],
)
def test_folders_name_columns_and_values(names, expected):
    assert find_partitions(names) == expected
