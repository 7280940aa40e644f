"""Recordings as the real writers write them."""

import h5py
import numpy as np
import pytest
import zarr

from seqdata import LongSequenceDataModule
from seqdata.errors import ConfigError


def recordings(count=9, *, longest=300, dtype="float32"):
    """Return sequences with an id: frames and labels along time, a number and a text."""
    random = np.random.default_rng(count)
    lengths = [0, 1, *random.integers(2, longest, count - 2)]
    return [
        {
            "id": f"rec{number}",
            "frames": random.normal(0, 50, (length, 3)).astype(dtype),
            "labels": random.integers(0, 9, length).astype(np.int16),
            "age": np.int64(20 + number),
            "subject": f"s{number % 3} é",
        }
        for number, length in enumerate(lengths)
    ]


def write_hdf5(path, rows, **options):
    """Write a group per recording: arrays along time, all else as attributes."""
    with h5py.File(path, "w") as file:
        for number, row in enumerate(rows):
            group = file.create_group(row.get("id", f"rec{number}"))
            for name, value in row.items():
                if np.ndim(value):
                    own = dict(options)
                    if own.get("chunks") is not None:
                        own["maxshape"] = (None, *value.shape[1:])
                        own["chunks"] = (own["chunks"], *value.shape[1:])
                    group.create_dataset(name, data=value, **own)
                elif name != "id":
                    group.attrs[name] = value
    return path


def write_zarr(path, rows, *, zarr_format=3, chunk=16, columns=None, **options):
    """Write a group per recording: arrays along time, all else as attributes."""
    root = zarr.open_group(str(path), mode="w", zarr_format=zarr_format)
    for number, row in enumerate(rows):
        group = root.create_group(row.get("id", f"rec{number}"))
        for name, value in row.items():
            if np.ndim(value):
                chunks = (chunk, *(columns or size for size in value.shape[1:]))
                array = group.create_array(
                    name, shape=value.shape, dtype=value.dtype, chunks=chunks, **options
                )
                array[...] = value
            elif name != "id":
                group.attrs[name] = value if isinstance(value, str) else value.item()
    return path


def write_without_a_label(path, writer, **options):
    """Write eight recordings with the attribute ``label``, but the fourth without it."""
    rows = [
        {"id": f"r{number}", "acc": np.zeros(100, "f4"), "person": "p", "label": "ab"[number % 2]}
        for number in range(8)
    ]
    del rows[3]["label"]
    return writer(path, rows, **options)


def check_names_what_has_no_label(source, remote=None):
    """Check that the error about labels names the recording, and a wrong name the fields."""

    def set_up(labels):
        LongSequenceDataModule(
            source, labels=labels, chunk=20, split={"train": 1.0}, remote=remote
        ).setup("fit")

    message = r"`labels` must be in every recording, but 1 of 8 have no 'label' \('r3'\)\. Add it"
    with pytest.raises(ConfigError, match=message):
        set_up("label")
    with pytest.raises(ConfigError, match=r"long sequences: no field 'persn'; did you mean 'perso"):
        set_up("persn")


def write(path, arrays, attributes=()):
    """Write arrays by path, and attributes: (path, name, value)."""
    with h5py.File(path, "w") as file:
        for name, value in arrays.items():
            file[name] = value
        for name, key, value in attributes:
            file[name].attrs[key] = value
    return path
