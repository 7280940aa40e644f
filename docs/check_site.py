"""Check a built site: ``python docs/check_site.py site``. Every link within it leads somewhere.

So do those of ``llms.txt``, which must be there. The site also can be read without a network: scripts, styles, fonts and pictures are files of the site.
"""

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {
    "script": ("src",), "link": ("href",), "img": ("src",), "iframe": ("src",), "source": ("src",),
    "video": ("src",), "audio": ("src",), "object": ("data",), "embed": ("src",),
}  # fmt: skip
NOT_LOADED = {
    "canonical",
    "next",
    "prev",
    "index",
    "search",
    "alternate",
}  # relations of a link
LLMS = "llms.txt"
IN_LLMS = re.compile(r"\]\(([^)]+)\)")
IN_CSS = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


class Page(HTMLParser):
    """Links of a page, what it loads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(
        self, tag: str, attrs: list[tuple[str, str | None]]
    ) -> None:
        """Note the links and anchors of a tag."""
        found = {name: value for name, value in attrs if value is not None}
        self.anchors |= {
            found[name] for name in ("id", "name") if name in found
        }
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag == "link" and found.get("rel", "") in NOT_LOADED:
            return
        self.loaded += [
            found[name] for name in LOADED.get(tag, ()) if name in found
        ]


def is_elsewhere(link: str) -> bool:
    """Return whether a link leads to another host."""
    return link.startswith("//") or urlsplit(link).scheme in ("http", "https")


def list_pages(site: Path) -> list[Path]:
    """Return the pages of a site; what lies in ``_static`` are parts of a theme."""
    return [
        path
        for path in sorted(site.rglob("*.html"))
        if "_static" not in path.parts
    ]


def find_problems(site: Path) -> Iterator[str]:
    """Yield a line for each link that leads nowhere and each file that is loaded from elsewhere."""
    pages = {path: Page(path.read_text("utf-8")) for path in list_pages(site)}
    for path, page in pages.items():
        name = path.relative_to(site)
        for link in page.loaded:
            if is_elsewhere(link):
                yield f"{name}: loads {link} from elsewhere"
        for link in dict.fromkeys([*page.links, *page.loaded]):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or is_elsewhere(link):
                continue
            target = (
                (path.parent / unquote(parts.path)).resolve()
                if parts.path
                else path.resolve()
            )
            if not target.exists():
                yield f"{name}: {link} does not exist"
            elif (
                parts.fragment
                and target.suffix == ".html"
                and target.is_relative_to(site)
            ):
                anchors = pages[target].anchors if target in pages else set()
                if unquote(parts.fragment) not in anchors:
                    yield f"{name}: {link} has no such anchor"
    for path in sorted(site.rglob("*.css")):
        for found in IN_CSS.findall(path.read_text("utf-8", errors="replace")):
            if is_elsewhere("".join(found)):
                yield f"{path.relative_to(site)}: loads {''.join(found)} from elsewhere"
    yield from find_llms_problems(site)


def find_llms_problems(site: Path) -> Iterator[str]:
    """Yield a line for each link of ``llms.txt`` that leads nowhere, or one if there are none."""
    path = site / LLMS
    links = IN_LLMS.findall(path.read_text("utf-8")) if path.exists() else []
    if not links:
        yield f"{LLMS}: must list the pages of the site, but is not there or has no link"
    for link in links:
        if not (site / link).is_file():
            yield f"{LLMS}: {link} does not exist"


def main() -> None:
    """Print what is wrong with the site of the first argument."""
    problems = list(find_problems(Path(sys.argv[1]).resolve()))
    print(*problems, sep="\n", end="\n" if problems else "")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
