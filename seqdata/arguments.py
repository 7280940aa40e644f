"""Checks of keyword arguments: options of backends, and names from other libraries."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeGuard

from seqdata.errors import ConfigError, did_you_mean

_P = ParamSpec("_P")
_STORE, _TRAIN = "pass it as the first argument, store", "pass it as train="
_BATCHING = "pass the policy that makes batches, such as batching=Bucketed(32)"
_SHUFFLE = "policies shuffle by themselves; batching=Bucketed(32, shuffle=True) says so"
_ARGUMENT_HINTS = {  # name in torch's DataLoader or other DataModules -> argument here -> advice
    "batch_size": {"batching": _BATCHING},
    "batch_sampler": {"batching": _BATCHING},
    "sampler": {"batching": "pass the policy that draws sequences, such as batching=Bucketed(32)"},
    "shuffle": {"batching": _SHUFFLE},
    "drop_last": {"tail": "pass tail='drop'"},
    "dataset": {"store": _STORE, "train": _TRAIN},
    "data_dir": {
        "store": "pass the location as the first argument, store",
        "train": "pass the location as train=, val=, test= or predict=",
    },
    "train_dataset": {"store": _STORE, "train": _TRAIN},
    "val_dataset": {"store": _STORE, "val": "pass it as val="},
    "prefetch_factor": {"prefetch": "pass prefetch="},
    "rank": {"world": "pass world=World(rank, size)"},
    "world_size": {"world": "pass world=World(rank, size)"},
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
                hints = _ARGUMENT_HINTS.get(name, {})
                advice = next((text for argument, text in hints.items() if argument in known), "")
                advice = advice or did_you_mean(name, known)
                where = f"{type(args[0]).__name__}()"
                raise TypeError(
                    f"{where} got an unexpected keyword argument {name!r}; "
                    f"{advice or 'it takes ' + ', '.join(list(known)[1:])}"
                )
        constructor(*args, **kwargs)

    return wrapper


def to_plain(value: Any) -> Any:
    """Return a Mapping as a dict, and a Sequence of another class, such as Hydra's, as a list.

    Their values are converted as well. Lists, tuples, strings and all other values are returned
    unchanged, with what they contain.

    Examples:
        >>> to_plain({"x": range(2), "y": "ab"})
        {'x': [0, 1], 'y': 'ab'}
    """
    if isinstance(value, Mapping):
        return {key: to_plain(each) for key, each in value.items()}
    is_other = not isinstance(value, str | bytes | bytearray | list | tuple)
    return [to_plain(each) for each in value] if is_sequence(value) and is_other else value


def is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    """Return whether a value is a Sequence other than a string or bytes."""
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
    for option, value in passed.items():
        if not takes_option(opener, option):
            raise ConfigError(
                f"{where}: backend {name!r} does not take `{option}`, but it is {value!r}. "
                "Leave it out."
            )
    return passed
