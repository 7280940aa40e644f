"""HDF5 in a bucket: mapped and compressed files give the batches of the local ones."""

import pytest
from arrays_samples import recordings, write_hdf5
from seqdata_arrays import HDF5

from seqdata import Bucketed, Loader, open_store
from seqdata_testing.s3 import check_equal_batches

FORMS = {"contiguous": {}, "gzip": {"chunks": 8, "compression": "gzip", "shuffle": True}}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cache", "ranges"])
@pytest.mark.parametrize("form", FORMS)
def test_a_batch_from_s3_is_that_of_the_local_file(s3, tmp_path, form, how):
    rows = recordings(5)
    (tmp_path / "data").mkdir()
    path = write_hdf5(tmp_path / "data/x.h5", rows, **FORMS[form])
    url = f"{s3.upload(tmp_path / 'data')}/x.h5"
    local = open_store(path, backend=HDF5())
    there = open_store(url, backend=HDF5(), remote=s3.remote(tmp_path / "far", how=how))
    policy = Bucketed(2)
    check_equal_batches(Loader(there, policy, seed=3), Loader(local, policy, seed=3))
    assert there.fingerprint == local.fingerprint
