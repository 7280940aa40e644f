"""The Python files of the repository, and what is in them."""

import ast
import gc
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MADE = ("/build/", "/docs/api/generated/", "/docs/examples/gallery/")  # the latter by `make docs`


def list_files(*rooms: str) -> list[Path]:
    found = [path for room in rooms for path in sorted((ROOT / room).rglob("*.py"))]
    return [path for path in found if not any(made in path.as_posix() for made in MADE)]


def list_library() -> list[Path]:
    """Return what users install: no tests, no examples."""
    return [
        path for path in list_files("seqdata", "models", "plugins") if "tests" not in path.parts
    ]


def walk(code: str) -> list[ast.AST]:
    """Return all nodes of a module, in no order."""
    gc.disable()  # looking for cycles, of which trees have none, takes most of the time
    try:
        found = [ast.parse(code)]
        for node in found:
            for value in vars(node).values():
                if isinstance(value, ast.AST):
                    found.append(value)
                elif isinstance(value, list):
                    found += [one for one in value if isinstance(one, ast.AST)]
        return found
    finally:
        gc.enable()
