"""A batch as figures and as plain tensors, for ``seqdata replay``."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from seqdata.batch.batch import SequenceBatch
from seqdata.batch.layouts import LAYOUTS
from seqdata.capabilities import get_base_keys
from seqdata.errors import ConfigError, must_be
from seqdata.loading.base_engine import StepBatch
from seqdata.loading.transforms.results import is_whole_value
from seqdata.protocols import Store, SupportsParts
from seqdata.storage.local_files import write_atomically

_TENSOR_NAMES = ("lengths", "ids", "weight", "start", "lanes", "reset", "burn_in", "segments")
_SCALAR_NAMES = (
    "epoch", "number", "num_tokens", "global_num_tokens", "update_num_tokens", "loss_scale",
    "sequence_scale",
)  # fmt: skip
_MAX_TEXT = 40  # most characters of a string that are shown


def summarize_batch(batch: StepBatch, store: Store) -> dict[str, Any]:
    """Return a summary of a batch as plain data; for zipped parts by name."""
    if isinstance(batch, Mapping):
        parts = {name: summarize_batch(part, store) for name, part in batch.items()}
        first = next(iter(parts.values()))
        return {"epoch": first["epoch"], "number": first["number"], "parts": parts}
    store = _find_own_store(batch, store)
    rows, width = len(batch), batch.padded_length
    real = int(batch.lengths.sum())
    padded = rows * width if LAYOUTS[batch.layout].has_rows else real
    return {
        **{name: getattr(batch, name) for name in _SCALAR_NAMES},
        "rows": rows,
        "filler": int((batch.weight == 0).sum()),
        "longest": width,
        "timesteps": real,
        "padded": padded,
        "padding": 1 - real / padded if padded else 0.0,
        "sequences": list(_iter_spans(batch, store)),
        "fields": {
            name: stats
            for field, value in batch.data.items()
            for name, stats in _iter_stats(field, _without_padding(batch, field, value), value)
        },
    }


def save_batch(batch: StepBatch, store: Store, path: Path) -> None:
    """Write a batch as plain tensors and dicts (``.pt``), or as arrays (``.npz``).

    The batches of zipped parts are entries by name.

    Raises:
        ConfigError: If the file has another suffix, or a field has a value other than tensors,
            strings, bytes, numbers, and lists and dicts of them.
        OSError: If it cannot be written.
    """
    plain: dict[str, Any] = (
        {name: _batch_to_plain(part, store) for name, part in batch.items()}
        if isinstance(batch, Mapping)
        else _batch_to_plain(batch, store)
    )
    content = io.BytesIO()
    if path.suffix in (".pt", ".pth"):
        torch.save(plain, content)
    elif path.suffix == ".npz":
        arrays: Any = dict(_iter_arrays("", plain))
        np.savez(content, **arrays)
    else:
        raise ConfigError(
            must_be(
                "replay: `--save`",
                "a file that ends in .pt (tensors) or .npz (arrays)",
                repr(str(path)),
            )
        )
    write_atomically(path, content.getvalue())


def _find_own_store(batch: SequenceBatch, store: Store) -> Store:
    """Return the store to which the ids of a batch refer: that of its part, if it has one."""
    if isinstance(store, SupportsParts) and isinstance(batch.part, str):
        return store.parts[batch.part]
    return store


def _batch_to_plain(batch: SequenceBatch, store: Store) -> dict[str, Any]:
    """Return a batch as tensors, strings, numbers, lists and dicts."""
    store = _find_own_store(batch, store)
    return {
        "data": {name: _to_plain(name, value) for name, value in batch.data.items()},
        **{
            name: _to_plain(name, getattr(batch, name))
            for name in _TENSOR_NAMES
            if _has_value(batch, name)
        },
        **{name: getattr(batch, name) for name in _SCALAR_NAMES},
        "keys": _name_sequences(store, batch.ids.tolist()),
    }


def _has_value(batch: SequenceBatch, name: str) -> bool:
    return getattr(batch, name) is not None


def _iter_spans(batch: SequenceBatch, store: Store) -> Iterator[dict[str, Any]]:
    """Yield each span with its row; a row holds several where documents are packed."""
    weights = batch.weight.tolist()
    if batch.segments is None:
        rows = range(len(batch))
        starts, lengths = batch.start.tolist(), batch.lengths.tolist()
        spans = list(zip(rows, batch.ids.tolist(), starts, lengths, strict=True))
    else:
        spans = [
            (row, id_, start, stop - start) for row, id_, start, stop in batch.segments.tolist()
        ]
    keys = _name_sequences(store, [id_ for _, id_, _, _ in spans])
    for (row, id_, start, length), key in zip(spans, keys, strict=True):
        summary = {"row": row, "id": id_, "key": key, "start": start, "length": length}
        summary["weight"] = weights[row]
        if batch.lanes is not None and batch.reset is not None:
            summary |= {"lane": int(batch.lanes[row]), "reset": bool(batch.reset[row])}
        yield summary


def _name_sequences(store: Store, ids: Sequence[int]) -> list[str]:
    """Return the names of sequences; an empty row has none."""
    keys = iter(get_base_keys(store, np.array([id_ for id_ in ids if id_ >= 0], dtype=np.int64)))
    return [next(keys) if id_ >= 0 else "" for id_ in ids]


def _without_padding(batch: SequenceBatch, name: str, value: Any) -> Any:
    """Return a field without its padding, if it has any."""
    axis = batch.axes.along(name)
    layout = LAYOUTS[batch.layout]
    if not isinstance(value, Tensor) or not layout.has_rows or axis is None:
        return value
    lengths, width = batch.extent(axis)
    if value.is_nested or value.shape[:2] != (len(batch), width):
        return value
    return layout.flatten(value, lengths)


def _iter_stats(name: str, value: Any, full_value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the figures of a value, or of each value that it contains."""
    if isinstance(value, PackedSequence):
        yield name, _tensor_stats(value.data, full_value.data.shape)
    elif isinstance(value, Tensor) and value.is_nested:
        yield name, _tensor_stats(value.values(), value.values().shape)
    elif isinstance(value, Tensor):
        yield name, _tensor_stats(value, full_value.shape)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _iter_stats(f"{name}.{key}", item, item)
    elif isinstance(value, list | tuple) and not all(map(is_whole_value, value)):
        for key, item in enumerate(value):
            yield from _iter_stats(f"{name}.{key}", item, item)
    elif isinstance(value, list | tuple):
        first = value[0] if value else ""
        kind = type(first).__name__
        yield name, {"dtype": kind, "shape": [len(value)], "first": str(first[:_MAX_TEXT])}
    else:
        yield name, {"dtype": type(value).__name__, "first": repr(value)[:_MAX_TEXT]}


def _tensor_stats(values: Tensor, shape: Sequence[int]) -> dict[str, Any]:
    stats: dict[str, Any] = {"dtype": str(values.dtype).removeprefix("torch."), "shape": [*shape]}
    if values.is_complex():
        return {**stats, "nan": int(values.isnan().sum()), "inf": int(values.isinf().sum())}
    if values.dtype.is_floating_point:
        finite = values[values.isfinite()].double()
        stats |= {"nan": int(values.isnan().sum()), "inf": int(values.isinf().sum())}
    else:
        finite = values.long() if values.dtype == torch.bool else values
        stats |= {"nan": 0, "inf": 0}
    if finite.numel():
        array = finite.detach().numpy()  # torch orders no unsigned integers of more than 8 bits
        mean = float(finite.double().mean())
        stats |= {"min": array.min().item(), "max": array.max().item(), "mean": mean}
    return stats


def _to_plain(name: str, value: Any) -> Any:
    """Return a value as tensors that own their memory, strings, numbers, lists and dicts."""
    if isinstance(value, PackedSequence):
        return {
            key: _to_plain(name, item) for key, item in value._asdict().items() if item is not None
        }
    if isinstance(value, Tensor) and value.is_nested:
        nested: Any = value
        return {"values": nested.values().clone(), "offsets": nested.offsets().clone()}
    if isinstance(value, Tensor):
        return value.clone()  # a view would save its whole storage
    if isinstance(value, Mapping):
        return {str(key): _to_plain(f"{name}.{key}", item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(f"{name}.{key}", item) for key, item in enumerate(value)]
    if value is None or isinstance(value, str | bytes | bool | int | float):
        return value
    raise ConfigError(
        must_be(
            f"replay: {name}",
            "tensors, strings or numbers to be saved",
            f"a {type(value).__name__}",
            "Call data.replay(epoch=, batch=) and save it yourself",
        )
    )


def _iter_arrays(name: str, plain: Any) -> Iterator[tuple[str, Any]]:
    """Yield pairs of dotted name and array for plain values."""
    if isinstance(plain, Tensor):
        tensor = plain.float() if plain.dtype == torch.bfloat16 else plain
        yield name, tensor.numpy()
    elif isinstance(plain, Mapping):
        for key, item in plain.items():
            yield from _iter_arrays(f"{name}.{key}" if name else key, item)
    elif isinstance(plain, list) and plain and isinstance(plain[0], bytes):
        yield f"{name}.bytes", np.frombuffer(b"".join(plain), dtype=np.uint8)
        yield f"{name}.lengths", np.array([len(item) for item in plain])
    elif isinstance(plain, list) and not all(isinstance(item, str) for item in plain):
        for key, item in enumerate(plain):
            yield from _iter_arrays(f"{name}.{key}", item)
    elif plain is not None:
        yield name, np.array(plain)
