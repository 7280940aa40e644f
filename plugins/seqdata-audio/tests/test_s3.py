"""Recordings behind s3:// give the batches of the local ones."""

import pytest

from seqdata import Bucketed, Loader, open_store

pytest.importorskip("s3fs")
pytest.importorskip("moto")
from seqdata_testing.s3 import check_equal_batches, serve_s3


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cache", "ranges"])
def test_a_batch_from_s3_is_that_of_the_local_files(made, tmp_path, how):
    for number in range(5):
        made.wav(made.sound(300 + 70 * number, number), path=tmp_path / "data" / f"{number}.wav")
    with serve_s3() as server:
        url = server.upload(tmp_path / "data")
        local = open_store(tmp_path / "data", backend="audio")
        there = open_store(url, backend="audio", remote=server.remote(tmp_path / "far", how=how))
        check_equal_batches(Loader(there, Bucketed(2), seed=1), Loader(local, Bucketed(2), seed=1))
        assert there.fingerprint == local.fingerprint
