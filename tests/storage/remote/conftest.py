"""A web server with one file, for tests of the transport."""

import pytest

from seqdata_testing.faults.network import folder_of, served
from tests.storage.remote.samples import CONTENT


@pytest.fixture
def file_server(tmp_path):
    """A server whose ``file.bin`` is ``CONTENT``."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file.bin").write_bytes(CONTENT)
    with served(folder_of(tmp_path / "data")) as server:
        yield server
