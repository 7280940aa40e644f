"""Run commands, and find one thing in what they return."""

import re
from typing import Any

from click.testing import CliRunner

from seqdata.cli._doctor.finding import DoctorFinding
from seqdata.cli.app import app


def run_doctor(*arguments: str, code: int = 0) -> Any:
    done = CliRunner().invoke(app, ["doctor", *arguments])
    assert done.exit_code == code, done.output
    return done.stdout


def find_one(findings: Any, name: str) -> DoctorFinding:
    """Return the one finding of a name."""
    (found,) = [one for one in findings if one.name == name]
    return found


def run_plan(*arguments, code=0):
    done = CliRunner().invoke(app, ["plan", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.output if code == 0 else done.stderr


def read_rows(text: str) -> list[list[str]]:
    """Return the cells of each line; those of a table are two or more blanks apart."""
    return [re.split(r" {2,}", line.strip()) for line in text.splitlines()]
