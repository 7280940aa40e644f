import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for frames_samples: tests are no package


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own for each test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SEQDATA_CACHE", str(folder))
    return folder


@pytest.fixture
def kept(monkeypatch):
    """Short tables are kept as long ones are."""
    import seqdata_frames.opening

    monkeypatch.setattr(seqdata_frames.opening, "_KEEP_ROWS", 1)
