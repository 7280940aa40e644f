"""Print the constraints of the oldest supported environment: lower bounds, but torch as it is.

Lower bounds come from pyproject.toml, all other versions from constraints.txt; what is only needed
by tests and does not go with such old packages is left to pip. Usage::

    python tests/nightly/oldest.py > FILE; PIP_CONSTRAINT=FILE pip install …
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = {"torch"}  # Lightning is what is old: with a torch as old, other things would be tried
OF_TESTS = {"pandas", "pandas-stubs", "matplotlib", "pluggy"}  # pytest needs a newer pluggy
SAME = {"lightning": "pytorch-lightning"}  # goes with it
BOUND = re.compile(r"([\w-]+)>=([\d.]+)(?:,!=[\d.]+)*")


def lower_bounds() -> dict[str, str]:
    """Return the packages that seqdata needs, with the oldest versions that it promises."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = dict(BOUND.fullmatch(one).groups() for one in project["dependencies"])
    found |= {SAME[name]: bound for name, bound in found.items() if name in SAME}
    return {name: bound for name, bound in found.items() if name not in KEPT | OF_TESTS}


def constraints() -> list[str]:
    """Return the lines."""
    oldest = lower_bounds()
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    others = {name: pinned[name] for name in pinned if name.lower() not in oldest.keys() | OF_TESTS}
    return [f"{name}=={one}" for name, one in {**oldest, **others}.items()]


if __name__ == "__main__":
    sys.stdout.write("\n".join(constraints()) + "\n")
