"""NetCDF-4 files: what netCDF4 writes opens by path; what is packed is refused."""

import netCDF4
import numpy as np
import pytest
from seqdata_arrays import HDF5

from seqdata import open_store
from seqdata.errors import DataError
from seqdata_testing.stores import check_reads


def write_netcdf(path, *, compressed=False, scale=False):
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", 50)
        file.createDimension("channel", 3)  # without a variable of its own
        options = {"zlib": True, "shuffle": True, "chunksizes": (16, 3)} if compressed else {}
        data = file.createVariable("acc", "f4", ("time", "channel"), **options)
        data[:] = np.random.default_rng(0).normal(size=(50, 3))
        file.createVariable("time", "f8", ("time",))[:] = np.arange(50) / 100
        file.setncattr("subject", "s1")
        if scale:
            packed = file.createVariable("temp", "i2", ("time",))
            packed.scale_factor = 0.1
            packed[:] = np.arange(50)
    return path


@pytest.mark.parametrize("compressed", [False, True])
def test_variables_are_fields_as_netcdf4_reads_them(tmp_path, compressed):
    path = write_netcdf(tmp_path / "x.nc", compressed=compressed)
    store = open_store(path, backend=HDF5())
    assert {name: field.axis for name, field in store.fields.items()} == {
        "acc": "time", "time": "time", "subject": None,
    }  # fmt: skip
    with netCDF4.Dataset(path) as file:
        file.set_auto_mask(False)
        due = {name: np.asarray(file[name][:]) for name in ("acc", "time")}
    check_reads(store, [{**due, "subject": "s1"}], rounds=2)


@pytest.mark.parametrize("options", [{}, {"zlib": True}])
def test_texts_of_any_alphabet_are_fields_and_ids(tmp_path, options):
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        for name, size in (("time", 5), ("station", 2), ("size", 3)):
            file.createDimension(name, size)
        file.createVariable("x", "f4", ("time",), **options)[:] = np.arange(5)
        file.createVariable("n", "i4", ("station",))[:] = [2, 3]
        who = file.createVariable("who", "S1", ("station", "size"))
        who[:] = np.array([list("ab\0"), list("cde")], "S1")
        file.setncattr("site", "é")  # kept as an array of one text
    assert open_store(tmp_path / "x.nc", backend=HDF5(fields=["x"]))[0]["site"] == "é"
    store = open_store(tmp_path / "x.nc", backend=HDF5(lengths="n", ids="who", fields=["x"]))
    assert store.keys([0, 1]) == ["ab", "cde"]


def test_packed_numbers_are_refused_until_they_are_wanted_raw(tmp_path):
    path = write_netcdf(tmp_path / "x.nc", scale=True)
    with pytest.raises(DataError, match=r"'temp' holds packed numbers \(scale_factor\).*raw=True"):
        open_store(path, backend=HDF5())
    store = open_store(path, backend=HDF5(fields=["temp"], raw=True))
    assert store[0]["temp"].tolist() == [10 * number for number in range(50)]
