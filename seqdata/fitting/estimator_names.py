"""Estimators as YAML names them: ``MeanStd``, or ``class_path`` and ``init_args``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from seqdata.errors import ConfigError, advise_on_copy, did_you_mean, must_be
from seqdata.fitting.labels import Labels
from seqdata.fitting.mean_std import MeanStd
from seqdata.fitting.quantiles import Quantiles
from seqdata.fitting.scales import Log1p, Robust
from seqdata.fitting.vocabulary import Vocabulary

_CLASSES = (MeanStd, Robust, Log1p, Quantiles, Labels, Vocabulary)
ESTIMATORS: dict[str, Any] = {each.__name__: each for each in _CLASSES}
"""Name -> class of an estimator."""
ESTIMATORS |= {"standard": MeanStd, "robust": Robust, "log1p": Log1p}


def resolve_estimators(statistics: Any) -> Any:
    """Return field -> estimator, made from names and class paths; other values are unchanged.

    Args:
        statistics: Field -> an estimator, its name, or a mapping of ``class_path`` and
            ``init_args``; fitted statistics; or a function.

    Raises:
        ConfigError: If there is no such estimator, or its arguments are invalid.
    """
    if not isinstance(statistics, Mapping):
        return statistics
    return {name: _resolve(str(name), each) for name, each in statistics.items()}


def _resolve(field: str, value: Any) -> Any:
    if isinstance(value, str):
        value = {"class_path": value}
    plain = vars(value) if type(value).__name__ == "Namespace" else value
    if not isinstance(plain, Mapping):
        return value
    where = f"datamodule: the estimator of {field!r} in `statistics`"
    path = plain.get("class_path")
    arguments = plain.get("init_args") or {}
    arguments = dict(arguments if isinstance(arguments, Mapping) else vars(arguments))
    if not isinstance(path, str):
        needed, found = "a name, or class_path and init_args", f"{plain!r:.200}"
        raise ConfigError(must_be(where, needed, found, advise_on_copy(plain)))
    factory = _find(where, path)
    levels = arguments.pop("levels", ()) if factory is Quantiles else ()
    try:
        return factory(*levels, **arguments)
    except TypeError as error:
        raise ConfigError(f"{where}: {path} does not take the given arguments ({error})") from error


def _find(where: str, path: str) -> Any:
    module, _, name = path.rpartition(".")
    if not module or module == "seqdata":
        if name not in ESTIMATORS:
            hint = did_you_mean(name, ESTIMATORS)
            needed = f"one of {', '.join(ESTIMATORS)}, or an import path"
            raise ConfigError(must_be(where, needed, repr(path), hint))
        return ESTIMATORS[name]
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{where}: {path!r} cannot be imported ({error})") from error
