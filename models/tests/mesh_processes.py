"""Start the processes of a mesh, each of which runs ``on_mesh.py``."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.preloaded import python

SCRIPT = Path(__file__).parent / "on_mesh.py"


def start(world: int, folder: Path, spec: dict[str, Any]) -> list[subprocess.Popen[str]]:
    return [
        subprocess.Popen(
            [python(), str(SCRIPT), str(rank), str(world), str(folder), json.dumps(spec)],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(world)
    ]
