"""A batch is followed through few files: CONTRIBUTING tells its way by them."""

import numpy as np
import pytest

from seqdata import TBPTT, Fixed, Loader, TokenBudget, open_store, write_store
from tests.flow import count_calls, find_iterators, follow, later_batch, write_remote

MOST_FILES = {"arrow": 9, "webdataset": 10}
MOST_BY_RANGES = {"arrow": (15, 14), "webdataset": (14, 12)}
"""Where ranges are requested, and where they are in memory."""
MOST_CALLS = (24, 20)
"""Of Python and of C functions, whatever the machine."""
MOST_TO_OPEN = {"arrow": 16, "webdataset": 35}
"""Files that ``open_store`` enters, where indexes are there."""
MOST_ITERATORS = 4


@pytest.mark.parametrize("format", ["arrow", "webdataset"])
def test_a_later_batch_enters_few_files(tmp_path, format):
    rng = np.random.default_rng(0)
    rows = ({"x": rng.normal(size=(i % 40 + 5, 4)).astype("f4"), "y": i % 3} for i in range(200))
    write_store(tmp_path / "store", rows, format=format)
    loader = Loader(open_store(tmp_path / "store"), TokenBudget(256), prefetch=0)
    files = later_batch(iter(loader)).files
    assert len(files) <= MOST_FILES[format], "\n".join(files)


@pytest.mark.parametrize(
    ("policy", "lengths"), [(Fixed(64), range(5, 500)), (TBPTT(64, 512), [3000] * 64)]
)
def test_a_later_batch_is_made_by_few_calls(tmp_path, policy, lengths):
    rows = ({"x": np.zeros((length, 2), "f4")} for length in lengths)
    write_store(tmp_path / "store", rows)
    loader = Loader(open_store(tmp_path / "store"), policy, prefetch=0)
    calls = count_calls(iter(loader))
    assert all(found <= most for found, most in zip(calls, MOST_CALLS, strict=True)), calls


def test_few_iterators_lie_between_a_trainer_and_a_batch(tmp_path):
    write_store(tmp_path / "store", ({"x": np.zeros((i % 9 + 2, 4), "f4")} for i in range(80)))
    found = find_iterators(str(tmp_path / "store"))
    assert len(found) <= MOST_ITERATORS, found


@pytest.mark.parametrize("format", ["arrow", "webdataset"])
def test_a_later_batch_by_ranges_enters_few_files(tmp_path, format):
    store = write_remote(f"memory://{tmp_path.name}/{format}", tmp_path, format)
    loader = Loader(store, TokenBudget(256), prefetch=0)
    requested = later_batch(iter(loader)).files
    for _ in loader:
        pass
    in_memory = later_batch(iter(loader)).files
    most_requested, most_in_memory = MOST_BY_RANGES[format]
    assert len(requested) <= most_requested, "\n".join(requested)
    assert len(in_memory) <= most_in_memory, "\n".join(in_memory)
    assert set(in_memory) < set(requested)


@pytest.mark.parametrize("format", ["arrow", "webdataset"])
def test_a_store_is_opened_through_few_files(tmp_path, format):
    rows = ({"x": np.zeros((length, 2), "f4")} for length in range(5, 25))
    write_store(tmp_path / "store", rows, format=format)
    location = tmp_path / "store"
    if format == "webdataset":
        (location,) = location.glob("*.tar")
    files = follow(lambda: open_store(location)).files
    assert len(files) <= MOST_TO_OPEN[format], "\n".join(files)


def test_the_flow_holds_our_functions_in_order_of_entry():
    flow = follow(lambda: TokenBudget(8))
    assert flow.files[0] == "seqdata/policies/token_budget.py"
    assert ("seqdata/policies/token_budget.py", "TokenBudget.__post_init__") in flow.functions
    assert all(file.startswith(("seqdata/", "plugins/")) for file in flow.files)
