"""Which packages are there, whether they go together, and which plugins are installed.

Place in the flow: ``seqdata doctor`` asks. Reads: metadata. Makes: findings.
"""

from __future__ import annotations

import importlib
import platform
import re
from collections.abc import Iterator
from importlib import metadata

from seqdata.cli._doctor.finding import Finding
from seqdata.host import PluginInfo, core_version
from seqdata.name_conflict import FIX, foreign_files, foreign_release

_PLACE = "software"
_PACKAGES = ("torch", "numpy", "pyarrow", "PyYAML")
_KNOWN = "2.6"  # of Lightning: where its counters lie is known of this one
_MALICIOUS = ("2.6.2", "2.6.3")  # withdrawn; `import lightning` ran what steals credentials
_SAFE = (2, 6, 6)  # from here on hyperparameters in a checkpoint run no code
_VISION_AHEAD = 15  # torchvision 0.N goes with torch 2.(N - 15)


def software_findings() -> Iterator[Finding]:
    """Say what is installed."""
    yield Finding(_PLACE, "seqdata", "ok", f"{core_version()}, Python {platform.python_version()}")
    for name in _PACKAGES:
        found = version_of(name)
        if found is None:
            yield Finding(_PLACE, name, "bad", "not installed", f"pip install {name}")
        else:
            yield Finding(_PLACE, name, "ok", found)
    yield name_finding()
    versions = [version_of(name) for name in ("lightning", "pytorch-lightning")]
    yield lightning_finding(next((one for one in versions if one in _MALICIOUS), versions[0]))
    torch, vision = version_of("torch"), version_of("torchvision")
    if torch is not None and vision is not None:
        yield vision_finding(torch, vision)


def name_finding() -> Finding:
    """Return whether the import name is ours alone."""
    others = foreign_release()
    if not others:
        return Finding(_PLACE, "import name", "ok", "seqdata is of lightning-seqdata alone")
    files = foreign_files()
    here = f"; in our folder: {', '.join(files)}" if files else ""
    return Finding(
        _PLACE, "import name", "bad" if files else "warn",
        f"{others} has a package of the same name{here}", FIX,
    )  # fmt: skip


def lightning_finding(version: str | None) -> Finding:
    """Say whether Lightning can be used; imports it, since that is what fails."""
    if version is None:
        return Finding(_PLACE, "lightning", "bad", "not installed", "pip install lightning")
    if version in _MALICIOUS:  # which is not imported
        return Finding(
            _PLACE, "lightning", "bad",
            f"{version} was malicious and is withdrawn (GHSA-w37p-236h-pfx3): importing it sends "
            "this machine's credentials away",
            "replace all credentials of this machine, and pip install 'lightning>=2.6.6'",
        )  # fmt: skip
    try:
        importlib.import_module("lightning.pytorch")
    except Exception as error:
        return Finding(
            _PLACE, "lightning", "bad",
            f"{version}, cannot be imported ({type(error).__name__}: {error})",
            "repair what it names; a torchvision that does not go with torch is the usual cause",
        )  # fmt: skip
    numbers = tuple(int(one) for one in re.findall(r"\d+", version)[:3])
    if numbers < _SAFE:
        return Finding(
            _PLACE, "lightning", "warn",
            f"{version}: hyperparameters in a checkpoint can run code when it is loaded "
            "(GHSA-qqmf-gpg7-g8gw)", "pip install 'lightning>=2.6.6'",
        )  # fmt: skip
    if version.startswith(f"{_KNOWN}."):
        return Finding(_PLACE, "lightning", "ok", version)
    return Finding(
        _PLACE, "lightning", "warn", f"{version}: the position of a run is read from counters that "
        f"are known of {_KNOWN}", f"pip install 'lightning~={_KNOWN}.0'",
    )  # fmt: skip


def vision_finding(torch: str, vision: str) -> Finding:
    """Say whether torchvision goes with torch; one that does not breaks ``import lightning``."""
    numbers = [re.match(r"(\d+)\.(\d+)[^+]*(\+\w+)?", one) for one in (torch, vision)]
    if None in numbers:
        return Finding(_PLACE, "torchvision", "note", f"{vision}, beside torch {torch}")
    (_, minor, built), (_, ahead, other) = (one.groups() for one in numbers if one is not None)
    if int(ahead) == int(minor) + _VISION_AHEAD and (other or built) == built:
        return Finding(_PLACE, "torchvision", "ok", vision)
    return Finding(
        _PLACE, "torchvision", "warn", f"{vision} is not made for torch {torch}: it can break "
        "`import lightning`", "pip uninstall torchvision, or install the one of that release",
    )  # fmt: skip


def plugin_findings(plugins: list[PluginInfo]) -> Iterator[Finding]:
    """Say which plugins there are; none is imported."""
    for one in plugins:
        broken = one.state == "broken"
        told = f"{one.name} of {one.distribution} {one.version}".rstrip()
        yield Finding(
            _PLACE, "plugin", "bad" if broken else "ok",
            f"{told}: {one.cause}" if broken else f"{told}, {one.state}",
            "uninstall or repair it; `seqdata plugins --check` says more" if broken else "",
        )  # fmt: skip


def version_of(name: str) -> str | None:
    """Give the version of a package; None: it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
