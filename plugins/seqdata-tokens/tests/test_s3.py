"""Token files behind s3:// give the batches of the local ones."""

import struct

import numpy as np
import pytest
from seqdata_tokens import Tokens

from seqdata import Loader, Packed, open_store

pytest.importorskip("s3fs")
pytest.importorskip("moto")
from seqdata_testing.s3 import check_equal_batches, serve_s3


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cache"])
def test_a_batch_from_s3_is_that_of_the_local_files(tmp_path, how, monkeypatch):
    monkeypatch.setenv("SEQDATA_CACHE", str(tmp_path / "own"))
    data = tmp_path / "data"
    data.mkdir()
    random = np.random.default_rng(0)
    sizes = random.integers(1, 60, 30).astype(np.int32)
    random.integers(0, 1000, int(sizes.sum())).astype(np.uint16).tofile(data / "x.bin")
    begins = (np.cumsum(sizes, dtype=np.int64) - sizes) * 2
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(sizes), len(sizes) + 1)
    tables = (sizes, begins, np.arange(len(sizes) + 1, dtype=np.int64))
    (data / "x.idx").write_bytes(head + b"".join(table.tobytes() for table in tables))
    np.arange(500, dtype=np.uint16).tofile(data / "plain.bin")
    with serve_s3() as server:
        url = server.upload(data)
        remote = server.remote(tmp_path / "cache", how=how)
        for name in ("x.bin", "plain.bin"):
            local, there = (
                open_store(f"{folder}/{name}", backend=Tokens(), **options)
                for folder, options in ((data, {}), (url, {"remote": remote}))
            )
            policy = Packed(rows=4, row_length=100, too_long="split")
            check_equal_batches(Loader(there, policy, seed=1), Loader(local, policy, seed=1))
            assert there.fingerprint == local.fingerprint
