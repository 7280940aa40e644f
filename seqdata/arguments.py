"""Checks of keyword arguments: options of backends, and names from other libraries."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeGuard

from seqdata.errors import ConfigError, did_you_mean

_P = ParamSpec("_P")
_ARGUMENT_HINTS = {  # names of torch's DataLoader and of other DataModules
    "batch_size": "pass the policy that makes batches, such as batching=Bucketed(32)",
    "batch_sampler": "pass the policy that makes batches, such as batching=Bucketed(32)",
    "sampler": "pass the policy that draws sequences, such as batching=Bucketed(32)",
    "shuffle": "policies shuffle by themselves; batching=Bucketed(32, shuffle=True) says so",
    "drop_last": "pass tail='drop'",
    "dataset": "pass it as the first argument of Loader, or as train= of SequenceDataModule",
    "data_dir": "pass the location as train=, val=, test= or predict=",
    "train_dataset": "pass it as train=",
    "val_dataset": "pass it as val=",
    "prefetch_factor": "pass prefetch=",
    "rank": "pass world=World(rank, size)",
    "world_size": "pass world=World(rank, size)",
}


def check_arguments(constructor: Callable[_P, None]) -> Callable[_P, None]:
    """Return a constructor that suggests the right argument if an unknown one is passed.

    Raises:
        TypeError: As Python does, if an argument is unknown.
    """
    known = inspect.signature(constructor).parameters

    @functools.wraps(constructor)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> None:
        for name in kwargs:
            if name not in known:
                advice = _ARGUMENT_HINTS.get(name) or did_you_mean(name, known)
                where = f"{type(args[0]).__name__}()"
                raise TypeError(
                    f"{where} got an unexpected keyword argument {name!r}; "
                    f"{advice or 'it takes ' + ', '.join(list(known)[1:])}"
                )
        constructor(*args, **kwargs)

    return wrapper


def to_plain(value: Any) -> Any:
    """Return a Mapping or Sequence of any class, such as Hydra's, as a dict or list.

    Strings, lists, tuples and all other values are returned as they are, but for values of dicts.

    Examples:
        >>> to_plain({"x": range(2), "y": "ab"})
        {'x': [0, 1], 'y': 'ab'}
    """
    if isinstance(value, Mapping):
        return {key: to_plain(each) for key, each in value.items()}
    is_other = not isinstance(value, str | bytes | bytearray | list | tuple)
    return [to_plain(each) for each in value] if is_sequence(value) and is_other else value


def is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    """Return whether a value is a list, or anything like one, and not a string."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def takes_option(opener: Callable[..., Any], option: str) -> bool:
    """Return whether a function takes a keyword argument; True if it has no signature."""
    try:
        parameters = inspect.signature(opener).parameters.values()
    except ValueError:  # written in C, without a signature
        return True
    any_option = inspect.Parameter.VAR_KEYWORD
    return any(each.name == option or each.kind is any_option for each in parameters)


def select_options(
    where: str, opener: Callable[..., Any], name: object, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options that are not None, if the backend takes them.

    Raises:
        ConfigError: If the backend does not take one of them.
    """
    passed = {option: value for option, value in options.items() if value is not None}
    parameters = inspect.signature(opener).parameters if passed else {}
    for option, value in passed.items():
        if option not in parameters:
            raise ConfigError(
                f"{where}: backend {name!r} does not take `{option}`, but it is {value!r}. "
                "Leave it out."
            )
    return passed
