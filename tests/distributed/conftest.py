"""Ranks for tests: forked from one process that has imported everything."""

import contextlib
import json
import pickle
import select
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seqdata_testing.waiting import patient
from tests.preloaded import python

ROOT = Path(__file__).resolve().parents[2]


class Ranks:
    """Plays jobs in a forking process.

    Args:
        folder: Where each job gets a folder of its own.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._jobs = 0
        self._server = subprocess.Popen(
            [python(), "-m", "tests.distributed.pool"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def play(
        self,
        task: str,
        world: int,
        spec: dict[str, Any],
        *,
        ranks: dict[int, dict[str, Any]] | None = None,
        seconds: float = 60,
    ) -> list[Any]:
        """Return what each rank made of ``spec``; ``ranks`` changes it for single ones."""
        answer, folder, logs = self.ends(task, world, spec, ranks=ranks, seconds=seconds)
        ended = answer.get("exits", {})
        assert sorted(ended.items()) == [(str(rank), 0) for rank in range(world)], (
            f"{answer}\n{logs}"
        )
        return [
            pickle.loads((folder / f"made-{rank}.pickle").read_bytes()) for rank in range(world)
        ]

    def ends(
        self,
        task: str,
        world: int,
        spec: dict[str, Any],
        *,
        ranks: dict[int, dict[str, Any]] | None = None,
        seconds: float = 60,
        stopped: tuple[int, ...] = (),
    ) -> tuple[dict[str, Any], Path, str]:
        """Return how ranks ended and when, their folder and logs; ``stopped`` ones never end."""
        folder = self._folder / str(self._jobs)
        folder.mkdir()
        self._jobs += 1
        specs = [{"world": world, **spec, **(ranks or {}).get(rank, {})} for rank in range(world)]
        job = {
            "task": task,
            "world": world,
            "specs": specs,
            "seconds": seconds,
            "folder": str(folder),
            "stopped": stopped,
        }
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        readable, _, _ = select.select([self._server.stdout], [], [], patient(seconds + 60))
        answer = self._server.stdout.readline() if readable else "{}"
        logs = "\n".join(path.read_text() for path in sorted(folder.glob("log-*.txt")))
        return json.loads(answer or "{}"), folder, logs

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):  # it has ended already
            self._server.stdin.write("\n")
            self._server.stdin.close()
        try:
            self._server.wait(timeout=patient())
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait(timeout=patient())
        self._server.stdout.close()


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    made = Ranks(tmp_path_factory.mktemp("ranks"))
    yield made
    made.close()
