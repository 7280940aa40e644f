"""Rules of style that ruff does not have: run by ``make lint``, which ends with what is found.

Files and functions are short; nothing that is caught is swallowed; a wait has a timeout, or its
line says ``# ends: why``; a tensor is made on a named device, in a named dtype, since users change
torch's defaults; no module imports itself.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.library_files import list_files, list_library, walk  # noqa: E402

ROOMS = ("seqdata", "models", "plugins", "examples", "benchmarks", "tests", ".ci", "docs")
MOST_LINES = 600  # of a file, and of a function below
MOST_LINES_OF_A_FUNCTION = 60


def main() -> None:
    """Print what breaks a rule."""
    library = set(list_library())
    found = [
        f"{path.relative_to(ROOT)}:{line}: {problem}"
        for path in list_files(*ROOMS)
        for line, problem in find_problems(
            path.read_text("utf-8"), path in library, get_module(path)
        )
    ]
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))


def get_module(path: Path) -> str:
    """Return the dotted path of a module, which ends with the name that it is imported by."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def count_docstring(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a docstring, which is no code: each argument adds to it."""
    first = function.body[0]
    if ast.get_docstring(function) is None:
        return 0
    return first.end_lineno - first.lineno + 1


def find_problems(code: str, is_library: bool, module: str = "") -> Iterator[tuple[int, str]]:
    """Yield line and problem of what breaks a rule in a module."""
    lines = code.splitlines()
    if len(lines) >= MOST_LINES:
        yield 1, f"a file must have less than {MOST_LINES} lines, but has {len(lines)}"
    for node in walk(code):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            count = node.end_lineno - node.lineno + 1 - count_docstring(node)
            if count >= MOST_LINES_OF_A_FUNCTION:
                most = f"must have less than {MOST_LINES_OF_A_FUNCTION} lines"
                yield node.lineno, f"{node.name} {most}, but has {count}"
        elif is_library and isinstance(node, ast.ExceptHandler) and swallows(node):
            yield node.lineno, "what is caught must be raised, or looked at, but is swallowed"
        elif is_library and isinstance(node, ast.Call) and (missing := lacks(node)):
            yield node.lineno, f"{ast.unparse(node)} must name its {missing}"
        elif is_library and isinstance(node, ast.ImportFrom) and imports(node, module):
            yield node.lineno, f"a module must not import itself, but does: {node.module}"
        elif (
            isinstance(node, ast.Call)
            and waits_for_ever(node)
            and "# ends: " not in lines[node.end_lineno - 1]
        ):
            yield node.lineno, f"{ast.unparse(node)} must have a timeout, or say `# ends: why`"


def imports(node: ast.ImportFrom, module: str) -> bool:
    """Return whether an import statement names a module by its path, or the end of it."""
    return bool(node.module) and module.endswith(node.module)


def swallows(handler: ast.ExceptHandler) -> bool:
    """Return whether everything is caught, and neither raised again nor even looked at."""
    if handler.type is None:
        return True
    names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    if not names & {"Exception", "BaseException"}:
        return False
    body = [node for statement in handler.body for node in ast.walk(statement)]
    used = any(isinstance(node, ast.Name) and node.id == handler.name for node in body)
    return not used and not any(isinstance(node, ast.Raise) for node in body)


FACTORIES = {
    "arange", "as_tensor", "asarray", "empty", "eye", "full", "linspace", "logspace", "ones",
    "rand", "randint", "randn", "randperm", "scalar_tensor", "tensor", "tril_indices",
    "triu_indices", "zeros",
}  # fmt: skip
KEEP_DTYPE = {"arange", "as_tensor", "asarray", "randperm"}  # of what they are given


def lacks(call: ast.Call) -> str:
    """Return which of device and dtype a call that makes a tensor leaves to torch's defaults."""
    name = ast.unparse(call.func)
    given = {keyword.arg for keyword in call.keywords}
    if None in given or not name.startswith("torch.") or name[6:] not in FACTORIES:
        return ""
    wanted = {"device"} if name[6:] in KEEP_DTYPE else {"device", "dtype"}
    return " and ".join(sorted(wanted - given))


WAITS = {"wait", "join", "get", "acquire", "result", "exception", "communicate"}
PROGRAMS = {"run", "call", "check_call", "check_output"}


def waits_for_ever(call: ast.Call) -> bool:
    """Return whether a call can block without end, as far as its spelling shows."""
    given = {keyword.arg for keyword in call.keywords}
    if "timeout" in given or None in given:
        return False
    if isinstance(call.func, ast.Name):
        return call.func.id == "wait" and len(call.args) < 2
    if not isinstance(call.func, ast.Attribute):
        return False
    name = call.func.attr
    if name not in WAITS | PROGRAMS | {"select", "put"}:
        return False
    owner = ast.unparse(call.func.value)
    if owner == "subprocess":
        return name in PROGRAMS
    if owner.split(".")[-1] in {"connection", "futures"} and name == "wait":
        return True
    if owner == "select" and name == "select":
        return len(call.args) < 4
    if name == "put" and "queue" in owner:
        return len(call.args) == 1 and not given & {"block"}
    if owner.isupper():
        return False  # a constant: a ContextVar, a table
    if name in WAITS and not call.args:
        return not given & {"block", "blocking"} or is_true(call)
    return name in {"get", "acquire"} and len(call.args) == 1 and constant(call.args[0]) is True


def is_true(call: ast.Call) -> bool:
    flags = [word.value for word in call.keywords if word.arg in {"block", "blocking"}]
    return any(constant(flag) is not False for flag in flags)


def constant(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None


if __name__ == "__main__":
    main()
