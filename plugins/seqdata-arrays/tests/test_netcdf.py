"""NetCDF-4 files: what netCDF4 writes opens by path; what is not HDF5 or is packed is refused."""

import netCDF4
import numpy as np
import pytest
from seqdata_arrays import HDF5

from seqdata import open_store
from seqdata.errors import DataError, DecodeError
from seqdata_testing.stores import check_reads


def write_netcdf(path, *, form="NETCDF4", compressed=False, scale=False):
    with netCDF4.Dataset(path, "w", format=form) as file:
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


@pytest.mark.parametrize(
    ("form", "magic"),
    [("NETCDF3_CLASSIC", 1), ("NETCDF3_64BIT_OFFSET", 2), ("NETCDF3_64BIT_DATA", 5)],
)
def test_netcdf_3_is_refused_by_name(tmp_path, form, magic):
    path = write_netcdf(tmp_path / "x.nc", form=form)
    message = (
        rf"x\.nc: must be HDF5 \(NetCDF-4\), but is NetCDF-3 \(it begins with CDF-{magic}\)\. "
        r"Convert it with `nccopy -k nc4 in\.nc out\.nc`"
    )
    with pytest.raises(DecodeError, match=message):
        open_store(path, backend=HDF5())


def test_packed_numbers_are_refused_until_they_are_wanted_raw(tmp_path):
    path = write_netcdf(tmp_path / "x.nc", scale=True)
    with pytest.raises(DataError, match=r"'temp' holds packed numbers \(scale_factor\).*raw=True"):
        open_store(path, backend=HDF5())
    store = open_store(path, backend=HDF5(fields=["temp"], raw=True))
    assert store[0]["temp"].tolist() == [10 * number for number in range(50)]
