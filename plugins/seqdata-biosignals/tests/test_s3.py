"""Recordings behind s3:// give the batches of the local ones."""

import pytest
from seqdata_biosignals import Biosignals

from seqdata import Loader, Windows, open_store

pytest.importorskip("s3fs")
pytest.importorskip("moto")
from seqdata_testing.s3 import check_equal_batches, serve_s3

pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning")  # pandas 3


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cache", "ranges"])
def test_a_batch_from_s3_is_that_of_the_local_files(made, tmp_path, how):
    for number in range(2):
        path = tmp_path / "data" / f"r{number}.edf"
        made.edf(
            path, {64: ("c", made.numbers(192, 3, seed=number))}, annotations=[(0.5, 1.0, "on")]
        )
    made.wfdb(tmp_path / "data" / "w", made.numbers(200, 2, 12), rate=64)
    with serve_s3() as server:
        url = server.upload(tmp_path / "data")
        remote = server.remote(tmp_path / "far", how=how)
        for name in ("*.edf", "w.hea"):
            local = open_store(tmp_path / "data" / name, backend=Biosignals())
            there = open_store(f"{url}/{name}", backend=Biosignals(), remote=remote)
            policy = Windows(32, stride=16, batch_size=4)
            check_equal_batches(Loader(there, policy, seed=1), Loader(local, policy, seed=1))
            assert there.fingerprint == local.fingerprint
