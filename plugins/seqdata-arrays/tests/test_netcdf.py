"""NetCDF-4 files: what netCDF4 writes opens by path; what is packed is refused."""

import netCDF4
import numpy as np
import pytest
from seqdata_arrays import HDF5
from seqdata_arrays.hdf5_file import HDF5Format

from seqdata import open_store
from seqdata.errors import DataError, SeqDataWarning
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


NUMBERS = {
    "count": np.int32(-7), "gain": np.float32(0.1), "rate": np.float64(1e300), "grade": np.int8(-3),
    "code": np.int16(12),
}  # fmt: skip


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("form", ["NETCDF4", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA"])
def test_attributes_of_one_number_are_fields_as_netcdf4_reads_them(tmp_path, form, compressed):
    path = tmp_path / "x.nc"
    with netCDF4.Dataset(path, "w", format=form) as file:
        file.createDimension("time", 5)
        options = {"zlib": True} if compressed and form == "NETCDF4" else {}
        file.createVariable("x", "f4", ("time",), **options)[:] = np.arange(5)
        file.setncatts({**NUMBERS, "array": np.array([4.5]), "pair": [1, 2], "site": "north"})
    with netCDF4.Dataset(path) as file:
        due = {name: file.getncattr(name) for name in [*NUMBERS, "array"]}
    for options in ({}, {"attributes": [*due, "site"]}):
        store = open_store(path, backend=HDF5(**options))
        assert list(store.fields) == ["x", *due, "site"]
        row = store[0]
        for name, value in due.items():
            assert store.fields[name].shape == np.shape(value) == ()
            assert (row[name].dtype, row[name]) == (np.asarray(value).dtype, value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((np.int32(1), np.int16(1)), r'field "label": must hold int32 \[\] .* but holds int16'),
        ((np.int32(1), None), "must have the fields x, label like 'r0.nc', but has x"),
        ((np.int32(1), np.arange(2)), "must have the fields x, label like 'r0.nc', but has x"),
        (("one", None), "must have the fields x, label like 'r0.nc', but has x"),
    ],
)
def test_files_of_several_attributes_open_without_them(tmp_path, values, message):
    for number, value in enumerate(values):
        with netCDF4.Dataset(tmp_path / f"r{number}.nc", "w") as file:
            file.createDimension("time", 5)
            file.createVariable("x", "f4", ("time",))[:] = np.arange(5)
            if value is not None:
                file.setncattr("label", value)
    remedy = "two stores, or name what all of them have with `fields`, `axes` and `attributes`"
    with pytest.raises(DataError, match=rf"{message}.*{remedy}"):
        open_store(tmp_path, backend=HDF5())
    assert len(open_store(tmp_path, backend=HDF5(attributes=[]))) == 2


def test_an_index_from_before_attributes_of_netcdf_were_fields_is_built_anew(tmp_path):
    path = write_netcdf(tmp_path / "x.nc")
    with netCDF4.Dataset(path, "a") as file:
        file.setncattr("label", np.int32(3))
    with pytest.MonkeyPatch.context() as earlier:
        earlier.setattr(HDF5Format, "version", 1)
        open_store(path, backend=HDF5())
    message = "of the installed version of the format, but those of 1 of 1 files are of another"
    with pytest.warns(SeqDataWarning, match=message):
        store = open_store(path, backend=HDF5())
    assert store[0]["label"] == 3
    open_store(path, backend=HDF5())  # a warning here would be an error
    open_store(path, backend=HDF5(fields=["acc"]))  # other options


def test_packed_numbers_are_refused_until_they_are_wanted_raw(tmp_path):
    path = write_netcdf(tmp_path / "x.nc", scale=True)
    with pytest.raises(DataError, match=r"'temp' holds packed numbers \(scale_factor\).*raw=True"):
        open_store(path, backend=HDF5())
    store = open_store(path, backend=HDF5(fields=["temp"], raw=True))
    assert store[0]["temp"].tolist() == [10 * number for number in range(50)]
