"""Sequences in arrays of HDF5, NetCDF, NumPy and Zarr."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqdata.backends import hookimpl
from seqdata_arrays.hdf5 import HDF5, NumPy
from seqdata_arrays.zarr_store import Zarr

__all__ = ["HDF5", "NumPy", "Zarr", "seqdata_register_backends"]


@hookimpl
def seqdata_register_backends() -> Mapping[str, Any]:
    """Register the backends ``hdf5``, ``numpy`` and ``zarr``."""
    return {"hdf5": HDF5(), "numpy": NumPy(), "zarr": Zarr()}
