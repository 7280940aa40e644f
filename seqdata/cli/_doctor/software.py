"""Checks of the installed packages: versions, compatibility and plugins."""

from __future__ import annotations

import importlib
import platform
import re
from collections.abc import Iterator
from importlib import metadata

from seqdata.cli._doctor.finding import DoctorFinding
from seqdata.host import PluginInfo, core_version
from seqdata.name_conflict import REPAIR_HINT, find_foreign_files, find_foreign_release

_SECTION = "software"
_PACKAGES = ("torch", "numpy", "pyarrow", "PyYAML")
_KNOWN_LIGHTNING = "2.6"  # the version of Lightning whose counters are known
_MALICIOUS = ("2.6.2", "2.6.3")  # withdrawn; `import lightning` stole credentials
_MIN_SAFE_LIGHTNING = (2, 6, 6)  # first version in which hyperparameters cannot run code
_VISION_AHEAD = 15  # torchvision 0.N needs torch 2.(N - 15)


def check_software() -> Iterator[DoctorFinding]:
    """Yield findings about the installed packages."""
    yield DoctorFinding(
        _SECTION, "seqdata", "ok", f"{core_version()}, Python {platform.python_version()}"
    )
    for name in _PACKAGES:
        found = find_version(name)
        if found is None:
            yield DoctorFinding(_SECTION, name, "bad", "not installed", f"pip install {name}")
        else:
            yield DoctorFinding(_SECTION, name, "ok", found)
    yield check_import_name()
    versions = [find_version(name) for name in ("lightning", "pytorch-lightning")]
    yield check_lightning(
        next((version for version in versions if version in _MALICIOUS), versions[0])
    )
    torch, vision = find_version("torch"), find_version("torchvision")
    if torch is not None and vision is not None:
        yield check_torchvision(torch, vision)


def check_import_name() -> DoctorFinding:
    """Return a finding about other packages with the import name ``seqdata``."""
    others = find_foreign_release()
    if not others:
        return DoctorFinding(
            _SECTION, "import name", "ok", "only lightning-seqdata provides seqdata"
        )
    files = find_foreign_files()
    files_text = f"; in our folder: {', '.join(files)}" if files else ""
    return DoctorFinding(
        _SECTION, "import name", "bad" if files else "warn",
        f"{others} provides a package of the same name{files_text}", REPAIR_HINT,
    )  # fmt: skip


def check_lightning(version: str | None) -> DoctorFinding:
    """Return a finding about Lightning; it is imported unless its version is malicious."""
    if version is None:
        return DoctorFinding(_SECTION, "lightning", "bad", "not installed", "pip install lightning")
    if version in _MALICIOUS:  # it is not imported
        return DoctorFinding(
            _SECTION, "lightning", "bad",
            f"{version} was malicious and is withdrawn (GHSA-w37p-236h-pfx3): importing it sends "
            "this machine's credentials away",
            "replace all credentials of this machine, and pip install 'lightning>=2.6.6'",
        )  # fmt: skip
    try:
        importlib.import_module("lightning.pytorch")
    except Exception as error:
        return DoctorFinding(
            _SECTION, "lightning", "bad",
            f"{version} cannot be imported ({type(error).__name__}: {error})",
            "repair what the error names; usually torchvision does not match torch",
        )  # fmt: skip
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    if numbers < _MIN_SAFE_LIGHTNING:
        return DoctorFinding(
            _SECTION, "lightning", "warn",
            f"{version}: hyperparameters in a checkpoint can run code when it is loaded "
            "(GHSA-qqmf-gpg7-g8gw)", "pip install 'lightning>=2.6.6'",
        )  # fmt: skip
    if version.startswith(f"{_KNOWN_LIGHTNING}."):
        return DoctorFinding(_SECTION, "lightning", "ok", version)
    return DoctorFinding(
        _SECTION,
        "lightning",
        "warn",
        (
            f"{version}: the position of a run is read from counters that are known for "
            f"{_KNOWN_LIGHTNING} only"
        ),
        f"pip install 'lightning~={_KNOWN_LIGHTNING}.0'",
    )


def check_torchvision(torch: str, vision: str) -> DoctorFinding:
    """Return a finding about torchvision; if it does not match torch, Lightning may not import."""
    numbers = [re.match(r"(\d+)\.(\d+)[^+]*(\+\w+)?", value) for value in (torch, vision)]
    if None in numbers:
        return DoctorFinding(_SECTION, "torchvision", "note", f"{vision}, with torch {torch}")
    (_, minor, torch_build), (_, ahead, vision_build) = (
        value.groups() for value in numbers if value is not None
    )
    if int(ahead) == int(minor) + _VISION_AHEAD and (vision_build or torch_build) == torch_build:
        return DoctorFinding(_SECTION, "torchvision", "ok", vision)
    return DoctorFinding(
        _SECTION,
        "torchvision",
        "warn",
        f"{vision} does not match torch {torch}: `import lightning` can fail",
        "pip uninstall torchvision, or install the matching release",
    )


def check_plugins(plugins: list[PluginInfo]) -> Iterator[DoctorFinding]:
    """Yield a finding for each installed plugin, without importing it."""
    for plugin in plugins:
        broken = plugin.state == "broken"
        label = f"{plugin.name} of {plugin.distribution} {plugin.version}".rstrip()
        yield DoctorFinding(
            _SECTION, "plugin", "bad" if broken else "ok",
            f"{label}: {plugin.cause}" if broken else f"{label}, {plugin.state}",
            "uninstall or repair it; `seqdata plugins --check` says more" if broken else "",
        )  # fmt: skip


def find_version(name: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
