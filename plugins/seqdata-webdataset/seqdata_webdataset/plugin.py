"""The hooks of the plugin; nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqdata.backends import hookimpl
from seqdata_webdataset.backend import WebDataset
from seqdata_webdataset.reader import read_tar


@hookimpl
def seqdata_register_backends() -> Mapping[str, Any]:
    """Register the backend ``webdataset``."""
    return {"webdataset": WebDataset()}


@hookimpl
def seqdata_register_readers() -> Mapping[str, Any]:
    """Register tar shards as input of ``seqdata write``."""
    return {"webdataset": read_tar}
