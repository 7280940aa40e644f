"""Print how easy the house is to live in: `make house`.

Each line counts one thing that a newcomer meets: lines, modules, names, what a batch goes through.
Next to it are the count before the house was made leaner (at cc13209d) and the aim. Counts of calls
are of ``sys.setprofile`` and do not depend on the machine. With ``--list``, what is counted is
named: the files that a batch and ``open_store`` enter, the iterators, the modules with one
importer, and those without a mirrored test.
"""

import ast
import io
import re
import sys
import tempfile
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import seqdata.backends  # noqa: E402
from seqdata import TBPTT, Fixed, Loader, open_store, write_store  # noqa: E402
from tests.flow import count_calls, find_iterators, follow, later_batch  # noqa: E402

PLUGINS = [path for path in sorted((ROOT / "plugins").glob("*/seqdata_*")) if path.is_dir()]
GLOSSARY = ROOT / "docs/about/glossary.md"
TEST_OF_FRONT = ROOT / "tests/test_public_api.py"  # of what `import seqdata` shows
SHORT = 120  # lines of a module that should be in its only importer
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER, tokenize.ENCODING,
}  # fmt: skip


def list_modules(*folders: Path) -> list[Path]:
    """Return the modules below folders."""
    return [path for folder in folders for path in sorted(folder.rglob("*.py"))]


def count_lines(paths: Iterable[Path]) -> int:
    """Return the number of lines of files."""
    return sum(len(path.read_text("utf-8").splitlines()) for path in paths)


def count_code(path: Path) -> int:
    """Return the number of lines with code: not blank, no comment, no docstring."""
    text = path.read_text("utf-8")
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines.difference_update(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def find_imports(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Return the import statements of a module."""
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def find_imported(path: Path) -> set[str]:
    """Return the names of modules that a module imports, and of what may be one."""
    found = set()
    for node in find_imports(path):
        found.update(alias.name for alias in node.names if isinstance(node, ast.Import))
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def find_imported_once(core: list[Path]) -> dict[Path, str]:
    """Return the modules of the core that exactly one other imports -> that one."""
    importers: dict[str, set[str]] = {}
    for path in [*core, *list_modules(*PLUGINS, ROOT / "models")]:
        for name in find_imported(path):
            importers.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in core}
    return {
        path: next(iter(importers[name]))
        for path, name in names.items()
        if path.stem != "__init__" and len(importers.get(name, ())) == 1
    }


def find_without_mirrored_test(core: list[Path]) -> list[str]:
    """Return the modules with several functions that have no test at their path."""
    found = []
    for path in core:
        module = path.parent if path.stem == "__init__" else path  # a package has tests next to it
        folder = ROOT / "tests" / module.relative_to(ROOT / "seqdata").parent
        tests = [*folder.glob(f"test_{module.stem}.py"), *folder.glob(f"test_{module.stem}_*.py")]
        if path == ROOT / "seqdata/__init__.py":
            tests = [TEST_OF_FRONT] if TEST_OF_FRONT.is_file() else []
        nodes = ast.walk(ast.parse(path.read_text("utf-8")))
        if not tests and sum(map(does_something, nodes)) > 1:
            found.append(str(path.relative_to(ROOT)))
    return found


def does_something(node: ast.AST) -> bool:
    """Return whether a node is a function, and not only declared by an interface (``...``)."""
    if not isinstance(node, FUNCTIONS):
        return False
    last = node.body[-1]
    return not (isinstance(last, ast.Expr) and ast.unparse(last) == "...")


def count_terms() -> int:
    """Return the number of words that the glossary explains."""
    rows = re.findall(r"^\| ([^|]+) \|", GLOSSARY.read_text("utf-8"), re.MULTILINE)
    return sum(len(row.split(", ")) for row in rows if row not in ("word", "---"))


def make_rows(count: int = 400) -> Iterator[dict[str, object]]:
    """Yield short sequences."""
    rng = np.random.default_rng(0)
    for number in range(count):
        length = rng.integers(5, 50)
        yield {"x": rng.normal(size=(length, 4)).astype("f4"), "y": number % 3}


def count_batch_calls(folder: str) -> list[str]:
    """Return the calls in Python and in C of a later batch: of short rows, and of lanes."""
    write_store(f"{folder}/fixed", ({"x": row["x"]} for row in make_rows(2_000)))
    write_store(f"{folder}/lanes", [{"x": np.arange(64 * 512 * 40)}])
    loaders = [
        Loader(f"{folder}/fixed", Fixed(64), prefetch=0),
        Loader(f"{folder}/lanes", TBPTT(64, 512, continuous=True), prefetch=0),
    ]
    return ["{} / {}".format(*count_calls(iter(loader))) for loader in loaders]


def follow_ways(folder: str) -> dict[str, list[str]]:
    """Return the files that a later batch and ``open_store`` enter, of an Arrow store and a tar."""
    ways = {}
    for format in ("arrow", "webdataset"):
        place = f"{folder}/{format}"
        write_store(place, make_rows(), format=format)
        batches = iter(Loader(open_store(place), Fixed(8), prefetch=0))
        ways[f"a later batch, {format}"] = later_batch(batches).files
        one = place if format == "arrow" else str(next(Path(place).glob("*.tar")))
        open_store(one)  # once: later openings import nothing and make no index
        ways[f"open_store, {format}"] = follow(lambda one=one: open_store(one)).files
    return ways


def main() -> None:
    """Print the table."""
    core = list_modules(ROOT / "seqdata")
    once, untested = find_imported_once(core), find_without_mirrored_test(core)
    short = [path for path in once if count_lines([path]) < SHORT]
    code, lines = sum(map(count_code, core)), count_lines(core)
    imports = sum(n.end_lineno - n.lineno + 1 for path in core for n in find_imports(path))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ways, calls = follow_ways(folder), count_batch_calls(folder)
        iterators = find_iterators(f"{folder}/arrow")
    files = {way: len(found) for way, found in ways.items()}
    batch_files = f"{files['a later batch, arrow']} / {files['a later batch, webdataset']}"
    table = [
        ("lines of code of the core", "47,151", f"{code:,}", "<= 33,000"),
        ("lines of the core, all", "72,410", f"{lines:,}", "<= 50,000"),
        ("modules of the core", 345, len(core), "<= 220"),
        ("imports, share of lines", "7.4 %", f"{100 * imports / lines:.1f} %", "<= 5.5 %"),
        ("modules with one importer", 83, len(once), "-"),
        (f"of these under {SHORT} lines", 19, len(short), "<= 12"),
        ("names in `seqdata.backends`", 105, len(seqdata.backends.__all__), "<= 25"),
        ("calls of a later batch, Fixed(64): Python / C", "39 / 29", calls[0], "24 / 20"),
        ("the same, lanes 64 x 512", "42 / 29", calls[1], "24 / 20"),
        ("files that a later batch enters: Arrow / tar", "9 / 10", batch_files, "-"),
        ("iterators between the Trainer and a batch", 6, len(iterators), "<= 4"),
        ('files that `open_store("x.tar")` enters', 43, files["open_store, webdataset"], "<= 20"),
        ("words of the glossary", 155, count_terms(), "<= 60"),
        ("modules of several functions without a mirrored test", 2, len(untested), "0"),
    ]
    print(f"{'':54} {'before':>9} {'now':>9} {'aim':>10}")
    for name, before, now, aim in table:
        print(f"{name:54} {before:>9} {now:>9} {aim:>10}")
    if "--list" in sys.argv[1:]:
        ways["iterators, the outermost first"] = iterators
        ways["modules with one importer"] = [
            f"{path.relative_to(ROOT)} ({count_lines([path])}): {importer}"
            for path, importer in once.items()
        ]
        ways["modules of several functions without a mirrored test"] = untested
        for title, names in ways.items():
            print("\n  ".join([f"\n{title}", *names]))


if __name__ == "__main__":
    main()
