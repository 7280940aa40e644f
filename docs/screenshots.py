"""Look at a built site in a browser: ``python docs/screenshots.py site build/screenshots``.

It takes pictures of a page of each kind on a wide screen and a phone, light and dark, and checks
that code has colours, pictures load and nothing runs off the page. It also searches by the words of
users: the page they need must be among the first three. Needs chromium, and says so without one.
"""

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--remote-debugging-port=0", "--allow-file-access-from-files",
)  # fmt: skip
PAGES = (
    "index.html",
    "get-started/quickstart.html",
    "guides/batching/bucketing.html",
    "guides/training/resume.html",
    "api/generated/seqdata.SequenceDataModule.html",
    "api/generated/batching-policies.html",
    "examples/gallery/index.html",
    "examples/gallery/plot_*.html",
    "benchmarks/index.html",
)  # of a pattern the first page
WIDTHS = (1280, 400)  # pixels
HEIGHT = 900
MOST_HEIGHT = 5000  # of a picture
THEMES = ("light", "dark")
TIMEOUT = 60  # seconds, for a page
CHECKS = """(() => {
  const found = [], wide = document.documentElement;
  if (wide.scrollWidth > window.innerWidth)
    found.push(`is ${wide.scrollWidth} pixels wide, of ${window.innerWidth}`);
  for (const image of document.images)
    if (image.checkVisibility() && !(image.complete && image.naturalWidth))
      found.push(`does not show ${image.src}`);
  const blocks = [...document.querySelectorAll('.highlight-python pre, .highlight-default pre')]
    .filter(block => block.checkVisibility() && block.querySelectorAll('span').length > 5);
  for (const block of blocks) {
    const colours = [...block.querySelectorAll('span')].map(one => getComputedStyle(one).color);
    if (new Set(colours).size < 2)
      found.push(`shows code in one colour: ${block.innerText.slice(0, 40)}`);
  }
  return found;
})()"""
RESULTS = """(() => {
  const links = [...document.querySelectorAll('#search-results ul.search > li > a')];
  const summary = document.querySelector('#search-results p.search-summary');
  const done = summary && /found|match/.test(summary.innerText);
  return done ? links.slice(0, 3).map(link => link.getAttribute('href')) : null;
})()"""
SEARCHES = {
    "resume mid-epoch": "guides/training/resume",
    "bucketing": "guides/batching/bucketing",
    "h5py": "guides/data/hdf5-zarr",
    "benchmark": "benchmarks/",
    "huggingface": "guides/data/parquet-hugging-face",
    "ddp hang": "guides/trouble/ddp-hangs",
    "transformer": "guides/batching/transformers",
    "padding": "guides/batching/bucketing",
    "class imbalance": "guides/sampling/class-imbalance",
    "variable length": "guides/batching/bucketing",
    "out of memory": "guides/trouble/out-of-memory",
    "nan loss": "guides/trouble/loss-spikes",
    "tbptt": "guides/training/stateful-rnn",
}  # words of users -> the beginning of the page that they need


class Browser:
    """A page of a browser, by its debugging protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._numbers = socket, itertools.count(1)

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the answer of the browser."""
        number = next(self._numbers)
        await self._socket.send_json(
            {"id": number, "method": method, "params": params}
        )
        while True:
            answer = await self._socket.receive_json(timeout=TIMEOUT)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    async def run(self, code: str) -> Any:
        """Return the value of a script."""
        answer = await self.call(
            "Runtime.evaluate", expression=code, returnByValue=True
        )
        return answer["result"].get("value")

    async def go(self, url: str) -> None:
        """Open a page, and wait until all of it is there."""
        await self.call("Page.navigate", url=url)
        await self.wait(
            "location.href.split('#')[0] === " + json.dumps(url), "true"
        )
        await self.wait("document.readyState === 'complete'", "true")

    async def wait(self, code: str, what: str) -> Any:
        """Return the value of a script once it is neither null nor false."""
        until = time.monotonic() + TIMEOUT
        while time.monotonic() < until:
            if (value := await self.run(code)) not in (None, False):
                return value
            await asyncio.sleep(0.1)
        raise TimeoutError(f"{code} is not {what} after {TIMEOUT} seconds")


def find_pages(site: Path) -> list[Path]:
    """Return the pages to look at, as far as the site has them."""
    found = [next(iter(sorted(site.glob(pattern))), None) for pattern in PAGES]
    return [page for page in found if page is not None]


async def look(browser: Browser, site: Path, out: Path) -> list[str]:
    """Take the pictures; return what is wrong with the pages."""
    problems = []
    for page, width, theme in itertools.product(
        find_pages(site), WIDTHS, THEMES
    ):
        await browser.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=HEIGHT, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        feature = {"name": "prefers-color-scheme", "value": theme}
        await browser.call("Emulation.setEmulatedMedia", features=[feature])
        await browser.go(page.as_uri())
        await browser.run(
            "for (const one of document.images) one.loading = 'eager'"
        )
        await asyncio.sleep(0.3)
        name = str(page.relative_to(site))
        problems += [
            f"{name}, {width} pixels, {theme}: {one}"
            for one in await browser.run(CHECKS)
        ]
        height = min(
            MOST_HEIGHT,
            await browser.run("document.documentElement.scrollHeight"),
        )
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        whole = {"clip": clip, "captureBeyondViewport": True}
        picture = await browser.call("Page.captureScreenshot", **whole)
        stem = name.removesuffix(".html").replace("/", "-")
        (out / f"{stem}-{width}-{theme}.png").write_bytes(
            base64.b64decode(picture["data"])
        )
    return problems


async def search(browser: Browser, site: Path) -> list[str]:
    """Search by the words of users; return what is not found."""
    problems = []
    for words, wanted in SEARCHES.items():
        await browser.go(
            f"{(site / 'search.html').as_uri()}?q={words.replace(' ', '%20')}"
        )
        found = [
            link.partition("?")[0]
            for link in await browser.wait(RESULTS, "there")
        ]
        good = any(link.startswith(wanted) for link in found)
        print(f"search {words!r}: {', '.join(found)}")
        if not good:
            problems.append(
                f"search {words!r}: must lead to {wanted}, but leads to {found}"
            )
    return problems


async def main() -> None:
    """Look at the site of the first argument; pictures go into the folder of the second."""
    site, out = (Path(argument).resolve() for argument in sys.argv[1:])
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        print(
            f"no browser ({', '.join(BROWSERS)}): no pictures were taken, no search was tried"
        )
        return
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        command = [
            program,
            *OPTIONS,
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            problems = await use(await find_socket(Path(profile)), site, out)
        finally:
            process.terminate()
            process.wait(TIMEOUT)
    print(*problems, sep="\n", end="\n" if problems else "")
    sys.exit(bool(problems))


async def use(url: str, site: Path, out: Path) -> list[str]:
    """Look at the site through a socket of the browser; return what is wrong."""
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(url, max_msg_size=0) as socket,
    ):
        browser = Browser(socket)
        return [*await look(browser, site, out), *await search(browser, site)]


async def find_socket(profile: Path) -> str:
    """Return the address of the first page of a browser that starts."""
    until = time.monotonic() + TIMEOUT
    while time.monotonic() < until:
        note = profile / "DevToolsActivePort"
        if note.exists() and (lines := note.read_text().splitlines()):
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{lines[0]}/json") as answer,
            ):
                pages = [
                    one for one in await answer.json() if one["type"] == "page"
                ]
            if pages:
                return str(pages[0]["webSocketDebuggerUrl"])
        await asyncio.sleep(0.2)
    raise TimeoutError(f"the browser is not ready after {TIMEOUT} seconds")


if __name__ == "__main__":
    asyncio.run(main())
