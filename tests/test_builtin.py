"""What the core offers is there: each name of a table leads to something that can be called."""

import pytest

from seqdata import builtin
from seqdata.host import PluginHost
from seqdata.plugin_source import LazyFactories

TABLES = {
    "backend": (builtin.BACKENDS, builtin.seqdata_register_backends),
    "policy": (builtin.POLICIES, builtin.seqdata_register_policies),
    "collator": (builtin.COLLATORS, builtin.seqdata_register_collators),
    "reader": (builtin.READERS, builtin.seqdata_register_readers),
}


@pytest.mark.parametrize("kind", TABLES)
def test_every_name_leads_to_what_it_says(kind):
    table, register = TABLES[kind]
    offered = register()
    assert isinstance(offered, LazyFactories)
    assert list(offered) == list(table)
    for name, path in table.items():
        assert callable(offered[name]), path
        assert path.endswith(f":{offered[name].__qualname__}")


@pytest.mark.parametrize("kind", TABLES)
def test_a_host_without_plugins_has_them(kind):
    host = PluginHost.discover()
    for name in TABLES[kind][0]:
        assert host.find(kind, name) is not None
