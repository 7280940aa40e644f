"""Names in backticks that do not exist: run by ``make lint``, which ends with what is found.

What docstrings, comments and pages put in backticks must be in the code: each of its words, the
member after a class (``Loader.peek``), and each path of a file. Words that belong to other
libraries, formats and programs are listed below. Names are found by spelling, not by meaning: a
name that moved is found, one that means something else by now is not.
"""

from __future__ import annotations

import ast
import builtins
import io
import keyword
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.library_files import list_files, list_library, walk  # noqa: E402

OTHER_LIBRARIES = (
    "accelerate.Accelerator",
    "aiohttp.BasicAuth",
    "flash_attn.flash_attn_varlen_func",
    "librosa.feature.melspectrogram",
    "librosa.power_to_db",
    "lightning.pytorch.utilities.combined_loader.CombinedLoader",
    "lightning.seed_everything",
    "megatron.core.datasets.indexed_dataset",
    "numpy.quantile",
    "torch.nn.utils.clip_grad_norm_",
    "torch.utils.data.DistributedSampler",
    "torch.utils.data.WeightedRandomSampler",
    "torchaudio.transforms.AmplitudeToDB",
    "torchaudio.transforms.MelSpectrogram",
)
"""Names of other libraries; a test imports those that are installed."""

OTHER_WORDS = {
    "AVX", "AWS_PROFILE", "CUDA_LAUNCH_BLOCKING", "DATASET", "DynamicBucketingSampler",
    "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "Infinity", "Message", "Test", "_SUCCESS", "_convert_",
    "_target_", "_x", "amr",
    "anything", "ar", "array", "aws", "batches_trained", "cp", "emulator", "english", "fbs", "fit",
    "gcp", "h_n", "id", "ignore_index", "lame", "log_mel", "m_min", "max_size_cycle", "md",
    "mod", "monday", "mp", "my_project", "num_samples", "profile_all_threads",
    "return_predictions", "seqdata_hdf5", "sequential", "stopping_strategy", "sync_dist",
    "test_bits_per_token", "thrift", "val_bits_per_token", "word_language_model",
}  # fmt: skip
"""Words of formulas, formats, programs, examples and other libraries' arguments."""

OTHER_NAMES = OTHER_WORDS | {word for path in OTHER_LIBRARIES for word in path.split(".")}
PLAIN_BASES = {"Protocol", "Generic", "object"}
PLACES = (ROOT, ROOT / "seqdata", ROOT / "tests")
FOLDERS = ("seqdata", "models", "plugins", "tests", "examples", "benchmarks", ".ci", "docs")
PAGES = ("README.md", "CONTRIBUTING.md", "docs/**/*.md")
WORD = re.compile(r"\w+")
PATH = re.compile(r"(?<![\w./:<{-])\w[\w.-]*(?:/[\w.-]+)+(?![\w/*{<])")
CODE = re.compile(r"``([^`]+)``|`([^`]+)`")
BLOCK = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Names:
    """Names that exist.

    Attributes:
        words: Every word of code and its strings.
        members: Class -> the names that it defines itself.
        bases: Class -> its bases.
    """

    words: set[str] = field(default_factory=set)
    members: dict[str, set[str]] = field(default_factory=dict)
    bases: dict[str, set[str]] = field(default_factory=dict)

    def add(self, other: Names) -> None:
        """Add the names of other modules."""
        self.words |= other.words
        for mine, others in ((self.members, other.members), (self.bases, other.bases)):
            for owner, found in others.items():
                mine.setdefault(owner, set()).update(found)

    def has_word(self, word: str) -> bool:
        """Return whether a word exists; numbers in it or at its end are an example's."""
        stem = re.sub(r"_?\d+$", "", word)
        return len(stem) < 2 or bool({word, stem} & self.words or {word, stem} & OTHER_NAMES)

    def has_member(self, owner: str, name: str) -> bool:
        """Return whether a class has a member, as far as its bases are known."""
        if owner not in self.members:
            return owner not in PLAIN_BASES
        if name in self.members[owner] or name.startswith("__"):
            return True
        return any(self.has_member(base, name) for base in self.bases[owner])


def main() -> None:
    """Print what is named, but does not exist."""
    names, texts = Names({*keyword.kwlist, *dir(builtins)}), []
    for path in list_library():
        names.words.update(path.relative_to(ROOT).with_suffix("").parts)
        more, found = read_module(path.read_text("utf-8"))
        names.add(more)
        texts += [(f"{path.relative_to(ROOT)}:{line}", text) for line, text in found]
    problems = list(find_problems(texts, names))
    for path in list_files(*FOLDERS):  # pages may name any code, and what it says
        names.words.update(WORD.findall(path.read_text("utf-8")), path.with_suffix("").parts)
    for path in [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]:
        problems += find_problems(*read_page(path, names))
    print(*problems, sep="\n", end="\n" if problems else "")
    sys.exit(bool(problems))


def find_problems(texts: Iterable[tuple[str, str]], names: Names) -> Iterator[str]:
    """Yield a line for each name of ``texts``, which are places and their text, that is missing."""
    for place, text in texts:
        for name in dict.fromkeys(find_missing(text, names)):
            yield f"{place}: `{name}` must be a name in the code, but is not. Name what is there"


def read_module(code: str) -> tuple[Names, list[tuple[int, str]]]:
    """Return the names that the code of a module makes or uses, and its docstrings and comments."""
    nodes, names = walk(code), Names()
    texts = [(node.lineno, node.value.value) for node in nodes if is_docstring(node)]
    starts = {line for line, _ in texts}
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.NAME:
            names.words.add(token.string)
        elif token.type == tokenize.STRING and token.start[0] not in starts:
            names.words.update(WORD.findall(token.string))
        elif token.type == tokenize.COMMENT:
            texts.append((token.start[0], token.string))
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            bases = {re.split(r"[\[(]", ast.unparse(base))[0] for base in node.bases}
            names.bases.setdefault(node.name, set()).update(b.split(".")[-1] for b in bases)
            names.members.setdefault(node.name, set()).update(list_members(node))
    return names, sorted(texts)


def read_page(path: Path, names: Names) -> tuple[list[tuple[str, str]], Names]:
    """Return the lines of a page, and the names that it may use: its blocks of code make some."""
    text = path.read_text("utf-8")
    blocks = {word for block in BLOCK.findall(text) for word in WORD.findall(block)}
    own = Names(names.words | blocks, names.members, names.bases)
    place = str(path.relative_to(ROOT))
    return [(place, BLOCK.sub("", text))], own


def list_members(node: ast.ClassDef) -> Iterator[str]:
    """Yield what a class defines in its body, and what its methods assign to ``self``."""
    for item in ast.walk(node):
        if isinstance(item, FUNCTIONS):
            yield item.name
        elif isinstance(item, ast.Attribute) and isinstance(item.ctx, ast.Store):
            yield item.attr
        elif isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store):
            yield item.id


def is_docstring(node: ast.AST) -> bool:
    """Return whether a node is a string that stands alone."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def find_missing(text: str, names: Names) -> Iterator[str]:
    """Yield the words, members and paths in backticks that do not exist."""
    for code in ("".join(found) for found in CODE.findall(text)):
        paths = [path for path in PATH.findall(code) if is_ours(path)]
        yield from (path for path in paths if not exists(path))
        for word in WORD.findall(PATH.sub("", code) if paths else code):
            if not word[0].isdigit() and not names.has_word(word):
                yield word
        for owner, member in re.findall(r"\b([A-Z]\w+)\.([a-z_]\w*)", code):
            if not names.has_member(owner, member):
                yield f"{owner}.{member}"


def is_ours(path: str) -> bool:
    """Return whether a path begins with a folder of the repository, ``seqdata`` or ``tests``."""
    return any((base / path.split("/")[0]).is_dir() for base in PLACES)


def exists(path: str) -> bool:
    """Return whether a file or folder exists, by its path with or without ``.py``."""
    if any(part.split(".")[0] in {"yours", "test_yours"} for part in path.split("/")):
        return True
    candidates = [base / f"{path}{end}" for base in PLACES for end in ("", ".py")]
    return any(candidate.exists() for candidate in candidates)


if __name__ == "__main__":
    main()
