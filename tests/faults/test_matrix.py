"""One cell per fault at every change, all of them at night: nothing silent, nothing unbounded."""

import json
from pathlib import Path

import pytest

from seqdata.testing.faults.matrix import run_cell, summary
from seqdata.testing.faults.page import as_page
from seqdata.testing.faults.rows import all_cells
from seqdata.testing.faults.table import FAULTS

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "when-something-breaks.md"
QUICK = [cell for cell in all_cells(quick=True) if cell.quick]
ALL = [cell for cell in all_cells() if cell.tries is not None]


def name(cell):
    return f"{cell.fault}: {cell.way}".replace(", ", ",").replace(" ", "-")


@pytest.mark.parametrize("cell", QUICK, ids=name)
def test_a_fault_ends_as_it_must(cell):
    result = run_cell(cell)
    assert not result.complaints
    assert result.silent == result.stuck == 0
    assert result.names


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("cell", ALL, ids=name)
def test_a_fault_ends_as_it_must_in_every_way(cell, record_property):
    result = run_cell(cell)
    about = {"fault": cell.fault, "way": cell.way, "bound": cell.must.seconds}
    told = {name: getattr(result, name) for name in ("names", "slowest", "silent", "stuck")}
    record_property("cell", json.dumps({**about, **told}))
    assert not result.complaints
    assert result.silent == result.stuck == 0


def test_every_fault_is_tried_at_every_change():
    assert {cell.fault for cell in QUICK} == set(FAULTS)


def test_what_cannot_apply_says_why():
    cells = [cell for cell in all_cells() if cell.tries is None]
    assert cells
    assert all(cell.reason for cell in cells)
    line = summary([run_cell(cell) for cell in cells])
    assert line.startswith(f"{len(cells)} cells, {len(cells)} of them cannot apply; 0 outcomes")


def test_a_thousand_flipped_bits_are_tried_with_every_way_to_verify():
    ways = {
        cell.way: cell.tries.args[-2]
        for cell in ALL
        if cell.fault == "D1" and "read, shards" in cell.way and "remote" not in cell.way
    }
    assert ways == {
        "arrow, verify first_read, read, shards": 1000,
        "arrow, verify always, read, shards": 1000,
    }


def test_the_page_shows_what_is_expected():
    assert as_page(QUICK) in PAGE.read_text("utf-8")
