"""The built-in backends, policies, collators and readers, registered through the hooks of plugins.

Adding a policy takes one new file, one line here, and one test file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqdata.hookspecs import hookimpl
from seqdata.plugin_source import LazyFactories

BACKENDS = {
    "arrow": "seqdata.storage.arrow.store:open_arrow",
    "foreign": "seqdata.storage.foreign.store:open_foreign",
}
POLICIES = {
    "bucketed": "seqdata.policies.fixed:Bucketed",
    "curriculum": "seqdata.policies.curriculum:Curriculum",
    "fixed": "seqdata.policies.fixed:Fixed",
    "mix": "seqdata.policies.mix:Mix",
    "packed": "seqdata.policies.packed:Packed",
    "segments": "seqdata.policies.segments:Segments",
    "sorted": "seqdata.policies.fixed:Sorted",
    "tbptt": "seqdata.policies.tbptt:TBPTT",
    "token-budget": "seqdata.policies.token_budget:TokenBudget",
    "weighted": "seqdata.policies.weighted:Weighted",
    "windows": "seqdata.policies.windows:Windows",
    "zip": "seqdata.policies.zip:Zip",
}
COLLATORS = {
    "jagged": "seqdata.collators.jagged:Jagged",
    "packed": "seqdata.collators.packed:PackedRows",
    "padded": "seqdata.collators.padded:Padded",
    "varlen": "seqdata.collators.varlen:Varlen",
}
READERS = {
    "bytes": "seqdata.readers.binary:read_bytes",
    "text": "seqdata.readers.binary:read_text",
    ".txt": "seqdata.readers.binary:read_bytes",
    "npy": "seqdata.readers.binary:read_npy",
    ".npy": "seqdata.readers.binary:read_npy",
    "csv": "seqdata.readers.text_tables:read_csv",
    ".csv": "seqdata.readers.text_tables:read_csv",
    "jsonl": "seqdata.readers.text_tables:read_jsonl",
    ".jsonl": "seqdata.readers.text_tables:read_jsonl",
    ".ndjson": "seqdata.readers.text_tables:read_jsonl",
    ".jsonlines": "seqdata.readers.text_tables:read_jsonl",
    "parquet": "seqdata.readers.tables:read_parquet",
    ".parquet": "seqdata.readers.tables:read_parquet",
    "arrow": "seqdata.readers.tables:read_arrow",
}


@hookimpl
def seqdata_register_backends() -> Mapping[str, Any]:
    """Return the core's backends."""
    return LazyFactories(BACKENDS)


@hookimpl
def seqdata_register_policies() -> Mapping[str, Any]:
    """Return the core's policies."""
    return LazyFactories(POLICIES)


@hookimpl
def seqdata_register_collators() -> Mapping[str, Any]:
    """Return the core's collators, which import torch when they are looked up."""
    return LazyFactories(COLLATORS)


@hookimpl
def seqdata_register_readers() -> Mapping[str, Any]:
    """Return the core's input formats."""
    return LazyFactories(READERS)
