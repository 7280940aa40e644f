"""Print how easy the house is to live in: `make house`.

Each line counts one thing that a newcomer meets: files on the way of a batch, modules, words. Next
to it are the count before the house was rebuilt (at f755d55) and the aim. With ``--list``, what is
counted is named: the files entered up to the first training step, with the functions entered if
they are few; modules that one other module imports; modules without a mirrored test; stores; and
imports that lead up. Which words mean several things no code can count: that is found by reading.
"""

import ast
import configparser
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import grimp
import lightning as L
import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from seqdata import Loader, SequenceDataModule, TokenBudget, open_store, write_store  # noqa: E402
from seqdata.protocols import Store  # noqa: E402
from tests.flow import Flow, follow, later_batch, write_remote  # noqa: E402

TAR = ROOT / "plugins/seqdata-webdataset/seqdata_webdataset"
ASKS_FOR_TEXT = re.compile(
    r"""\bTEXTS\b|\bTEXT_DTYPES\b|\bdtype (?:[!=]=|(?:not )?in) \(?["'](?:str|bytes)["']"""
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
TEST_OF_FRONT = ROOT / "tests/test_public_api.py"  # of what `import seqdata` shows
MEMBERS = {name for name in vars(Store) if not name.startswith("_")}


def modules(*folders: Path) -> list[Path]:
    """Return the modules below folders."""
    return [path for folder in folders for path in sorted(folder.rglob("*.py"))]


def lines(paths: list[Path]) -> int:
    """Return how many lines files have."""
    return sum(len(path.read_text("utf-8").splitlines()) for path in paths)


def docstrings(paths: list[Path]) -> Iterator[str]:
    """Yield the docstrings of modules, classes and functions."""
    kinds = (ast.Module, ast.ClassDef, *FUNCTIONS)
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, kinds) and (found := ast.get_docstring(node)):
                yield found


def imports(path: Path) -> set[str]:
    """Return the modules that a file imports, with what it takes from each as a module."""
    tree = ast.parse(path.read_text("utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {str(node.module) for node in nodes}


def find_without_mirrored_test() -> list[Path]:
    """Return the modules with several functions that have no test at their path."""
    found = []
    for path in modules(ROOT / "seqdata"):
        tree = ast.parse(path.read_text("utf-8"))
        folder = ROOT / "tests" / path.relative_to(ROOT / "seqdata").parent
        tests = [*folder.glob(f"test_{path.stem}.py"), *folder.glob(f"test_{path.stem}_*.py")]
        if path == ROOT / "seqdata/__init__.py":
            tests = [TEST_OF_FRONT] if TEST_OF_FRONT.is_file() else []
        if not tests and sum(map(does_something, ast.walk(tree))) > 1:
            found.append(path)
    return found


def does_something(node: ast.AST) -> bool:
    """Return whether a node is a function, and not only declared by an interface (``...``)."""
    if not isinstance(node, FUNCTIONS):
        return False
    last = node.body[-1]
    return not (isinstance(last, ast.Expr) and ast.unparse(last) == "...")


def find_facades(paths: list[Path]) -> list[str]:
    """Return the classes that define every member of ``Store`` themselves, but not ``Store``."""
    found = []
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.ClassDef) or node.name == "Store":
                continue
            names = {item.name for item in node.body if isinstance(item, FUNCTIONS)}
            for item in node.body:
                if isinstance(item, ast.AnnAssign | ast.Assign):
                    targets = [item.target] if isinstance(item, ast.AnnAssign) else item.targets
                    names.update(map(ast.unparse, targets))
            if names >= MEMBERS:
                found.append(f"{node.name} ({path.relative_to(ROOT)})")
    return found


def find_reach_ups() -> list[str]:
    """Return the arrows between the rooms of storage that lead up, by its contract."""
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    contract = contracts["importlinter:contract:storage-layers"]
    layers = [
        grimp.Layer(*re.split(r"\s*[:|]\s*", line), independent="|" in line)
        for line in contract["layers"].split("\n")
        if line
    ]
    graph = grimp.build_graph("seqdata", exclude_type_checking_imports=True, cache_dir=None)
    container = {contract["containers"]}
    found = graph.find_illegal_dependencies_for_layers(layers=layers, containers=container)
    return sorted(f"{arrow.importer} -> {arrow.imported}" for arrow in found)


def find_imported_once() -> dict[str, str]:
    """Return the modules of the core that exactly one other imports -> that one."""
    importers: dict[str, set[str]] = {}
    for path in [*modules(ROOT / "seqdata"), *modules(ROOT / "plugins")]:
        for name in imports(path):
            importers.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    return {
        name: found.pop()
        for name, found in sorted(importers.items())
        if len(found) == 1 and (ROOT / Path(*name.split("."))).with_suffix(".py").is_file()
    }


def rows(count: int = 400) -> Iterator[dict[str, object]]:
    """Yield short sequences."""
    rng = np.random.default_rng(0)
    for number in range(count):
        yield {"x": rng.normal(size=(rng.integers(5, 50), 4)).astype("f4"), "y": number % 3}


class Stop(Exception):
    """Raised by the first training step."""


class Model(L.LightningModule):
    """Stops at its first step; what is entered while it stops is not counted."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, *_: object) -> None:
        """Stop."""
        sys.setprofile(None)
        raise Stop

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return an optimizer."""
        return torch.optim.SGD(self.parameters(), 0.1)


def first_step(location: str) -> Flow:
    """Return what is entered up to the first training step of a DataModule."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", enable_model_summary=False, **quiet)

    def fit() -> None:
        data = SequenceDataModule(train=location, batching=TokenBudget(256))
        try:
            trainer.fit(Model(), data)
        except Stop:
            return

    return follow(fit)


def flows() -> tuple[int, int, int, Flow]:
    """Return the files that a later batch enters, and the flow to a first step.

    Of an Arrow store, of tar shards on this machine, and of tar shards by ranges.
    """
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        counts = []
        for format in ("arrow", "webdataset"):
            write_store(f"{folder}/{format}", rows(), format=format)
            loader = Loader(open_store(f"{folder}/{format}"), TokenBudget(256), prefetch=0)
            counts.append(len(later_batch(iter(loader)).files))
        remote = write_remote("memory://house/tar", Path(folder), "webdataset")
        ranges = len(later_batch(iter(Loader(remote, TokenBudget(256), prefetch=0))).files)
        return counts[0], counts[1], ranges, first_step(f"{folder}/arrow")


def main() -> None:
    """Print the table."""
    core, tar = modules(ROOT / "seqdata"), modules(TAR)
    arrow_flow, tar_flow, ranges_flow, first = flows()
    untested, reach_ups = find_without_mirrored_test(), find_reach_ups()
    both = core + tar
    facades = find_facades(both)
    texts = [path for path in both if ASKS_FOR_TEXT.search(path.read_text())]
    private = {name for path in tar for name in imports(path)}
    private = {n for n in private if n.startswith("seqdata.") and n != "seqdata.backends"}
    opened = [text for text in docstrings(both) if text.startswith("Give")]
    small = sum(1 for path in both if path.name != "__init__.py" and lines([path]) < 60)
    table = [
        ("files that a later batch of an Arrow store enters", 21, arrow_flow, "<= 12"),
        ("the same for a tar shard on this machine", 23, tar_flow, "<= 14"),
        ("the same for a tar shard read by ranges", 31, ranges_flow, "<= 14"),
        ("files entered up to the first training step", 83, len(first.files), "<= 50"),
        ("modules in core and tar plugin", 320, len(both), "about 200"),
        ("of them under 60 lines", 42, small, "-"),
        ("lines in the core's wheel", 42_600, lines(core), "<= 33,000"),
        ("lines of the tar plugin", 5_600, lines(tar), "<= 3,000"),
        ("modules of the core that the tar plugin imports", 42, len(private), "0"),
        ("files that ask whether a field is text", 29, len(texts), "1"),
        ("classes that define all members of a store", 7, len(facades), "1"),
        ('docstrings that begin with "Give"', 842, len(opened), "0"),
        ("modules of several functions without a mirrored test", 161, len(untested), "0"),
        ("rooms of storage that reach up a layer", 10, len(reach_ups), "0"),
    ]
    print(f"{'':52} {'before':>8} {'now':>8} {'aim':>10}")
    for name, before, now, aim in table:
        print(f"{name:52} {before:>8,} {now:>8,} {aim:>10}")
    unread = "one word for several things (by reading, not code)"
    print(f"{unread:52} {'~25':>8} {'-':>8} {'0':>10}")
    if "--list" in sys.argv[1:]:
        list_counted(first, untested, facades, reach_ups)


def list_counted(
    first: Flow, untested: list[Path], facades: list[str], reach_ups: list[str]
) -> None:
    """Print what the table counts."""
    print("\nfiles entered up to the first training step")
    for file in sorted(first.files):
        entered = [name for path, name in first.functions if path == file]
        few = ", ".join(entered) if len(entered) < 4 else f"{len(entered)} functions"
        print(f"  {file}: {few}")
    print("\nmodules that one other imports")
    for name, importer in find_imported_once().items():
        print(f"  {name}: {importer}")
    paths = [str(path.relative_to(ROOT)) for path in untested]
    for title, names in (
        ("modules of several functions without a mirrored test", paths),
        ("classes that define all members of a store", facades),
        ("rooms of storage that reach up a layer", reach_ups),
    ):
        print("\n  ".join([f"\n{title}", *names]))


if __name__ == "__main__":
    main()
