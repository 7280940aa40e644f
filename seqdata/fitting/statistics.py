"""Fitted statistics as one value: the transform, its inverse, its file, and its state."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from collections.abc import ItemsView, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from seqdata.errors import ConfigError, DecodeError
from seqdata.fitting.labels import FittedLabels
from seqdata.fitting.mean_std import FittedMeanStd
from seqdata.fitting.pictures import format_html, name_estimator
from seqdata.fitting.quantiles import FittedQuantiles
from seqdata.fitting.scales import FittedLog1p
from seqdata.fitting.vocabulary import FittedVocabulary
from seqdata.loading.transforms.declare import Ragged, columnar
from seqdata.logical_types import Categories, LogicalType
from seqdata.protocols import Field
from seqdata.storage.fields import make_unknown_name_error
from seqdata.storage.local_files import write_atomically
from seqdata.storage.writing.table_files import check_suffix

VERSION = 1
_PACKED = "zlib:"  # prefix of compressed content
_MAX_PLAIN = 4096  # most characters of content that is not compressed
_MAX_UNPACKED = 1 << 28  # most bytes of content

FittedField = FittedMeanStd | FittedQuantiles | FittedLabels | FittedVocabulary | FittedLog1p
_KINDS: Mapping[str, type[FittedField]] = {
    "mean_std": FittedMeanStd,
    "quantiles": FittedQuantiles,
    "labels": FittedLabels,
    "vocabulary": FittedVocabulary,
    "robust": FittedMeanStd,
    "log1p": FittedLog1p,
}


@dataclass(frozen=True)
class Statistics:
    """Fitted statistics of each field, by name; the result of ``fit``.

    The object consists of plain data, so that checkpoints, run files and other processes can use
    it.

    Args:
        content: Fitted values as JSON, compressed if it is long.
        digest: Digest of the uncompressed JSON, 32 hex digits; empty: it is computed. A digest of
            the compressed content, which earlier releases saved, is replaced.
        fitted_on: Identity of the fitted view, for ``seqdata doctor --leaks``: fingerprint, number
            of sequences and timesteps, and lowest hashes of ids.

    Raises:
        ConfigError: If the content does not match the digest, or has another version.

    Examples:
        >>> from seqdata import MeanStd, fit
        >>> stats = fit([[1.0, 3.0], [5.0]], {"x": MeanStd()})
        >>> stats.inverse()({"x": np.array([0.0, 1.0])})["x"].round(3).tolist()
        [3.0, 4.633]
    """

    content: str = field(compare=False)  # compression differs between machines
    digest: str = ""
    fitted_on: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        found = _digest(self._text)
        if self.digest not in ("", found, _digest(self.content)):
            raise ConfigError(
                f"statistics: the content must have the digest {self.digest!r}, but has {found!r}. "
                "It was damaged or edited: restore it, or fit again."
            )
        object.__setattr__(self, "digest", found)
        if self.plain.get("version") != VERSION:
            raise ConfigError(
                f"statistics: `version` must be {VERSION}, but is {self.plain.get('version')!r}. "
                "Read them with the release of seqdata that wrote them."
            )

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], fitted_on: Mapping[str, Any]) -> Statistics:
        """Return statistics with given values of ``plain`` and ``fitted_on``."""
        text = json.dumps(plain, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        if len(text) > _MAX_PLAIN:
            text = _PACKED + base64.b85encode(zlib.compress(text.encode(), 9)).decode()
        return cls(text, fitted_on=fitted_on)

    @cached_property
    def plain(self) -> dict[str, Any]:
        """Fitted values as plain data."""
        try:
            return dict(json.loads(self._text))
        except (ValueError, TypeError) as error:
            raise _make_damage_error(error) from error

    @property
    def _text(self) -> str:
        """Uncompressed content."""
        if not self.content.startswith(_PACKED):
            return self.content
        try:
            packed = base64.b85decode(self.content.removeprefix(_PACKED))
            return zlib.decompressobj().decompress(packed, _MAX_UNPACKED).decode()
        except (ValueError, zlib.error) as error:
            raise _make_damage_error(error) from error

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields, without cached values."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def __getitem__(self, name: str) -> FittedField:
        if name not in self._fitted:
            raise make_unknown_name_error("statistics", "field", name, self._fitted)
        return self._fitted[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fitted)

    def __len__(self) -> int:
        return len(self._fitted)

    def __contains__(self, name: object) -> bool:
        return name in self._fitted

    def items(self) -> ItemsView[str, FittedField]:
        """Return pairs of field and fitted statistics."""
        return self._fitted.items()

    def __repr__(self) -> str:
        kinds = (f"{name}: {name_estimator(fitted)}" for name, fitted in self._fitted.items())
        return f"Statistics({', '.join(kinds)}; {self.digest})"

    def _repr_html_(self) -> str:
        return format_html(f"Statistics {self.digest}", self._fitted)

    @cached_property
    def _fitted(self) -> dict[str, FittedField]:
        return {
            name: _KINDS[plain["kind"]](name, plain) for name, plain in self.plain["fields"].items()
        }

    def transform(self) -> StatisticsTransform:
        """Return a columnar transform that standardizes, clips and encodes fields."""
        return StatisticsTransform(self)

    def inverse(self) -> StatisticsInverse:
        """Return a function that converts predictions back to the unit of the data."""
        return StatisticsInverse(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a JSON file, completely or not at all.

        Raises:
            ConfigError: If the path has the suffix of another format.
            OSError: If the file cannot be written.
        """
        check_suffix("Statistics.save: the path", path, ".json")
        fitted_on = dict(self.fitted_on)
        plain = {"digest": self.digest, "fitted_on": fitted_on, "statistics": self.plain}
        text = json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False)
        write_atomically(Path(path), text.encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Statistics:
        """Read a JSON file that ``save`` wrote.

        Raises:
            ConfigError: If the file cannot be read, was not written by ``save`` of this version of
                the format, or was changed since.
        """
        try:
            saved = json.loads(Path(path).read_bytes())
            statistics = cls.from_plain(saved["statistics"], dict(saved["fitted_on"]))
            digest = saved["digest"]
        except OSError as error:
            raise ConfigError(
                f"{os.fspath(path)}: must be a readable file of Statistics.save, but cannot be "
                f"read ({error.strerror}). Correct the path or its permissions"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{os.fspath(path)}: must be a JSON file that Statistics.save wrote, but is not "
                f"({type(error).__name__}: {error}). Pass another, or fit again."
            ) from error
        return cls(statistics.content, digest, statistics.fitted_on)

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for a checkpoint, which ``torch.load(weights_only=True)`` reads."""
        fitted_on = dict(self.fitted_on)
        return {"content": self.content, "digest": self.digest, "fitted_on": fitted_on}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Statistics:
        """Return the statistics of a checkpoint.

        Raises:
            ConfigError: If the state is damaged, or has another version.
        """
        content, digest = state.get("content"), state.get("digest")
        if not isinstance(content, str) or not isinstance(digest, str):
            raise ConfigError(
                "statistics: the state must have the strings `content` and `digest`, but has "
                f"{', '.join(f'{k} ({type(v).__name__})' for k, v in state.items()) or 'nothing'}. "
                "Pass the value that `state_dict` returned."
            )
        return cls(content, digest, dict(state.get("fitted_on", {})))


@columnar
@dataclass(frozen=True)
class StatisticsTransform:
    """Applies statistics to the columns of a batch; made by ``Statistics.transform``.

    Fields that are not in the batch are skipped. Lengths do not change; token ids of strings run
    along the axes in ``axes``.

    Args:
        statistics: Fitted statistics.
        logical_types: Field of strings per timestep -> its vocabulary; see ``bind_fields``.
    """

    statistics: Statistics
    logical_types: Mapping[str, LogicalType] = field(default_factory=dict, hash=False)

    def bind_fields(self, fields: Mapping[str, Field]) -> StatisticsTransform:
        """Return the transform for a store with these fields, with their vocabularies."""
        found = {
            name: logical
            for name, each in fields.items()
            if name in self.statistics and isinstance(logical := each.logical, Categories)
        }
        return self if found == self.logical_types else StatisticsTransform(self.statistics, found)

    @property
    def axes(self) -> dict[str, str]:
        """Field -> the axis of its token ids, for fields of strings."""
        found = {}
        for name, fitted in self.statistics.items():
            if isinstance(fitted, FittedVocabulary) and fitted.axis is not None:
                found[name] = fitted.axis
        return found

    @property
    def by_timestep(self) -> bool:
        """Whether each timestep is changed by itself; token ids need the whole string."""
        return not self.axes

    def __call__(self, columns: dict[str, Any], seeds: Any) -> dict[str, Any]:
        """Return the columns, with the fitted fields transformed.

        Raises:
            DecodeError: If the estimator of a field does not allow a value, or the field by which
                it was fitted is missing.
            ConfigError: If strings were fitted, but the vocabulary of the column is not known.
        """
        del seeds
        changed = dict(columns)
        for name, fitted in self.statistics.items():
            if name not in columns:
                continue
            if fitted.by is not None and fitted.by not in columns:
                raise DecodeError.at(
                    f"statistics: field {name!r} needs {fitted.by!r}, by which it was fitted, but "
                    f"the batch only has {', '.join(columns)}. Add {fitted.by!r} to `fields`.",
                    field=name,
                )
            groups = None if fitted.by is None else columns[fitted.by]
            changed[name] = _apply(fitted, columns[name], groups, self.logical_types.get(name))
        return changed


@dataclass(frozen=True)
class StatisticsInverse:
    """Converts predictions back to the unit of the data; made by ``Statistics.inverse``.

    Args:
        statistics: Fitted statistics.
    """

    statistics: Statistics

    def __call__(self, predictions: Mapping[str, Any]) -> dict[str, Any]:
        """Return the predictions, with the fitted fields converted; others are unchanged.

        Args:
            predictions: Field -> array or tensor; with ``MeanStd(by=...)`` also the groups, as a
                batch has them: class indices if the statistics encode them.

        Raises:
            ConfigError: If groups are missing or cannot be decoded, values do not have the shape of
                their field, or an integer is not the index of a class or token.
            DecodeError: If a group was not fitted, unless ``unknown`` allows it.
        """
        found = dict(predictions)
        for name, fitted in self.statistics.items():
            if name in predictions:
                groups = None if fitted.by is None else predictions.get(fitted.by)
                if groups is not None and fitted.by in self.statistics:
                    groups = _decode_groups(name, self.statistics[str(fitted.by)], groups)
                found[name] = fitted.inverse(predictions[name], groups)
        return found


def _decode_groups(name: str, encoder: FittedField, groups: Any) -> Any:
    """Return the stored values of groups that a transform has encoded.

    Args:
        name: The field that was fitted by group.
        encoder: Fitted statistics of the grouping field.
        groups: The groups of a batch.

    Raises:
        ConfigError: If the encoding cannot be reversed.
    """
    if isinstance(encoder, FittedLabels):
        return encoder.decode_groups(groups)
    raise ConfigError(
        f"statistics: the inverse of {name!r} needs {encoder.name!r} as it was stored, or encoded "
        f"by Labels, but {name_estimator(encoder)} has changed it in a batch. Fit Labels of "
        f"{encoder.name!r}, or no statistics of it."
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _make_damage_error(error: Exception) -> ConfigError:
    return ConfigError(
        f"statistics: the content must be JSON that `fit` made, but is damaged ({error}). "
        "Restore it, or fit again."
    )


def _apply(fitted: FittedField, column: Any, groups: Any, logical: LogicalType | None) -> Any:
    options: dict[str, Any] = {}
    if isinstance(fitted, FittedLabels | FittedVocabulary):
        options["logical"] = logical
    if isinstance(column, Ragged):
        return Ragged(
            fitted.apply(column.values, column.lengths, groups, **options), column.lengths
        )
    ones = np.ones(len(column), dtype=np.int64)
    found = fitted.apply(column, ones, groups, **options)
    return Ragged(*found) if isinstance(found, tuple) else found
