"""What a transform says of itself: whether it is columnar, how it changes lengths, its new axes.

A transform is an ordinary function; what it says of itself are attributes of it: ``lengths``,
``axes``, and the mark of ``columnar``. Place in the flow: below loading and measuring. Reads:
attributes. Makes: checked values.
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
Marked = TypeVar("Marked", bound=Callable[..., Any])
_MARK = "seqdata_columnar"
_ROUNDING = 1e-6  # of a bound that is computed with floats


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


def columnar(transform: Marked) -> Marked:
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
    """Tell whether a transform is for whole batches."""
    return getattr(transform, _MARK, False) is True


def name_of(transform: object) -> str:
    """Give the qualified name of a function, or of what a callable is made by."""
    named: Any = transform if isinstance(transform, type) else getattr(transform, "__func__", None)
    named = named or (transform if "__qualname__" in dir(transform) else type(transform))
    return f"{named.__module__}.{named.__qualname__}"


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
            f"loader: `transform` must be a function of {takes}, but {name_of(transform)} cannot "
            f"be called so ({error}). Add the second argument; a transform that draws nothing "
            "ignores it"
        ) from error
    except ValueError:  # compiled functions may have no signature
        return


def axes_of(transform: object) -> dict[str, str | None]:
    """Give the axes of a transform's new fields, as its attribute ``axes`` says: field -> axis.

    Raises:
        ConfigError: If the attribute is no mapping.
    """
    axes = getattr(transform, "axes", None) or {}
    if not isinstance(axes, Mapping):
        raise ConfigError(
            f"transform {name_of(transform)}: `axes` is {axes!r}, must be a dict of field -> axis"
        )
    return dict(axes)


def is_bounded(transform: object) -> bool:
    """Return whether a transform says only what its lengths are at most, with ``max_length``.

    Raises:
        ConfigError: If it has ``lengths``, too, or ``max_length`` is not a function.
    """
    bound = getattr(transform, "max_length", None)
    if bound is None or isinstance(transform, type):
        return False
    where = f"transform {name_of(transform)}"
    if not callable(bound):
        raise ConfigError(f"{where}: `.max_length` must be a function, but is {bound!r}.")
    if getattr(transform, "lengths", None) is not None:
        raise ConfigError(
            f"{where}: must have `.lengths` or `.max_length`, but has both. Keep `.lengths` "
            "if lengths follow from those that are stored, else `.max_length`."
        )
    return True


def lengths_of(transform: object) -> LengthMap | None:
    """Return how a transform changes lengths; None: it keeps them.

    Its attribute ``lengths`` says what they become; ``max_length`` what they are at most, where
    they are random. What is returned refuses, when called, results that are no lengths.

    Raises:
        ConfigError: If the attribute is not a function, or both are there.
    """
    where, bounded = f"transform {name_of(transform)}", is_bounded(transform)
    change = getattr(transform, "max_length" if bounded else "lengths", None)
    if change is None:
        return None
    if not callable(change):
        raise ConfigError(f"{where}: `.lengths` is {change!r}, must be a function")

    def checked(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        lengths = np.asarray(lengths, dtype=np.int64)
        made = np.asarray(change(lengths.copy()))
        if bounded and made.dtype.kind == "f":  # lengths * 1.1: a length is the integer below it
            made = np.floor(made + _ROUNDING).astype(np.int64)
        if made.dtype.kind not in "iu" or made.shape != lengths.shape:
            raise ConfigError(
                f"{where}: `.lengths` gave {made.dtype} of shape {made.shape}, must give integers "
                f"of {lengths.shape}; divide with //"
            )
        if made.dtype.kind == "i" and len(made) and made.min() < 0:
            at = int(made.argmin())
            raise ConfigError(
                f"{where}: `.lengths` gave {made[at]} for length {lengths[at]}, must be at least "
                "0; use np.maximum"
            )
        return made.astype(np.int64)

    return checked
