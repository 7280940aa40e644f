"""Answers, and what they were found on: as a file of JSON."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from bench_set.rows import Aim, Answer, Row
from bench_set.server import Server

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass
class Results:
    """Everything that the page shows.

    Args:
        quick: Whether data is small.
        answers: Question -> what was found.
        asked: Question -> date, seconds that it took, load before it.
        machine: What it ran on.
        versions: Distribution -> version.
        lacks: Loader -> what it does not do.
        not_installed: Module of ``peers`` -> why it could not start.
        left_out: Loader -> why it could not write.
        failed: Question -> its error.
        took: Seconds of the latest run.
    """

    quick: bool
    answers: dict[str, Answer] = field(default_factory=dict)
    asked: dict[str, dict[str, Any]] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    lacks: dict[str, str] = field(default_factory=dict)
    not_installed: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    took: float = 0.0

    @classmethod
    def load(cls, path: Path, quick: bool, fresh: bool) -> Results:
        """Read earlier answers, unless a fresh start is wanted."""
        found = cls(quick)
        if path.exists() and not fresh:
            known = json.loads(path.read_text("utf-8"))
            answers = {name: _answer(fields) for name, fields in known.pop("answers").items()}
            found = cls(**{**known, "quick": quick, "answers": answers, "not_installed": {}})
        return found

    def add(self, name: str, answer: Answer, seconds: float, load: float) -> None:
        """Add an answer, with when and beside what it was found."""
        self.answers[name] = answer
        now = datetime.now(UTC)
        self.asked[name] = {
            "date": now.isoformat(timespec="seconds"), "seconds": round(seconds, 1),
            "load_before": round(load, 1), "load_after": round(os.getloadavg()[0], 1),
        }  # fmt: skip

    def note_servers(self, servers: Mapping[str, Server]) -> None:
        """Note versions, and what each loader does not do."""
        for server in servers.values():
            self.versions |= server.versions
            if server.peer.lacks:
                self.lacks[server.peer.title] = server.peer.lacks

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", "utf-8")


def _answer(fields: dict[str, Any]) -> Answer:
    rows = [Row(**row) for row in fields.pop("rows")]
    aims = [Aim(**aim) for aim in fields.pop("aims")]
    return Answer(**fields, rows=rows, aims=aims)


def describe_machine() -> dict[str, Any]:
    """Return processor, cores, memory, load, versions, commit and date."""
    import torch

    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, timeout=20).stdout.strip()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit,
        "processor": f"{platform.machine()}, {names[0] if names else 'unknown'}",
        "cores": len(os.sched_getaffinity(0)), "memory_gib": round(pages / 2**30),
        "load": [round(load, 1) for load in os.getloadavg()],
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__,
        "lightning": version("lightning"),
    }  # fmt: skip
