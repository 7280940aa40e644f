"""``seqdata doctor``: checks of a machine, an installation, data and a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from seqdata.cli._doctor.data import check_data, open_checked
from seqdata.cli._doctor.finding import DoctorFinding
from seqdata.cli._doctor.machine import check_machine, inspect_machine
from seqdata.cli._doctor.software import check_plugins, check_software
from seqdata.cli._report.console import (
    EXIT_DATA,
    backend_option,
    format_examples,
    json_option,
    print_report,
    report_errors,
)
from seqdata.errors import ConfigError, must_be
from seqdata.host import default_host

_RUN_FILE = "seqdata-run.yaml"
_CHUNKS = 8  # batches of an update, as in `WavefrontStrategy`
_STYLES = {"ok": "green", "note": "cyan", "warn": "yellow", "bad": "red"}


@click.command(
    epilog=format_examples(
        "seqdata doctor",
        "seqdata doctor store/",
        "seqdata doctor logs/version_0/seqdata-run.yaml --json",
        "seqdata doctor --leaks data.yaml",
        "seqdata doctor --model 'seqdata_models:StatefulLM(256, layers=4)' --lanes 64 --chunk 128",
    )
)
@click.argument("config", required=False)
@backend_option
@json_option
@click.option("--leaks", is_flag=True, help="Only look for what is in two parts of the data.")
@click.option(
    "--model",
    metavar="MODEL",
    help=(
        "Only say how to train MODEL on several devices: package.module:Class(arguments), a "
        "function, or a checkpoint."
    ),
)
@click.option("--lanes", type=int, help="Lanes of all ranks together (--model).")
@click.option("--chunk", type=int, help="Timesteps of a lane's row (--model).")
@click.option("--batch-size", type=int, help="Rows of whole sequences (--model).")
@click.option(
    "--max-length", type=int, help="Timesteps of a row [default: the longest of CONFIG] (--model)."
)
@click.option("--chunks", type=int, help="Batches of an update [default: 8] (--model).")
@click.option("--devices", type=int, help="How many [default: those of this machine] (--model).")
@click.option("--measure", is_flag=True, default=None, help="Run a few timesteps, too (--model).")
@report_errors
def doctor(
    config: str | None,
    backend: str | None,
    as_json: bool,
    leaks: bool,
    model: str | None,
    **options: Any,
) -> None:
    """Check the machine and the installed packages; with CONFIG data and a run as well.

    CONFIG is the seqdata-run.yaml of a run, its folder, or a store. No plugin is imported but the
    one that opens the data, and nothing that a run file names; --model is imported. The exit code
    is 1 if something is bad.
    """
    if model is not None:
        _advise(model, config, backend, as_json=as_json, options=options)
        return
    passed_options = [name for name, value in options.items() if value is not None]
    if passed_options:
        raise ConfigError(
            must_be("doctor: `model`", f"given with `{passed_options[0]}`", "missing")
        )
    findings = list((_collect_leaks if leaks else _collect_findings)(config, backend))
    bad = sum(finding.state == "bad" for finding in findings)
    plain = {"bad": bad, "findings": [finding.to_plain() for finding in findings]}
    print_report(plain, _iter_lines(findings), as_json=as_json)
    if bad:
        raise SystemExit(EXIT_DATA)


def _advise(
    model: str, config: str | None, backend: str | None, *, as_json: bool, options: dict[str, Any]
) -> None:
    # torch, and the user's code, are imported only for a model
    from seqdata.cli._doctor.parallel import ParallelQuery, advise_on_model

    chunks, measure = options.pop("chunks"), bool(options.pop("measure"))
    report = advise_on_model(
        ParallelQuery(
            model=model,
            store=config,
            backend=backend,
            chunks=_CHUNKS if chunks is None else chunks,
            measure=measure,
            **options,
        )
    )
    print_report(report.to_json(), report.iter_lines(), as_json=as_json)


def _collect_leaks(config: str | None, backend: str | None) -> Iterator[DoctorFinding]:
    # the code that fits statistics is imported only for leaks
    from seqdata.cli._doctor.leak_sources import read_sources
    from seqdata.cli._doctor.leaks import check_leaks

    if config is None:
        needed = "the seqdata-run.yaml of a run, or a YAML file with `train` and `val`"
        raise ConfigError(must_be("doctor: with --leaks CONFIG", needed, "missing"))
    yield from check_leaks(read_sources(_find_run_file(config) or Path(config), backend))


def _collect_findings(config: str | None, backend: str | None) -> Iterator[DoctorFinding]:
    shards, workers, data_findings = 0, 0, list[DoctorFinding]()
    run = None if config is None else _find_run_file(config)
    if run is not None:
        shards, workers, data_findings = _check_run(run, backend)
    elif config is not None:
        shards, data_findings = _check_data(config, backend)
    yield from check_machine(inspect_machine(), shards=shards, workers=workers)
    yield from check_software()
    yield from check_plugins(default_host().listing())
    yield from data_findings


def _find_run_file(config: str) -> Path | None:
    inside = os.path.join(config, _RUN_FILE)
    if os.path.isfile(inside):
        return Path(inside)
    return Path(config) if config.endswith((".yaml", ".yml")) else None


def _check_data(location: str, backend: str | None) -> tuple[int, list[DoctorFinding]]:
    store, findings = open_checked(location, backend)
    if store is None:
        return 0, findings
    return len(store.shards), [*findings, *check_data(location, store)]


def _check_run(path: Path, backend: str | None) -> tuple[int, int, list[DoctorFinding]]:
    # torch is imported only for a run
    from seqdata.cli._doctor.run_settings import check_settings
    from seqdata.runs.run_file import RunFile

    file = RunFile.read(path)
    findings, shards, train = list[DoctorFinding](), 0, None
    for kind in ("train", "val", "test", "predict"):
        for location in dict.fromkeys(file.list_store_paths(kind)):
            if any(finding.subject == location for finding in findings):
                continue
            store, open_findings = open_checked(location, backend)
            findings.extend(open_findings)
            if store is not None:
                shards = max(shards, len(store.shards))
                findings.extend(check_data(location, store))
                is_whole_store = kind == "train" and file.data["train"] == location
                train = store if is_whole_store else train
    findings.extend(check_settings(file, path, train))
    return shards, int(file.data.get("num_workers") or 0), findings


def _iter_lines(findings: list[DoctorFinding]) -> Iterator[str | Text]:
    for subject, group in groupby(findings, key=lambda finding: finding.subject):
        yield subject
        for finding in group:
            state = (f"  {finding.state:<5}", _STYLES[finding.state])
            yield Text.assemble(state, f"{finding.name}: {finding.seen}")
            if finding.fix:
                yield f"       do: {finding.fix}"
    counts = {state: sum(finding.state == state for finding in findings) for state in _STYLES}
    yield ", ".join(f"{count} {state}" for state, count in counts.items())
