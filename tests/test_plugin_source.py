"""What a plugin must offer, checked when it is used."""

import subprocess
import sys

import pytest

from seqdata import plugin_source, write_store
from seqdata.errors import PluginError
from seqdata.hookspecs import hookimpl
from seqdata.host import PluginHost
from seqdata.plan import Plan
from seqdata.policies.fixed import Fixed
from seqdata_testing.waiting import patient


class Given:
    """A plugin as an object."""

    def __init__(self, table):
        self.table = table

    @hookimpl
    def seqdata_register_policies(self):
        return self.table


def test_a_hook_unlike_any_is_refused_with_the_list_of_hooks():
    class Odd:
        @hookimpl
        def before_training(self):
            return {}

    with pytest.raises(PluginError, match="the hooks are seqdata_register_backends, "):
        PluginHost(plugins=[Odd()]).policy("Odd")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            ["mine"],
            r"`seqdata_register_policies` must return a mapping .*, but returned \['mine'\]",
        ),
        ({"mine": 3}, "offers policy 'mine' as 3, which is not callable"),
        (
            {"Mine": dict},
            r"offers policy 'Mine', but names must match \[a-z\]\[a-z0-9_.-\]\{0,63\}",
        ),
        ({".mine": dict}, "offers policy '.mine', but names must match"),
        ({"m" * 65: dict}, "must match"),
        ({"\uff4dine": dict}, "must match"),
        ({3: dict}, "offers policy 3, but names must match"),
        ({"fixed": dict}, "offers policy 'fixed', a name of seqdata's own; rename it"),
        ({"token_budget": dict}, "offers policy 'token_budget', a name of seqdata's own"),
    ],
)
def test_a_table_that_breaks_the_contract_is_refused_when_it_is_used(table, message):
    plugin = Given(table)
    host = PluginHost(plugins=[plugin])
    assert host.policy("fixed") is Fixed
    with pytest.raises(PluginError, match=message):
        host.policy("Given")


def test_a_wrong_table_answers_for_the_names_it_offers():
    host = PluginHost(plugins=[Given({"mine": dict, "worse": 3})])
    with pytest.raises(PluginError, match="offers policy 'worse' as 3, which is not callable"):
        host.policy("mine")


def test_a_wrong_table_breaks_no_other_kind():
    class Half(Given):
        @hookimpl
        def seqdata_register_collators(self):
            return {"mine": dict}

    assert PluginHost(plugins=[Half(["wrong"])]).collator("mine") is dict


def test_a_hook_that_raises_is_refused_with_its_cause():
    class Raises:
        @hookimpl
        def seqdata_register_policies(self):
            raise KeyError("home")

    with pytest.raises(PluginError, match=r"plugin 'Raises' .*: KeyError: 'home'. Repair"):
        PluginHost(plugins=[Raises()]).policy("Raises")


def test_a_refused_plugin_leaves_no_hook_behind():
    seen = []

    class Half:
        @hookimpl
        def seqdata_plan_ready(self, plan):
            seen.append(plan)

        @hookimpl
        def seqdata_register_polices(self):
            return {}

    host = PluginHost(plugins=[Half()])
    with pytest.raises(PluginError, match="implements 'seqdata_register_polices'"):
        host.policy("Half")
    host.plan_ready(Plan([[0, 0, 3]], offsets=[0, 1]))
    assert seen == []
    assert [row.state for row in host.listing()] == ["built in", "broken"]


def test_factories_of_the_core_are_imported_when_they_are_asked_for(monkeypatch):
    asked = []
    monkeypatch.setattr(plugin_source.pkgutil, "resolve_name", lambda path: asked.append(path))
    table = plugin_source.LazyFactories({"a": "m:a", "b": "m:b"})
    assert len(table) == 2
    assert list(table) == ["a", "b"]
    assert "a" in table
    assert "c" not in table
    assert asked == []
    assert table["b"] is None
    assert asked == ["m:b"]


def test_a_store_of_arrow_is_opened_without_the_reader_of_other_files(tmp_path):
    write_store(tmp_path / "store", [{"x": [1.0]}])
    code = (
        "import sys; from seqdata import open_store; open_store(sys.argv[1])\n"
        "print('seqdata.storage.foreign.store' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(), check=True)
    assert done.stdout.strip() == "False"
