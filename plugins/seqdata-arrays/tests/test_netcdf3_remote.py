"""Classic NetCDF in a bucket gives the batches of the local files, by the cache and by ranges."""

import numpy as np
import pytest
from classic_samples import bits, recording, write_nc
from seqdata_arrays import HDF5

from seqdata import Loader, Remote, Windows, open_store
from seqdata.errors import DataError
from seqdata_testing.faults.network import before, served
from seqdata_testing.s3 import check_equal_batches
from seqdata_testing.stores import check_processes

ROWS = 40_000


@pytest.mark.slow
@pytest.mark.parametrize("unlimited", [None, "time"], ids=["fixed", "records"])
@pytest.mark.parametrize("how", ["cache", "ranges"])
def test_a_batch_from_s3_is_that_of_the_local_files(s3, tmp_path, how, unlimited):
    for number in range(2):
        variables = recording(300 + number, seed=number)
        path = tmp_path / "data" / f"r{number}.nc"
        path.parent.mkdir(exist_ok=True)
        write_nc(path, variables, form="NETCDF3_64BIT_OFFSET", unlimited=unlimited,
                 attributes=[("subject", f"s{number} é")])  # fmt: skip
    backend = HDF5(axes={"grid": None})
    local = open_store(tmp_path / "data", backend=backend)
    url, remote = s3.upload(tmp_path / "data"), s3.remote(tmp_path / "far", how=how)
    there = open_store(f"{url}/*.nc", backend=backend, remote=remote)
    assert (there.fingerprint, there.shards) == (local.fingerprint, local.shards)
    assert [row["subject"] for row in there] == ["s0 é", "s1 é"]
    policy = Windows(32, stride=16, batch_size=4)
    for workers in (0, 2):
        found = Loader(there, policy, seed=1, num_workers=workers)
        check_equal_batches(found, Loader(local, policy, seed=1))
    check_processes(there, ("fork", "spawn"))


@pytest.mark.slow
@pytest.mark.parametrize("unlimited", [None, "time"], ids=["fixed", "records"])
def test_by_ranges_only_the_pieces_of_a_batch_are_fetched(s3, tmp_path, unlimited):
    variables = {name: (("time", "k"), bits("f8", (ROWS, 16))) for name in "xy"}
    (tmp_path / "data").mkdir()
    path = write_nc(tmp_path / "data/x.nc", variables, form="NETCDF3_64BIT_OFFSET",
                    unlimited=unlimited)  # fmt: skip
    open_store(path, backend=HDF5())  # makes its index
    url = s3.upload(tmp_path / "data")
    sent, source = [], before(s3.host, s3.port)

    def count(request):
        answer = source(request)
        if request.method == "GET" and ".nc" in request.path:
            sent.append(len(answer.body))
        return answer

    with served(count) as web:
        options = {**s3.storage_options, "endpoint_url": web.url}
        remote = Remote(cache_dir=tmp_path / "far", storage_options=options, how="ranges")
        store = open_store(f"{url}/x.nc", backend=HDF5(), remote=remote)
        sent.clear()
        (column,) = store.read(np.array([[0, 20_000, 20_010]]), ["y"]).values()
    assert column[0].tobytes() == variables["y"][1][20_000:20_010].tobytes()
    assert 0 < sum(sent) < path.stat().st_size / 3


@pytest.mark.slow
def test_a_file_that_is_damaged_in_the_bucket_is_named(s3, tmp_path):
    (tmp_path / "data").mkdir()
    path = write_nc(tmp_path / "data/x.nc", recording(300), form="NETCDF3_CLASSIC")
    path.write_bytes(path.read_bytes()[:-100])
    url, remote = s3.upload(tmp_path / "data"), s3.remote(tmp_path / "far")
    with pytest.raises(DataError, match=r"x\.nc.*variable '\w+' ends at byte \d+, but the file"):
        open_store(f"{url}/x.nc", backend=HDF5(), remote=remote)
