"""Sizes are written for people; errors and warnings show no secrets."""

import warnings

import click
import pytest
from click.testing import CliRunner

from seqdata.cli._report.console import format_bytes, report_errors
from seqdata.errors import ConfigError, SeqDataWarning


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (1 << 41, "2.0 TiB")],
)
def test_sizes_are_written_for_people(count, text):
    assert format_bytes(count) == text


def test_arguments_of_python_are_named_as_options():
    @click.command()
    @click.option("--resume/--no-resume", default=True)
    @click.option("--overwrite", is_flag=True)
    @click.option("--shuffle")
    @report_errors
    def fail(**_):
        raise ConfigError(
            "`shuffle` must be 7. Pass `shuffle=7`, or `resume=False` to start again, or "
            "`overwrite=True`, or `resume`; `other=False` stays"
        )

    assert CliRunner().invoke(fail).stderr == (
        "error: --shuffle must be 7. Pass --shuffle 7, or --no-resume to start again, or "
        "--overwrite, or --resume; `other=False` stays\n"
    )


def test_errors_and_warnings_show_no_secrets_of_urls():
    url = "https://someone:p4ssw0rd@host/a?X-Amz-Signature=s1gn4ture"

    @click.command()
    @report_errors
    def fail():
        warnings.warn(f"{url}: is slow. Wait?", SeqDataWarning, stacklevel=1)
        raise ConfigError(f"{url}: must be a store, but is none. Check it?")

    done = CliRunner().invoke(fail)
    assert done.stderr == (
        "note: https://host/a is slow. Wait?\n"
        "error: https://host/a must be a store, but is none. Check it?\n"
    )


def test_a_broken_pipe_of_something_else_is_an_error():
    @click.command()
    @report_errors
    def fail():
        raise BrokenPipeError(32, "Broken pipe", "worker")

    done = CliRunner().invoke(fail)
    assert done.exit_code == 1
    assert "error: [Errno 32] Broken pipe: 'worker'" in done.output
