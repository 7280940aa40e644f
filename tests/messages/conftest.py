"""A store that every mistake may read."""

import pytest

from seqdata import open_store, write_store
from tests.messages.said import rows


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("messages") / "store"
    write_store(folder, rows())
    return folder


@pytest.fixture
def store(written):
    return open_store(written)
