"""Packages that claim suffixes for a format, as if they were installed."""

import sys

import pytest

from seqdata.host import default_host
from tests.storage.conftest import bucket, faulty, remote, s3, server  # noqa: F401

MODULE = """
from seqdata.backends import hookimpl
from tests.storage.indexed.records import Records

@hookimpl
def seqdata_register_backends():
    return {"NAME": Records()}
"""


@pytest.fixture
def claimed(tmp_path, monkeypatch):
    """Install a package that claims `.recs` for the format; returns what installs another."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def install(name, *suffixes):
        (site / f"a_plugin_{name}.py").write_text(MODULE.replace("NAME", name))
        info = site / f"seqdata_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: seqdata-{name}\nVersion: 1.0\n"
        )
        claims = "".join(f"{suffix} = {name}\n" for suffix in suffixes)
        (info / "entry_points.txt").write_text(
            f"[seqdata]\n{name} = a_plugin_{name}\n[seqdata.suffixes]\n{claims}"
        )
        default_host.cache_clear()

    install("records", ".recs")
    yield install
    default_host.cache_clear()
    for module in [name for name in sys.modules if name.startswith("a_plugin_")]:
        del sys.modules[module]
