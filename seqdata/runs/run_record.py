"""Record of a running fit: the path of its run file, and the command that replays a batch."""

from __future__ import annotations

import functools
import os
import platform
import shlex
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from seqdata.errors import warn
from seqdata.host import core_version
from seqdata.runs.locate_batch import FitGeometry
from seqdata.runs.options import DataKind
from seqdata.runs.run_file import NAME, RunFile

_PACKAGES = ("lightning", "torch", "numpy", "pyarrow")


class RunRecord:
    """Record of a running fit.

    Attributes:
        geometry: Start and counts of the fit; None before it begins.
        folder: Log folder of the fit; None if it has none.
    """

    def __init__(self) -> None:
        self.geometry: FitGeometry | None = None
        self.folder: Path | None = None
        self._run_file: RunFile | None = None
        self._path: Path | None = None

    def begin_fit(self, geometry: FitGeometry, folder: Path | None) -> None:
        """Record the start of a fit, which has no run file yet.

        Args:
            geometry: Start and counts of the fit.
            folder: Log folder of the fit; None if it has none.
        """
        self.geometry, self.folder = geometry, folder
        self._run_file = self._path = None

    def keep_run_file(self, run_file: RunFile, folder: Path, *, is_writer: bool) -> None:
        """Write the run file of the fit.

        Args:
            run_file: The file.
            folder: The log folder of the fit.
            is_writer: Whether this rank writes the file; the others only know its path.
        """
        path = folder / NAME
        try:
            if is_writer:
                run_file.write(path)
        except OSError as error:
            warn(
                f"datamodule: {path} cannot be written ({error.strerror or error}), so `seqdata "
                "replay` cannot show batches of this run. Use data.replay(epoch=, batch=) in "
                "this process",
            )
            return
        self._run_file, self._path = run_file, path

    def make_command(self, kind: DataKind, name: str | None, epoch: int, batch: int) -> str:
        """Return the command that replays a batch, or a call if there is no command.

        Args:
            kind: Kind of the data.
            name: Name of the dataset, if there are several.
            epoch: Epoch of the plan.
            batch: Index of the batch in the plan.
        """
        kind_option = {} if kind == "train" else {"kind": kind}
        name_option = {} if name is None else {"name": name}
        data_options = {**kind_option, **name_option}
        if self._path is None or self._run_file is None or self._run_file.list_missing(kind, name):
            call_options = "".join(f", {key}={value!r}" for key, value in data_options.items())
            return f"data.replay(epoch={epoch}, batch={batch}{call_options})"
        options = [word for key, value in data_options.items() for word in (f"--{key}", value)]
        batch_options = ["--epoch", str(epoch), "--batch", str(batch)]
        return shlex.join(
            ["seqdata", "replay", _shorten_path(self._path), *batch_options, *options]
        )


def find_installed_versions() -> Mapping[str, str]:
    """Return the versions of installed packages that batches depend on."""
    versions = {"seqdata": core_version(), "python": platform.python_version()}
    versions.update({name: version for name in _PACKAGES if (version := _version_of(name))})
    return versions


@functools.cache
def _version_of(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed.

    Reading it takes milliseconds, so it is cached.
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _shorten_path(path: Path) -> str:
    """Return a path relative to the working folder if it lies inside, else absolute."""
    absolute = os.path.abspath(path)
    relative = os.path.relpath(absolute)
    return absolute if relative.startswith(os.pardir) else relative
