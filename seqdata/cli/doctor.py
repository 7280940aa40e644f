"""``seqdata doctor``: what can be seen of a machine, an installation, data and a run.

Place in the flow: findings -> a report and an exit code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

import click
from rich.console import Console

from seqdata.cli._doctor.data import data_findings, opened
from seqdata.cli._doctor.finding import Finding
from seqdata.cli._doctor.machine import machine_findings, this_machine
from seqdata.cli._doctor.software import plugin_findings, software_findings
from seqdata.cli._report.console import DATA, backend_option, console, examples, reporting
from seqdata.default_host import default_host

_RUN_FILE = "seqdata-run.yaml"
_STYLES = {"ok": "green", "note": "cyan", "warn": "yellow", "bad": "red"}


@click.command(
    epilog=examples(
        "seqdata doctor",
        "seqdata doctor store/",
        "seqdata doctor logs/version_0/seqdata-run.yaml --json",
    )
)
@click.argument("config", required=False)
@backend_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@reporting
def doctor(config: str | None, backend: str | None, as_json: bool) -> None:
    """Look at the machine and what is installed; with CONFIG at data and a run, too.

    CONFIG is the seqdata-run.yaml of a run, its folder, or a store. No plugin but the one that
    opens the data, and nothing that a run file names, is imported. Exit code 1 where something is
    bad.
    """
    findings = list(_findings(config, backend))
    bad = sum(one.state == "bad" for one in findings)
    if as_json:
        click.echo(
            json.dumps({"bad": bad, "findings": [asdict(one) for one in findings]}, indent=2)
        )
    else:
        _print(console(), findings)
    if bad:
        raise SystemExit(DATA)


def _findings(config: str | None, backend: str | None) -> Iterator[Finding]:
    shards, workers, found = 0, 0, list[Finding]()
    run = None if config is None else _run_file(config)
    if run is not None:
        shards, workers, found = _of_run(run, backend)
    elif config is not None:
        shards, found = _of_data(config, backend)
    yield from machine_findings(this_machine(), shards=shards, workers=workers)
    yield from software_findings()
    yield from plugin_findings(default_host().listing())
    yield from found


def _run_file(config: str) -> Path | None:
    inside = os.path.join(config, _RUN_FILE)
    if os.path.isfile(inside):
        return Path(inside)
    return Path(config) if config.endswith((".yaml", ".yml")) else None


def _of_data(location: str, backend: str | None) -> tuple[int, list[Finding]]:
    store, found = opened(location, backend)
    if store is None:
        return 0, found
    return len(store.shards), [*found, *data_findings(location, store)]


def _of_run(path: Path, backend: str | None) -> tuple[int, int, list[Finding]]:
    # torch is imported only where a run is looked at
    from seqdata.cli._doctor.run_settings import settings_findings
    from seqdata.runs.run_file import RunFile, paths_of

    file = RunFile.read(path)
    found, shards, train = list[Finding](), 0, None
    for kind in ("train", "val", "test", "predict"):
        for location in dict.fromkeys(paths_of(file.data.get(kind))):
            if any(one.place == location for one in found):
                continue
            store, said = opened(location, backend)
            found.extend(said)
            if store is not None:
                shards = max(shards, len(store.shards))
                found.extend(data_findings(location, store))
                whole = kind == "train" and "path" in file.data["train"]
                train = store if whole else train
    found.extend(settings_findings(file, path, train))
    return shards, int(file.data.get("num_workers") or 0), found


def _print(out: Console, findings: list[Finding]) -> None:
    for place, group in groupby(findings, key=lambda one: one.place):
        out.print(place)
        for one in group:
            out.print(f"  {one.state:<5}", style=_STYLES[one.state], end="")
            out.print(f"{one.name}: {one.seen}")
            if one.fix:
                out.print(f"       do: {one.fix}")
    counts = {state: sum(one.state == state for one in findings) for state in _STYLES}
    out.print(", ".join(f"{count} {state}" for state, count in counts.items()))
