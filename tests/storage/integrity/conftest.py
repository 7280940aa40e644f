import pytest

from tests.storage.integrity.checked import write


@pytest.fixture(params=["c", "numpy"])
def kernel(request, monkeypatch):
    """Each kernel in turn computes the checksums."""
    if request.param == "c":
        pytest.importorskip("seqdata.kernel._fill")
    monkeypatch.setenv("SEQDATA_KERNEL", request.param)


@pytest.fixture
def root(tmp_path):
    return write(tmp_path / "store")
