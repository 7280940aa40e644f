"""A batch as figures and as plain tensors, for ``seqdata replay``.

Place in the flow: a batch -> plain data, a file. Imports torch: commands import it when they run.
"""

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
from seqdata.errors import ConfigError
from seqdata.protocols import Store
from seqdata.storage.writing.staging_dir import write_whole

_PARTS = ("lengths", "ids", "weight", "start", "lanes", "reset", "burn_in", "segments")
_NUMBERS = (
    "epoch", "number", "num_tokens", "global_num_tokens", "update_num_tokens", "loss_scale",
    "sequence_scale",
)  # fmt: skip
_MOST_TEXT = 40  # characters of a text that are shown


def batch_figures(batch: SequenceBatch, store: Store) -> dict[str, Any]:
    """Give what is known of a batch, as plain data."""
    rows, width = len(batch), batch.padded_length
    real = int(batch.lengths.sum())
    padded = rows * width
    return {
        **{name: getattr(batch, name) for name in _NUMBERS},
        "rows": rows,
        "filler": int((batch.weight == 0).sum()),
        "longest": width,
        "timesteps": real,
        "padded": padded,
        "padding": 1 - real / padded if padded else 0.0,
        "sequences": list(_sequences(batch, store)),
        "fields": {
            name: one
            for field, value in batch.data.items()
            for name, one in _figures(field, _real(batch, field, value), value)
        },
    }


def save_batch(batch: SequenceBatch, store: Store, path: Path) -> None:
    """Write a batch as plain tensors and dicts (``.pt``), or as arrays (``.npz``).

    Raises:
        ConfigError: If the ending is another, or a field is no tensor, text or list of them.
        OSError: If it cannot be written.
    """
    plain = {
        "data": {name: _plain(name, value) for name, value in batch.data.items()},
        **{name: _plain(name, getattr(batch, name)) for name in _PARTS if _has(batch, name)},
        **{name: getattr(batch, name) for name in _NUMBERS},
        "keys": _keys(store, batch.ids.tolist()),
    }
    content = io.BytesIO()
    if path.suffix in (".pt", ".pth"):
        torch.save(plain, content)
    elif path.suffix == ".npz":
        arrays: Any = dict(_arrays("", plain))
        np.savez(content, **arrays)
    else:
        raise ConfigError(
            f"replay: `--save` is {str(path)!r}, must end in .pt (tensors) or .npz (arrays); name "
            "it so"
        )
    write_whole(path, content.getvalue())


def _has(batch: SequenceBatch, name: str) -> bool:
    return getattr(batch, name) is not None


def _sequences(batch: SequenceBatch, store: Store) -> Iterator[dict[str, Any]]:
    """Give each span with its row; a row holds several where documents are packed."""
    weights = batch.weight.tolist()
    if batch.segments is None:
        rows = range(len(batch))
        starts, lengths = batch.start.tolist(), batch.lengths.tolist()
        spans = list(zip(rows, batch.ids.tolist(), starts, lengths, strict=True))
    else:
        spans = [
            (row, id_, start, stop - start) for row, id_, start, stop in batch.segments.tolist()
        ]
    keys = _keys(store, [id_ for _, id_, _, _ in spans])
    for (row, id_, start, length), key in zip(spans, keys, strict=True):
        made = {"row": row, "id": id_, "key": key, "start": start, "length": length}
        made["weight"] = weights[row]
        if batch.lanes is not None and batch.reset is not None:
            made |= {"lane": int(batch.lanes[row]), "reset": bool(batch.reset[row])}
        yield made


def _keys(store: Store, ids: Sequence[int]) -> list[str]:
    """Name sequences; an empty row has none."""
    known = iter(store.keys([id_ for id_ in ids if id_ >= 0]))
    return [next(known) if id_ >= 0 else "" for id_ in ids]


def _real(batch: SequenceBatch, name: str, value: Any) -> Any:
    """Give a field without its padding, where it is known to have some."""
    axis = batch.axes.along(name)
    if not isinstance(value, Tensor) or batch.layout != "padded" or axis is None:
        return value
    lengths, width = batch.extent(axis)
    if value.is_nested or value.shape[:2] != (len(batch), width):
        return value
    return value[torch.arange(width) < lengths[:, None]]


def _figures(name: str, value: Any, whole: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give the figures of a value, or of all that it holds."""
    if isinstance(value, PackedSequence):
        yield name, _tensor_figures(value.data, whole.data.shape)
    elif isinstance(value, Tensor) and value.is_nested:
        yield name, _tensor_figures(value.values(), value.values().shape)
    elif isinstance(value, Tensor):
        yield name, _tensor_figures(value, whole.shape)
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _figures(f"{name}.{key}", one, one)
    elif isinstance(value, list | tuple) and not all(isinstance(one, str | bytes) for one in value):
        for key, one in enumerate(value):
            yield from _figures(f"{name}.{key}", one, one)
    elif isinstance(value, list | tuple):
        first = value[0] if value else ""
        kind = type(first).__name__
        yield name, {"dtype": kind, "shape": [len(value)], "first": str(first[:_MOST_TEXT])}
    else:
        yield name, {"dtype": type(value).__name__, "first": repr(value)[:_MOST_TEXT]}


def _tensor_figures(values: Tensor, shape: Sequence[int]) -> dict[str, Any]:
    made: dict[str, Any] = {"dtype": str(values.dtype).removeprefix("torch."), "shape": [*shape]}
    if values.is_complex():
        return {**made, "nan": int(values.isnan().sum()), "inf": int(values.isinf().sum())}
    if values.dtype.is_floating_point:
        good = values[values.isfinite()].double()
        made |= {"nan": int(values.isnan().sum()), "inf": int(values.isinf().sum())}
    else:
        good = values.long() if values.dtype == torch.bool else values
        made |= {"nan": 0, "inf": 0}
    if good.numel():
        mean = float(good.double().mean())
        made |= {"min": good.min().item(), "max": good.max().item(), "mean": mean}
    return made


def _plain(name: str, value: Any) -> Any:
    """Give a value as tensors of their own memory, texts, numbers, lists and dicts."""
    if isinstance(value, PackedSequence):
        return {key: _plain(name, one) for key, one in value._asdict().items() if one is not None}
    if isinstance(value, Tensor) and value.is_nested:
        nested: Any = value
        return {"values": nested.values().clone(), "offsets": nested.offsets().clone()}
    if isinstance(value, Tensor):
        return value.clone()  # a view would bring all the memory that it is a view of
    if isinstance(value, Mapping):
        return {str(key): _plain(f"{name}.{key}", one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(f"{name}.{key}", one) for key, one in enumerate(value)]
    if value is None or isinstance(value, str | bytes | bool | int | float):
        return value
    raise ConfigError(
        f"replay: {name} is a {type(value).__name__}, must be tensors, texts or numbers to be "
        "saved; call data.replay(epoch=, batch=) and save it yourself"
    )


def _arrays(name: str, plain: Any) -> Iterator[tuple[str, Any]]:
    """Give plain values as arrays by dotted name."""
    if isinstance(plain, Tensor):
        made = plain.float() if plain.dtype == torch.bfloat16 else plain
        yield name, made.numpy()
    elif isinstance(plain, Mapping):
        for key, one in plain.items():
            yield from _arrays(f"{name}.{key}" if name else key, one)
    elif isinstance(plain, list) and plain and isinstance(plain[0], bytes):
        yield f"{name}.bytes", np.frombuffer(b"".join(plain), dtype=np.uint8)
        yield f"{name}.lengths", np.array([len(one) for one in plain])
    elif isinstance(plain, list) and not all(isinstance(one, str) for one in plain):
        for key, one in enumerate(plain):
            yield from _arrays(f"{name}.{key}", one)
    elif plain is not None:
        yield name, np.array(plain)
