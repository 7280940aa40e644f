"""The record of a running fit: where its run file lies, and the command that shows a batch of it.

Place in the flow: the DataModule holds one; errors ask it for their last words. Reads: a run file.
Makes: the file, a command.
"""

from __future__ import annotations

import functools
import os
import platform
import shlex
import warnings
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from seqdata.errors import SeqDataWarning
from seqdata.host import core_version
from seqdata.runs.locate_batch import Course
from seqdata.runs.options import Kind
from seqdata.runs.run_file import NAME, RunFile

_PACKAGES = ("lightning", "torch", "numpy", "pyarrow")


class RunRecord:
    """What is known of a fit; before one has begun, the course of one process."""

    def __init__(self) -> None:
        self.course: Course | None = None
        self.folder: Path | None = None
        self._file: RunFile | None = None
        self._path: Path | None = None

    def keep(self, file: RunFile, folder: Path | None, *, writes: bool) -> None:
        """Take note of a fit that begins, and write its file; without a folder there is none.

        Args:
            file: What it was started with.
            folder: Where it logs.
            writes: Whether this rank writes; the others only know where.
        """
        self.course, self.folder = file.course, folder
        self._file, self._path = file, None
        if folder is None:
            return
        path = folder / NAME
        try:
            if writes:
                file.write(path)
        except OSError as error:
            warnings.warn(
                f"datamodule: {path} cannot be written ({error.strerror or error}), must be "
                "writable to replay batches by command; data.replay(epoch=, batch=) does it here",
                SeqDataWarning,
                stacklevel=2,
            )
            return
        self._path = path

    def command(self, kind: Kind, name: str | None, epoch: int, batch: int) -> str:
        """Give what shows one batch: a command, or a call where the command could not.

        Args:
            kind: What it was made for.
            name: Of its data set, where there are several.
            epoch: Of the plan.
            batch: Its number in the plan.
        """
        of_kind = {} if kind == "train" else {"kind": kind}
        of_name = {} if name is None else {"name": name}
        which = {**of_kind, **of_name}
        if self._path is None or self._file is None or self._file.missing_for(kind, name):
            more = "".join(f", {key}={value!r}" for key, value in which.items())
            return f"data.replay(epoch={epoch}, batch={batch}{more})"
        options = [word for key, value in which.items() for word in (f"--{key}", value)]
        asked = ["--epoch", str(epoch), "--batch", str(batch)]
        return shlex.join(["seqdata", "replay", _near(self._path), *asked, *options])


def installed_versions() -> Mapping[str, str]:
    """Give the versions of what decides how batches come out, as far as it is installed."""
    found = {"seqdata": core_version(), "python": platform.python_version()}
    found.update({name: version for name in _PACKAGES if (version := _version_of(name))})
    return found


@functools.cache
def _version_of(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed.

    Reading it takes milliseconds, and it stays while the process runs.
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _near(path: Path) -> str:
    """Give a path as one would type it here."""
    whole = os.path.abspath(path)
    inside = os.path.relpath(whole)
    return whole if inside.startswith(os.pardir) else inside
