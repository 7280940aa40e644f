"""What a plugin must offer, checked when it is used."""

import pytest

from seqdata.errors import PluginError
from seqdata.hookspecs import hookimpl
from seqdata.host import PluginHost
from seqdata.plan import Plan
from seqdata.policies.fixed import Fixed


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
        (["mine"], r"`seqdata_register_policies` gave \['mine'\], must give a mapping of names"),
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

    with pytest.raises(PluginError, match=r"plugin 'Raises' .*: KeyError: 'home'; repair"):
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
