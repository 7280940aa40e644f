"""The page of `seqdata plan --report`: the numbers of the plan, escaped, in one file."""

import html
import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

from seqdata.api import write_store
from seqdata.cli.app import app
from tests.cli.commands import run_plan

NASTY = "<b>&bold"
LENGTHS = [int(length) for length in np.random.Philox(1).random_raw(120) % 90 + 1]
_ROW = re.compile(r"<tr>(.*?)</tr>", re.DOTALL)
_CELL = re.compile(r"<td[^>]*>(.*?)</td>", re.DOTALL)


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    for name, lengths in (("speech", LENGTHS), (NASTY, LENGTHS[:50])):
        rows = [{"id": f"<u>{i}", "x": np.zeros(n, dtype=np.int8)} for i, n in enumerate(lengths)]
        write_store(folder / name, rows)
    return str(folder / "speech"), str(folder / NASTY)


def report(tmp_path, *arguments):
    """Return the page, its rows of tables as text, and the plan as JSON."""
    path = tmp_path / "new" / "plan.html"
    plan = json.loads(run_plan(*arguments, "--json", "--report", path))
    page = path.read_text(encoding="utf-8")
    rows = [[html.unescape(cell) for cell in _CELL.findall(row)] for row in _ROW.findall(page)]
    return page, rows, plan


def sum_bars(page, caption):
    """Return the sums of the bars of a picture, by the name of their series."""
    figure = page.split(f"<figcaption>{caption}")[1].split("</figure>")[0]
    sums = {}
    for number, name in re.findall(r"<title>[^<]*: ([\d,]+) ([a-z ]+)</title>", figure):
        sums[name] = sums.get(name, 0) + int(number.replace(",", ""))
    return sums


def test_the_page_has_the_numbers_of_the_plan(stores, tmp_path):
    page, rows, plan = report(tmp_path, stores[0], "--max-tokens", 500, "--world", "1,3")
    figures = dict(row for row in rows if len(row) == 2)
    assert figures["timesteps after padding"] == f"{plan['padded']:,}"
    assert figures["fingerprint"] == plan["fingerprint"]
    assert figures["policy"] == "TokenBudget(max_tokens=500)"
    padding = 100 * (1 - plan["timesteps"] / plan["padded"])
    text = f"{plan['batches']} batches · {plan['timesteps']:,} timesteps · {padding:.1f} % padding"
    assert text in page
    expected = {
        "real timesteps": plan["timesteps"], "padding": plan["padded"] - plan["timesteps"],
    }  # fmt: skip
    assert sum_bars(page, f"{plan['batches']} batches") == expected
    assert sum_bars(page, "120 sequences") == {"sequences": 120}
    worlds = [row[:3] for row in rows if len(row) == 4]
    assert worlds == [
        [f"{each['size']}", f"{each['steps']}", f"{each['filler']}"] for each in plan["worlds"]
    ]
    ranks = sum_bars(page, f"3 ranks, {plan['worlds'][1]['steps']} steps each")
    assert ranks["real timesteps"] == plan["timesteps"]
    worst = next(row for row in rows if len(row) == 7)
    assert [int(each.replace(",", "")) for each in worst[:3]] == list(plan["worst"].values())
    assert worst[6].startswith("<u>")


def test_the_page_is_escaped_and_needs_nothing_else(stores, tmp_path):
    page, rows, plan = report(tmp_path, *stores, "--mix", "2,1", "--max-tokens", 500)
    assert "<u>" not in page
    assert NASTY not in page
    assert f"Plan of speech, {html.escape(NASTY)}" in page
    assert not re.search(r"<script|<link|<img|href=|src=|url\(|@import", page)
    parts = {row[0]: row[1:] for row in rows if len(row) == 6}
    for part in plan["parts"]:
        batches, share, timesteps = parts[part["part"]][:3]
        assert batches == f"{part['batches']:,}"
        assert timesteps == f"{part['timesteps']:,}"
        assert float(share) == pytest.approx(100 * part["share"], abs=0.01)


def test_lanes_are_on_the_page_and_dropped_sequences_are_named(stores, tmp_path):
    page, rows, plan = report(
        tmp_path, stores[0], "--batching", "tbptt", "--lanes", 4, "--chunk", 16, "--world", 2
    )
    assert "<h2>Lanes</h2>" in page
    assert f"4 lanes, {plan['batches']} steps" in page
    assert dict(row for row in rows if len(row) == 2)["idle rows"].endswith("% of 4 lanes")
    assert sum_bars(page, "2 ranks")["real timesteps"] == plan["timesteps"]
    _, rows, plan = report(
        tmp_path, stores[0], "--max-tokens", 500, "--max-length", 80, "--too-long", "drop"
    )
    dropped = dict(row for row in rows if len(row) == 2)["dropped sequences"]
    assert dropped == f"{plan['dropped']['count']}: {', '.join(plan['dropped']['first'])}, …"


def test_zipped_stores_each_have_their_pictures(stores, tmp_path):
    page, _, plan = report(
        tmp_path, *stores, "--zip", "8,4", "--batching", "bucketed", "--world", "2"
    )
    name = html.escape(NASTY)
    sums = [sum_bars(page, f"{each}: {plan['batches']} batches") for each in ("speech", name)]
    assert sum(each["real timesteps"] for each in sums) == plan["timesteps"]
    assert sum(each["padding"] for each in sums) == plan["padded"] - plan["timesteps"]
    assert sum_bars(page, "2 ranks")["real timesteps"] == plan["timesteps"]


def test_the_command_names_the_page(stores, tmp_path):
    path = tmp_path / "plan.html"
    assert f"report: {path}" in run_plan(stores[0], "--max-tokens", 500, "--report", path)


def test_the_path_of_the_page_ends_in_html(stores, tmp_path):
    path = tmp_path / "plan.pdf"
    done = CliRunner().invoke(
        app, ["plan", stores[0], "--max-tokens", "500", "--report", str(path)]
    )
    assert done.exit_code == 2
    assert "`--report` must be a path that ends in .html, but is" in done.stderr
    assert not path.exists()
