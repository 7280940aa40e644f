"""What worker processes of tests need, without torch: importing it takes longer than the tests."""

import ctypes
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


def slowly(sequence: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Take 20 ms."""
    time.sleep(0.02)
    return sequence


def stuck(sequence: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Stay in the sequence of tens."""
    if sequence["x"][0] == 10:
        Path(f"stuck-{os.getpid()}").touch()
        time.sleep(600)
    return sequence


def stuck_in_c(sequence: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Stay there in a library that keeps Python's lock."""
    if sequence["x"][0] == 10:
        Path(f"stuck-{os.getpid()}").touch()
        ctypes.PyDLL(None).sleep(600)
    return sequence


def noise(sequence: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Add random numbers."""
    return {"x": sequence["x"] + rng.normal(size=len(sequence["x"]))}


def one_more_with_torch(sequence: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Return one value, or two where the process has torch."""
    return {"x": np.zeros(1 + ("torch" in sys.modules))}


class Modules:
    """A Dataset that tells whether its process has torch."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"x": np.zeros(1), "torch": np.int64("torch" in sys.modules)}


class Counting:
    """A Dataset with a lock of multiprocessing, which only a process that is started may have."""

    def __init__(self) -> None:
        self.read = multiprocessing.get_context("spawn").Value("q", 0)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> dict[str, Any]:
        with self.read.get_lock():
            self.read.value += 1
        return {"x": np.zeros(1)}
