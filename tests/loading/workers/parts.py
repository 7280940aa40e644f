"""Transforms, Datasets and loaders that the tests of worker processes share."""

import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqdata import Fixed, Loader
from seqdata.errors import DecodeError, RemoteReadError
from seqdata.storage.memory import MemoryStore
from tests.batch.batches import are_alike

ITEMS = 60
BEFORE = 8  # batches of four before the one with sequence 33
ACTS = "acts"  # a file in the folder of a test, which is there as soon as an ``At`` acts
STORE = MemoryStore.from_sequences(
    [
        {"id": f"s{number}", "x": np.arange(number % 7 + 1, dtype=np.float32) + 100 * number}
        for number in range(ITEMS)
    ]
)


def loader(transform: Any = None, *, store: Any = STORE, **options: Any) -> Loader:
    """Return a loader with one worker over numbered sequences, four in a batch, in their order."""
    options = {"num_workers": 1, "start_method": "fork", **options}
    policy = options.pop("policy", Fixed(4, shuffle=False))
    return Loader(store, policy, transform=transform, **options)


@contextmanager
def playing(transform: Any = None, **options: Any) -> Any:
    """Yield such a loader, and shut it down in the end."""
    made = loader(transform, **options)
    try:
        yield made
    finally:
        made.shutdown()


def play_until_error(
    transform: Any, error: type[Exception], *, match: str | None = None, **options: Any
) -> tuple[list[Any], Exception]:
    """Play until it fails; return the batches that came before, and the error."""
    came: list[Any] = []
    with playing(transform, **options) as mine, pytest.raises(error, match=match) as caught:
        came.extend(mine)
    return came, caught.value


def same(one: Any, other: Any) -> bool:
    """Return whether two iterables give the same batches, bit by bit."""
    pairs = zip(one, other, strict=True)
    return all(are_alike(left.__getstate__(), right.__getstate__()) for left, right in pairs)


def lives(pid: int) -> bool:
    """Return whether a process is there and no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def descriptors() -> int:
    """Count the open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


class Heard(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@dataclass(frozen=True)
class At:
    """A transform that does something at one sequence, and changes nothing."""

    act: Callable[[], Any]
    number: int = 33

    def __call__(self, sequence: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        if sequence["id"] == f"s{self.number}":
            Path(ACTS).touch()
            self.act()
        return sequence


@dataclass(frozen=True)
class Slowly:
    """A transform that takes its time, and changes nothing."""

    seconds: float = 0.02

    def __call__(self, sequence: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        time.sleep(self.seconds)
        return sequence


def noisy(sequence: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Add random numbers, and fields of other dtypes."""
    x = sequence["x"] + rng.normal(size=len(sequence["x"])).astype(np.float32)
    return {
        "x": x,
        "half": x.astype(np.float16),
        "even": np.arange(len(x)) % 2 == 0,
        "y": np.int32(len(x)),
        "text": f"{len(x)} of them",
    }


class Twice:
    """A transform that gives every timestep twice."""

    @staticmethod
    def lengths(lengths: np.ndarray) -> np.ndarray:
        return lengths * 2

    def __call__(self, sequence: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"x": np.repeat(sequence["x"], 2) + rng.random(dtype=np.float32)}


class TwiceByLambda(Twice):
    """The same, whose law of lengths is no function of a module."""

    def __init__(self) -> None:
        self.lengths = lambda lengths: lengths * 2

    def __reduce__(self) -> Any:
        return TwiceByLambda, ()


def words(sequence: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Return as many timesteps as nobody can know without running it."""
    count = int(sequence["x"].sum()) % 9 + 1
    return {"x": np.arange(count) + rng.integers(0, 100)}


class Custom(Exception):
    """An exception that has more than a text."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text, code)
        self.code = code


class Stubborn(Exception):
    """An exception that cannot be made again from what it was pickled as."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} {other}")


def fails() -> None:
    raise Custom("told to fail", 7)


def fails_stubbornly() -> None:
    raise Stubborn("cannot", "travel")


def fails_as_ours() -> None:
    error = DecodeError.at("field 'x' is odd", field="x", offset=12)
    error.add_note("a note of the user")
    raise error


def leaves() -> None:
    sys.exit(3)


def leaves_at_once() -> None:
    os._exit(4)


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1)


def crashes() -> None:
    ctypes.string_at(0)


def is_stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(1)


def hangs() -> None:
    time.sleep(600)


def _refused() -> Any:
    raise ValueError("does not want to be made again")


def _unanswered() -> Any:
    raise RemoteReadError("no answer").with_details(attempts=7)


class Unreachable:
    """A transform that a worker cannot have, since a server does not answer."""

    def __reduce__(self) -> Any:
        return _unanswered, ()

    def __call__(self, sequence: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return sequence


class Unmakeable:
    """A transform that pickles, and does not unpickle."""

    def __reduce__(self) -> Any:
        return _refused, ()

    def __call__(self, sequence: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return sequence


class Squares:
    """A map-style Dataset that draws from the global generators."""

    def __init__(self, *, random: bool | str = False) -> None:
        self.random = random

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        values = np.arange(number % 5 + 1, dtype=np.float64) ** 2
        if self.random == "torch":
            values = sys.modules["torch"].rand(len(values), dtype=sys.modules["torch"].float64)
            values = values.numpy()
        elif self.random:
            values = np.random.random(len(values))
        return {"x": values, "worker": np.int64(os.getpid())}


SQUARES_LENGTHS = [number % 5 + 1 for number in range(ITEMS)]
