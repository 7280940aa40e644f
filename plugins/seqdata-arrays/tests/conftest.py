import sys
from pathlib import Path

import pytest

import tests.s3

s3 = tests.s3.server
sys.path.insert(0, str(Path(__file__).parent))  # for arrays_samples: tests are no package


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own for each test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SEQDATA_CACHE", str(folder))
    return folder


@pytest.fixture
def rows():
    from arrays_samples import recordings

    return recordings()
