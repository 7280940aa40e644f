"""Files that say what is public: the names with their signatures, and the pages of the docs.

``make golden`` writes them again, and tests/test_golden.py fails where they differ: a change of the
public API is then a line of a diff, never an accident.
"""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
API, PAGES = ROOT / "tests" / "public_api.txt", DOCS / "llms.txt"
PLAIN = (int, float, str, bytes, tuple, type, type(None))
MODULES = ("seqdata", "seqdata.backends", "seqdata.protocols")
HEADING = re.compile(r"^# (.+)$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")
CONTENTS = re.compile(r"^```\{toctree\}\n(?::[^\n]*\n)*(.*?)^```", re.MULTILINE | re.DOTALL)
NAMES = {".": "Home", "api": "API", "guides: trouble": "Guides: when it goes wrong"}  # of folders
MARKUP = re.compile(r"^(?:[#|>:!<-]|\(|\d+\. |\* |\{)")
MOST = 160  # characters of the description of a page


class Name(str):
    """A string whose repr is itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def describe_api() -> str:
    """Return the public names of all modules, one a line, with signatures."""
    lines = []
    for name in MODULES:
        module = importlib.import_module(name)
        lines.append(f"# {name}")
        for public in sorted(list_public(module)):
            lines += describe(public, getattr(module, public))
    return "\n".join(lines) + "\n"


def list_public(module: Any) -> list[str]:
    """Return the names of ``__all__``, or else of what is defined in the module."""
    found = getattr(module, "__all__", None)
    if found is not None:
        return list(found)
    values = vars(module).items()
    return [
        name
        for name, value in values
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]


def describe(name: str, value: Any) -> Iterator[str]:
    """Yield the line of a name, and those of its public members."""
    if not inspect.isclass(value):
        yield f"{name}{sign(value)}" if callable(value) else f"{name}: {type(value).__name__}"
        return
    bases = [base.__name__ for base in value.__bases__ if base is not object]
    yield f"class {name}{sign(value)}" + (f" of {', '.join(bases)}" if bases else "")
    for member in sorted(dir(value)):
        found = inspect.getattr_static(value, member)
        if not member.startswith("_") and is_own(value, member):
            kind = "property" if isinstance(found, property) else ""
            bound = getattr(value, member) if not kind else None
            shown = kind or (sign(bound) if callable(bound) else "attribute")
            yield f"  {member}{'' if shown.startswith('(') else ': '}{shown}"


def is_own(value: type, member: str) -> bool:
    """Return whether a class of seqdata defines a member, and not a class of another library."""
    owner = next(base for base in value.__mro__ if member in vars(base))
    return owner.__module__.startswith("seqdata")


def sign(value: Any) -> str:
    """Return a signature as a string that is equal in every process."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # written in C
        return "(...)"
    arguments = [
        argument.replace(default=Name(f"<{type(argument.default).__name__}>"))
        if not isinstance(argument.default, PLAIN)
        else argument
        for argument in signature.parameters.values()
    ]
    return str(signature.replace(parameters=arguments))


def describe_pages() -> str:
    """Return the pages of the docs with a sentence each, as llms.txt is written."""
    title, text = read_page(DOCS / "index.md")
    lines, section = [f"# {title}", "", f"> {text}"], None
    for page in list_pages():
        if page.parent != section:
            section = page.parent
            name = section.relative_to(DOCS).as_posix().replace("-", " ").replace("/", ": ")
            lines += ["", f"## {NAMES.get(name, name.capitalize())}", ""]
        title, text = read_page(page)
        place = page.relative_to(DOCS).as_posix()
        lines.append(f"- [{title}]({place})" + (f": {text}" if text else ""))
    return "\n".join([*lines, ""])


def list_pages() -> list[Path]:
    """Return the pages that people read, in the order of the site, without those that list others.

    Raises:
        ValueError: If a page is not in the contents of another.
    """
    found = list(dict.fromkeys(iter_contents(DOCS / "index.md")))
    lost = {page for page in DOCS.rglob("*.md") if "_build" not in page.parts} - {*found}
    if lost - {DOCS / "index.md"}:
        raise ValueError(f"these pages are not in the contents of another: {sorted(lost)}")
    return [page for page in found if page.name != "index.md" or is_read(page)]


def is_read(page: Path) -> bool:
    """Return whether a page has sections of its own, or lists pages that the build makes."""
    has_sections = "\n## " in CODE.sub("", page.read_text("utf-8"))
    return has_sections or not all(below.is_file() for below in read_contents(page))


def iter_contents(page: Path) -> Iterator[Path]:
    """Yield the written pages below a page, in the order of its contents."""
    for below in filter(Path.is_file, read_contents(page)):
        yield below
        yield from iter_contents(below)


def read_contents(page: Path) -> list[Path]:
    """Return the files of the pages that a page lists."""
    entries = " ".join(CONTENTS.findall(page.read_text("utf-8"))).split()
    return [page.parent / f"{entry}.md" for entry in entries]


def read_page(page: Path) -> tuple[str, str]:
    """Return the title of a page, and its first sentence."""
    text = CODE.sub("", page.read_text("utf-8"))
    found = HEADING.search(text)
    title = LINK.sub(r"\1", found[1]).replace("`", "") if found else page.stem.capitalize()
    rest = text[found.end() :] if found else text
    blocks = (" ".join(block.split()) for block in re.split(r"\n\s*\n", rest))
    first = next((block for block in blocks if block and not MARKUP.match(block)), "")
    plain = LINK.sub(r"\1", first).replace("**", "")
    sentence = re.split(r"(?<=[.!?]) (?=[A-Z`])", plain)[0]
    if len(sentence) > MOST:
        sentence = sentence[:MOST].rpartition(" ")[0] + " ..."
    return title, sentence.rstrip(":")


if __name__ == "__main__":
    API.write_text(describe_api(), "utf-8")
    PAGES.write_text(describe_pages(), "utf-8")
