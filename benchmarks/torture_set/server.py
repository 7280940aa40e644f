"""The other end of ``torture_child.py``: starts it in a library's environment and asks it."""

from __future__ import annotations

import itertools
import json
import os
import select
import subprocess
from pathlib import Path
from typing import Any

from torture_set.judge import Seen, read_record

HERE = Path(__file__).resolve().parent.parent
START = 180.0  # seconds that importing a library may take
MORE = 30.0  # seconds after a case's own time in which an answer must be there


class Missing(Exception):
    """A library that cannot run here."""


class Server:
    """A process that does the cases of one library.

    Args:
        python: Python of the environment that has it.
        reader: Module of ``readers``.
        root: A folder for its records and caches, and its home.
    """

    def __init__(self, python: Path, reader: str, root: Path) -> None:
        self._root = root
        self._numbers = itertools.count()
        root.mkdir(parents=True)
        (root / "tmp").mkdir()
        variables = {"HOME": str(root), "TMPDIR": str(root / "tmp"), "PYTHONWARNINGS": "ignore",
                "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONNOUSERSITE": "1",
                "DATA_OPTIMIZER_CACHE_FOLDER": str(root / "tmp" / "chunks")}  # fmt: skip
        with (root / "server.log").open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    [str(python), str(HERE / "torture_child.py"), reader],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                    env={**os.environ, **variables}, cwd=root,
                )  # fmt: skip
            except FileNotFoundError as error:
                raise Missing(f"no {error.filename}") from error
        self.versions: dict[str, str] = self._answer(START)["versions"]

    def run(
        self, act: str, *, seconds: float, marker: Path | None = None, **case: Any
    ) -> list[Seen]:
        """Do a case; gives what was seen of each of its processes."""
        number = next(self._numbers)
        record = self._root / f"case-{number:04d}"
        case = {"cache": str(self._root / f"cache-{number:04d}"), **case}
        if marker is not None:
            case["marker"] = str(marker)
        line = json.dumps({"act": act, "record": str(record), "seconds": seconds, **case})
        pipe = self._process.stdin
        if pipe is None:
            raise Missing("the process has no input")
        pipe.write(line.encode() + b"\n")
        pipe.flush()
        found = self._answer(seconds + MORE)
        return [
            read_record(Path(f"{record}.{rank}"), status=status, timed_out=late, marker=marker)
            for rank, (status, late) in enumerate(zip(found["status"], found["late"], strict=True))
        ]

    def close(self) -> None:
        self._process.kill()
        self._process.wait(timeout=10)

    def _answer(self, seconds: float) -> dict[str, Any]:
        pipe = self._process.stdout
        if pipe is None or not select.select([pipe], [], [], seconds)[0]:
            self.close()
            raise Missing(f"gave no answer in {seconds:.0f} s")
        line = pipe.readline()
        if not line:
            log_lines = (self._root / "server.log").read_text(errors="replace").strip().splitlines()
            raise Missing(log_lines[-1] if log_lines else "ended at once")
        answer: dict[str, Any] = json.loads(line)
        return answer
