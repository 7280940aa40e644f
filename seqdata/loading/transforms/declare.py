"""The declarations of a transform: whether it is columnar, how it changes lengths, its new axes.

A transform is an ordinary function; its declarations are attributes: ``lengths``, ``axes``,
``by_timestep``, and the mark of ``columnar``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, StopIterationGuard, must_be
from seqdata.protocols import Field

LengthMap = Callable[[NDArray[np.int64]], NDArray[np.int64]]
TransformT = TypeVar("TransformT", bound=Callable[..., Any])
_MARK = "seqdata_columnar"
_FLOAT_TOLERANCE = 1e-6  # rounding error of a bound that is computed with floats


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Ragged field of several sequences, for the input and result of a columnar transform.

    Attributes:
        values: Concatenated values of all sequences, (N, *shape).
        lengths: int64 (n,), number of timesteps of each sequence; their sum is N.

    Examples:
        >>> Ragged(np.arange(5.0), np.array([2, 3])).lengths.tolist()
        [2, 3]
    """

    values: NDArray[Any]
    lengths: NDArray[np.int64]


def columnar(transform: TransformT) -> TransformT:
    """Mark a transform of a whole batch: ``transform(columns, seeds) -> columns``.

    ``columns`` has a ``Ragged`` for each ragged field, an array (n, *shape) for each field of
    numbers per sequence, and a list for each field of ``str`` or ``bytes``. ``seeds`` is uint64
    (n,), one seed per sequence, independent of ranks and resumes. Like any transform, it keeps
    lengths, or declares the changed ones with ``.lengths``.

    Args:
        transform: A function, or another callable that can have attributes.

    Returns:
        The same callable, with the mark.

    Raises:
        ConfigError: If ``transform`` is not callable.

    Examples:
        >>> @columnar
        ... def halve(columns, seeds):
        ...     x = columns["x"]
        ...     return {**columns, "x": Ragged(x.values / 2, x.lengths)}
    """
    if not callable(transform):
        raise ConfigError(must_be("columnar: `transform`", "a function", repr(transform)))
    setattr(transform, _MARK, True)
    return transform


def is_columnar(transform: object) -> bool:
    """Return whether a transform is for whole batches."""
    return getattr(transform, _MARK, False) is True


def is_by_timestep(transform: object) -> bool:
    """Return whether each timestep of a result follows from that timestep alone.

    It is the attribute ``by_timestep`` of the transform, which must draw nothing at random.
    """
    return getattr(transform, "by_timestep", False) is True


def qualified_name(transform: object) -> str:
    """Return the qualified name of a function, or of a callable's type."""
    owner: Any = transform if isinstance(transform, type) else getattr(transform, "__func__", None)
    owner = owner or (transform if "__qualname__" in dir(transform) else type(transform))
    return f"{owner.__module__}.{owner.__qualname__}"


def check_transform(transform: object) -> None:
    """Raise if a transform cannot be called with two arguments.

    Raises:
        ConfigError: If it is not a function of a sequence and a random generator.
    """
    if not callable(transform):
        raise ConfigError(must_be("loader: `transform`", "a function", repr(transform)))
    try:
        inspect.signature(transform).bind(None, None)
    except TypeError as error:
        takes = "(columns, seeds)" if is_columnar(transform) else "(sequence, rng)"
        raise ConfigError(
            f"loader: `transform` must be a function of {takes}, but {qualified_name(transform)} "
            f"cannot be called with these ({error}). Give it these two arguments; a transform that "
            "draws nothing ignores the second"
        ) from error
    except ValueError:  # compiled functions may have no signature
        return


def bind_fields(transform: Any, fields: Mapping[str, Field]) -> Any:
    """Return a transform for a store: of its ``bind_fields(fields)``, if it has that method.

    Args:
        transform: The transform.
        fields: Name -> field, of the store whose sequences it will get.
    """
    bind = getattr(transform, "bind_fields", None)
    return transform if bind is None else bind(fields)


def get_declared_axes(transform: object) -> dict[str, str | None]:
    """Return the axes of a transform's new fields, from its attribute ``axes``: field -> axis.

    Raises:
        ConfigError: If the attribute is not a mapping.
    """
    axes = getattr(transform, "axes", None) or {}
    if not isinstance(axes, Mapping):
        raise ConfigError(
            must_be(
                f"transform {qualified_name(transform)}: `axes`",
                "a dict of field -> axis",
                repr(axes),
            )
        )
    return dict(axes)


def is_bounded(transform: object) -> bool:
    """Return whether a transform declares only bounds of its lengths, with ``max_length``.

    Raises:
        ConfigError: If it also has ``lengths``, or ``max_length`` is not a function.
    """
    max_length = getattr(transform, "max_length", None)
    if max_length is None or isinstance(transform, type):
        return False
    subject = f"transform {qualified_name(transform)}"
    if not callable(max_length):
        raise ConfigError(f"{subject}: `.max_length` must be a function, but is {max_length!r}.")
    if getattr(transform, "lengths", None) is not None:
        raise ConfigError(
            f"{subject}: must have `.lengths` or `.max_length`, but has both. Keep `.lengths` if "
            "lengths follow from the stored ones, else `.max_length`."
        )
    return True


def length_map_for(transform: object) -> LengthMap | None:
    """Return the function by which a transform changes lengths; None if it keeps them.

    The attribute ``lengths`` of the transform maps lengths; ``max_length`` maps them to bounds, if
    results have random lengths. The returned function raises ConfigError if the attribute does not
    return an integer from 0 for each length.

    Raises:
        ConfigError: If the attribute is not a function, or both exist.
    """
    subject, has_bound = f"transform {qualified_name(transform)}", is_bounded(transform)
    attribute = "max_length" if has_bound else "lengths"
    declared = getattr(transform, attribute, None)
    if declared is None:
        return None
    if not callable(declared):
        raise ConfigError(must_be(f"{subject}: `.lengths`", "a function", repr(declared)))

    def apply_checked(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        lengths = np.asarray(lengths, dtype=np.int64)
        with StopIterationGuard(f"{subject}: `.{attribute}`", declared):
            changed = np.asarray(declared(lengths.copy()))
        if has_bound and changed.dtype.kind == "f":  # for lengths * 1.1: the integer below it
            changed = np.floor(changed + _FLOAT_TOLERANCE).astype(np.int64)
        if changed.dtype.kind not in "iu" or changed.shape != lengths.shape:
            is_float = changed.dtype.kind == "f"
            remedy = "Divide with //" if is_float else "Return an integer for each length"
            raise ConfigError(
                f"{subject}: `.{attribute}` must return integers of shape {lengths.shape}, but "
                f"returned {changed.dtype} of shape {changed.shape}. {remedy}."
            )
        if changed.dtype.kind == "i" and len(changed) and changed.min() < 0:
            worst = int(changed.argmin())
            raise ConfigError(
                f"{subject}: `.{attribute}` must return at least 0, but returned {changed[worst]} "
                f"for length {lengths[worst]}. Use np.maximum."
            )
        return changed.astype(np.int64)

    return apply_checked
