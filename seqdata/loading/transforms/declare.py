"""What a transform says of itself: whether it is columnar, how it changes lengths, its new axes.

A transform is an ordinary function; what it says of itself are attributes of it: ``lengths``,
``axes``, and the mark of ``columnar``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError

LengthMap = Callable[[NDArray[np.int64]], NDArray[np.int64]]
TransformT = TypeVar("TransformT", bound=Callable[..., Any])
_MARK = "seqdata_columnar"
_FLOAT_TOLERANCE = 1e-6  # of a bound that is computed with floats


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """A ragged field of several sequences, as a columnar transform sees and gives it.

    Attributes:
        values: (N, *shape), sequence behind sequence.
        lengths: int64 (n,), timesteps of each sequence; N in all.

    Examples:
        >>> Ragged(np.arange(5.0), np.array([2, 3])).lengths.tolist()
        [2, 3]
    """

    values: NDArray[Any]
    lengths: NDArray[np.int64]


def columnar(transform: TransformT) -> TransformT:
    """Mark a transform of a whole batch: ``transform(columns, seeds) -> columns``.

    ``columns`` has a ``Ragged`` for each ragged field, an array (n, *shape) for numbers per
    sequence, and a list for ``str`` and ``bytes``. ``seeds`` is uint64 (n,), one per sequence: the
    same for any ranks and resumes. It keeps lengths, or has ``.lengths``, as any transform.

    Args:
        transform: A function, or another callable that can have attributes.

    Raises:
        ConfigError: If it is not callable.

    Examples:
        >>> @columnar
        ... def halve(columns, seeds):
        ...     x = columns["x"]
        ...     return {**columns, "x": Ragged(x.values / 2, x.lengths)}
    """
    if not callable(transform):
        raise ConfigError(f"columnar: `transform` is {transform!r}, must be a function")
    setattr(transform, _MARK, True)
    return transform


def is_columnar(transform: object) -> bool:
    """Return whether a transform is for whole batches."""
    return getattr(transform, _MARK, False) is True


def qualified_name(transform: object) -> str:
    """Return the qualified name of a function, or of what a callable is made by."""
    owner: Any = transform if isinstance(transform, type) else getattr(transform, "__func__", None)
    owner = owner or (transform if "__qualname__" in dir(transform) else type(transform))
    return f"{owner.__module__}.{owner.__qualname__}"


def check_transform(transform: object) -> None:
    """Raise if a transform cannot be called with two arguments.

    Raises:
        ConfigError: If it is not a function of a sequence and a random generator.
    """
    if not callable(transform):
        raise ConfigError(f"loader: `transform` is {transform!r}, must be a function")
    try:
        inspect.signature(transform).bind(None, None)
    except TypeError as error:
        takes = "(columns, seeds)" if is_columnar(transform) else "(sequence, rng)"
        raise ConfigError(
            f"loader: `transform` must be a function of {takes}, but {qualified_name(transform)} "
            "cannot "
            f"be called so ({error}). Add the second argument; a transform that draws nothing "
            "ignores it"
        ) from error
    except ValueError:  # compiled functions may have no signature
        return


def declared_axes(transform: object) -> dict[str, str | None]:
    """Return the axes of a transform's new fields, as its attribute ``axes`` says: field -> axis.

    Raises:
        ConfigError: If the attribute is no mapping.
    """
    axes = getattr(transform, "axes", None) or {}
    if not isinstance(axes, Mapping):
        raise ConfigError(
            f"transform {qualified_name(transform)}: `axes` is {axes!r}, must be a dict of field "
            "-> axis"
        )
    return dict(axes)


def is_bounded(transform: object) -> bool:
    """Return whether a transform says only what its lengths are at most, with ``max_length``.

    Raises:
        ConfigError: If it has ``lengths``, too, or ``max_length`` is not a function.
    """
    max_length = getattr(transform, "max_length", None)
    if max_length is None or isinstance(transform, type):
        return False
    subject = f"transform {qualified_name(transform)}"
    if not callable(max_length):
        raise ConfigError(f"{subject}: `.max_length` must be a function, but is {max_length!r}.")
    if getattr(transform, "lengths", None) is not None:
        raise ConfigError(
            f"{subject}: must have `.lengths` or `.max_length`, but has both. Keep `.lengths` "
            "if lengths follow from those that are stored, else `.max_length`."
        )
    return True


def length_map_for(transform: object) -> LengthMap | None:
    """Return how a transform changes lengths; None: it keeps them.

    Its attribute ``lengths`` says what they become; ``max_length`` what they are at most, where
    they are random. What is returned refuses, when called, results that are no lengths.

    Raises:
        ConfigError: If the attribute is not a function, or both are there.
    """
    subject, has_bound = f"transform {qualified_name(transform)}", is_bounded(transform)
    declared = getattr(transform, "max_length" if has_bound else "lengths", None)
    if declared is None:
        return None
    if not callable(declared):
        raise ConfigError(f"{subject}: `.lengths` is {declared!r}, must be a function")

    def apply_checked(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        lengths = np.asarray(lengths, dtype=np.int64)
        changed = np.asarray(declared(lengths.copy()))
        if (
            has_bound and changed.dtype.kind == "f"
        ):  # lengths * 1.1: a length is the integer below it
            changed = np.floor(changed + _FLOAT_TOLERANCE).astype(np.int64)
        if changed.dtype.kind not in "iu" or changed.shape != lengths.shape:
            raise ConfigError(
                f"{subject}: `.lengths` gave {changed.dtype} of shape {changed.shape}, must give "
                "integers "
                f"of {lengths.shape}; divide with //"
            )
        if changed.dtype.kind == "i" and len(changed) and changed.min() < 0:
            worst = int(changed.argmin())
            raise ConfigError(
                f"{subject}: `.lengths` gave {changed[worst]} for length {lengths[worst]}, must "
                "be at least "
                "0; use np.maximum"
            )
        return changed.astype(np.int64)

    return apply_checked
