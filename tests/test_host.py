"""The plugin host against real modules and real metadata on a temporary path."""

import logging
import sys
import textwrap
from importlib import metadata
from pathlib import Path

import pytest

from seqdata.errors import PluginError
from seqdata.hookspecs import SEQDATA_API, hookimpl
from seqdata.host import PluginHost
from seqdata.plan import Plan
from seqdata.policies.fixed import Fixed
from seqdata.policies.token_budget import TokenBudget

HEAD = "from seqdata.hookspecs import hookimpl\n\n"
POLICY = HEAD + "@hookimpl\ndef seqdata_register_policies():\n    return NAMES\n"


class Install:
    """Lays distributions with entry points on a temporary folder of ``sys.path``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, distribution, version, points, **modules):
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        lines = [f"{name} = {module}" for name, module in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[seqdata]", *lines]) + "\n")
        for name, source in modules.items():
            (self.folder / f"{name}.py").write_text(textwrap.dedent(source))


@pytest.fixture
def install(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield Install(tmp_path)
    for name in set(sys.modules) - before:
        if name.startswith("acme"):
            del sys.modules[name]


def offering(*names):
    return POLICY.replace(
        "NAMES", repr(dict.fromkeys(names, dict)).replace("<class 'dict'>", "dict")
    )


class Given:
    """A plugin as an object."""

    def __init__(self, table):
        self.table = table

    @hookimpl
    def seqdata_register_policies(self):
        return self.table


def test_the_core_offers_its_own_by_the_same_hooks():
    host = PluginHost()
    assert host.policy("token-budget") is TokenBudget
    assert host.policy("fixed") is Fixed
    assert {"bucketed", "fixed", "sorted", "token-budget"} <= set(host.names("policy"))


def test_a_plugin_given_in_code_is_found_by_name():
    assert PluginHost(plugins=[Given({"mine": dict})]).policy("mine") is dict


def test_an_installed_plugin_is_imported_only_when_its_name_is_needed(install):
    install("seqdata-acme", "0.2", {"acme": "acme_one"}, acme_one=offering("acme"))
    host = PluginHost.discover(environ={})
    host.policy("fixed")
    host.listing()
    assert "acme_one" not in sys.modules
    assert host.policy("acme") is dict
    assert "acme_one" in sys.modules


@pytest.mark.parametrize("name", ["acme", "acme-fast", "acme.fast"])
def test_a_name_imports_only_the_entry_point_it_begins_with(install, name):
    install("seqdata-acme", "0.2", {"acme": "acme_one"}, acme_one=offering(name))
    install("seqdata-other", "0.1", {"other": "acme_two"}, acme_two=offering("other"))
    assert PluginHost.discover(environ={}).policy(name) is dict
    assert "acme_two" not in sys.modules


def test_a_name_unlike_its_entry_point_is_found_among_all(install):
    install("seqdata-acme", "0.2", {"acme": "acme_one"}, acme_one=offering("spiral"))
    assert PluginHost.discover(environ={}).policy("spiral") is dict


def test_an_unknown_name_suggests_a_near_one_and_says_what_failed(install):
    install("seqdata-acme", "0.2", {"acme": "acme_one"}, acme_one="import acme_missing")
    with pytest.raises(PluginError) as caught:
        PluginHost.discover(environ={}).policy("tokenbudget")
    assert str(caught.value) == (
        "unknown policy 'tokenbudget'; did you mean 'token-budget'? Installed: bucketed, "
        "curriculum, fixed, mix, packed, segments, sorted, tbptt, token-budget, weighted, windows, "
        "zip. One plugin failed to load: seqdata-acme 0.2 "
        "(ModuleNotFoundError: No module named 'acme_missing')."
    )


def test_an_unknown_name_without_a_near_one_lists_what_is_installed(install):
    install("seqdata-acme", "0.2", {"acme": "acme_one"}, acme_one="1 / 0")
    install("seqdata-other", "0.1", {"other": "acme_two"}, acme_two="import sys; sys.exit(3)")
    with pytest.raises(PluginError) as caught:
        PluginHost.discover(environ={}).policy("zzz")
    message = str(caught.value)
    assert "unknown policy 'zzz'; choose one that is installed. Installed: bucketed," in message
    assert "2 plugins failed to load: " in message
    assert "seqdata-acme 0.2 (ZeroDivisionError: division by zero)" in message
    assert "seqdata-other 0.1 (ended the process when imported (SystemExit: 3))" in message


def test_a_broken_plugin_is_raised_with_its_place_when_its_own_name_is_needed(install):
    install("seqdata-acme", "0.2", {"acme": "acme_one"}, acme_one="import acme_missing")
    host = PluginHost.discover(environ={})
    with pytest.raises(PluginError, match=r"seqdata-acme 0\.2 \(entry point 'acme', module") as e:
        host.policy("acme")
    assert e.value.details == {
        "distribution": "seqdata-acme",
        "version": "0.2",
        "module": "acme_one",
        "cause": "ModuleNotFoundError: No module named 'acme_missing'",
    }
    assert isinstance(e.value.__cause__, ModuleNotFoundError)
    assert host.policy("fixed") is Fixed


def test_a_broken_plugin_breaks_no_other(install):
    install("seqdata-acme", "0.2", {"acme": "acme_one"}, acme_one="raise RuntimeError('no')")
    install("seqdata-other", "0.1", {"other": "acme_two"}, acme_two=offering("odd"))
    assert PluginHost.discover(environ={}).policy("odd") is dict


def test_two_plugins_with_one_name_are_an_error_that_names_both(install):
    install("seqdata-acme", "0.2", {"acme": "acme_one"}, acme_one=offering("same"))
    install("seqdata-other", "0.1", {"other": "acme_two"}, acme_two=offering("same", "odd"))
    host = PluginHost.discover(environ={})
    with pytest.raises(PluginError) as caught:
        host.policy("same")
    message = str(caught.value)
    assert message.startswith("policy 'same' is offered by seqdata-")
    assert "seqdata-acme 0.2 (module 'acme_one')" in message
    assert "seqdata-other 0.1 (module 'acme_two')" in message
    assert "must be offered by one: uninstall the others, or choose with SEQDATA_PLUGINS" in message
    assert host.policy("odd") is dict


def test_names_that_look_alike_clash():
    host = PluginHost(plugins=[Given({"my-way": dict}), Given({"my_way": list})])
    with pytest.raises(PluginError, match=r"policy 'my-way' is offered by plugin 'Given'"):
        host.policy("my-way")


def test_two_distributions_with_one_entry_point_name_are_an_error_that_names_both(install):
    install("seqdata-acme", "0.2", {"same": "acme_one"}, acme_one=offering("one"))
    install("seqdata-other", "0.1", {"same": "acme_two"}, acme_two=offering("two"))
    host = PluginHost.discover(environ={})
    with pytest.raises(PluginError, match="entry point 'same' is offered by") as caught:
        host.policy("same")
    assert "seqdata-acme 0.2" in str(caught.value)
    assert "seqdata-other 0.1" in str(caught.value)
    assert "acme_one" not in sys.modules
    assert host.policy("fixed") is Fixed


def test_a_hook_that_asks_for_too_much_is_refused_when_it_is_used(install):
    source = HEAD + "@hookimpl\ndef seqdata_register_policies(host):\n    return {}\n"
    install("seqdata-acme", "0.2", {"acme": "acme_one"}, acme_one=source)
    host = PluginHost.discover(environ={})
    with pytest.raises(PluginError, match=r"Argument\(s\) {'host'} are declared") as caught:
        host.policy("acme")
    assert "seqdata-acme 0.2 (entry point 'acme', module 'acme_one'): " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_misspelt_hook_is_refused_with_the_one_that_was_meant(install):
    source = HEAD + "@hookimpl\ndef seqdata_register_polices():\n    return {}\n"
    install("seqdata-acme", "0.2", {"acme": "acme_one"}, acme_one=source)
    with pytest.raises(
        PluginError,
        match=r"implements 'seqdata_register_polices', which is not a hook of seqdata; did you "
        "mean 'seqdata_register_policies'",
    ):
        PluginHost.discover(environ={}).policy("acme")


def test_a_plugin_without_hooks_is_refused(install):
    install("seqdata-acme", "0.2", {"acme": "acme_one"}, acme_one="def seqdata_register(): ...")
    with pytest.raises(PluginError, match=r"must have a function marked with `seqdata\.hookimpl`"):
        PluginHost.discover(environ={}).policy("acme")


def test_one_module_under_two_entry_points_is_refused_once(install):
    install(
        "seqdata-acme", "0.2", {"acme": "acme_one", "twin": "acme_one"}, acme_one=offering("odd")
    )
    host = PluginHost.discover(environ={})
    assert host.policy("odd") is dict
    with pytest.raises(PluginError, match=r"is the same object as 'acme of seqdata-acme 0\.2'"):
        host.policy("twin")


def test_a_reader_may_be_named_by_a_file_ending():
    class Readers:
        @hookimpl
        def seqdata_register_readers(self):
            return {".npz": list, "npz": list}

    host = PluginHost(plugins=[Readers()])
    assert host.reader(".npz") is list
    assert host.reader("npz") is list


def test_an_ending_imports_the_entry_point_of_its_name(install):
    source = HEAD + "@hookimpl\ndef seqdata_register_readers():\n    return {'.acme': list}\n"
    install("seqdata-acme", "0.2", {"acme": "acme_one"}, acme_one=source)
    assert PluginHost.discover(environ={}).reader(".acme") is list


def test_a_name_that_comes_from_data_imports_no_other_plugin(install):
    install("seqdata-acme", "0.2", {"acme": "acme_one"}, acme_one=offering("odd"))
    host = PluginHost.discover(environ={})
    assert host.find("reader", ".log", everywhere=False) is None
    assert "acme_one" not in sys.modules
    assert host.find("reader", ".log") is None
    assert "acme_one" in sys.modules


def test_checking_imports_every_plugin_and_finds_what_is_broken(install):
    install("seqdata-acme", "0.2", {"acme": "acme_one"}, acme_one=offering("acme"))
    install("seqdata-bad", "0.1", {"bad": "acme_two"}, acme_two=offering("Bad Name"))
    rows = {row.name: row for row in PluginHost.discover(environ={}).check()}
    assert rows["acme"].state == "loaded"
    assert rows["bad"].state == "broken"
    assert "offers policy 'Bad Name', but names must match" in rows["bad"].cause


def test_the_environment_may_limit_which_plugins_are_loaded(install):
    install("seqdata-acme", "0.2", {"acme": "acme_one"}, acme_one=offering("one"))
    install("seqdata-other", "0.1", {"other": "acme_two"}, acme_two=offering("two"))
    host = PluginHost.discover(environ={"SEQDATA_PLUGINS": "acme,third"})
    assert host.policy("one") is dict
    with pytest.raises(PluginError, match=r"SEQDATA_PLUGINS excludes: .*seqdata-other 0\.1[.,]"):
        host.policy("two")
    assert "acme_two" not in sys.modules
    by_distribution = PluginHost.discover(environ={"SEQDATA_PLUGINS": "seqdata-other"})
    assert by_distribution.policy("two") is dict
    assert {
        row.state for row in PluginHost.discover(environ={"SEQDATA_PLUGINS": ""}).listing()
    } == {
        "built in",
        "off",
    }


def test_the_listing_is_made_from_metadata_and_remembers_what_broke(install):
    install("seqdata-acme", "0.2", {"acme": "acme_one"}, acme_one=offering("acme"))
    install("seqdata-other", "0.1", {"other": "acme_two"}, acme_two="1 / 0")
    host = PluginHost.discover(environ={})
    rows = {row.name: row for row in host.listing()}
    assert rows["core"].state == "built in"
    assert rows["acme"].distribution == "seqdata-acme"
    assert rows["acme"].version == "0.2"
    assert rows["acme"].module == "acme_one"
    assert {rows["acme"].state, rows["other"].state} == {"installed"}
    assert "acme_one" not in sys.modules
    host.policy("acme")
    with pytest.raises(PluginError):
        host.policy("other")
    rows = {row.name: row for row in host.listing()}
    assert rows["acme"].state == "loaded"
    assert rows["other"].state == "broken"
    assert rows["other"].cause == "ZeroDivisionError: division by zero"


def test_hook_calls_can_be_traced(install, caplog):
    install("seqdata-acme", "0.2", {"acme": "acme_one"}, acme_one=offering("acme"))
    caplog.set_level(logging.INFO, logger="seqdata.plugins")
    PluginHost.discover(environ={}).policy("acme")
    assert not caplog.records
    PluginHost.discover(environ={"SEQDATA_TRACE_PLUGINS": "1"}).policy("acme")
    text = [record.getMessage() for record in caplog.records]
    assert "seqdata_register_policies() of acme of seqdata-acme 0.2" in text
    assert any(line.startswith("seqdata_register_policies returned [{'acme'") for line in text)


def test_a_traced_hook_that_raises_is_logged(caplog):
    class Raises:
        @hookimpl
        def seqdata_register_policies(self):
            raise KeyError("home")

    with pytest.raises(PluginError):
        PluginHost(plugins=[Raises()], trace=True).policy("Raises")
    assert "seqdata_register_policies raised KeyError('home')" in caplog.text


class Observer:
    def __init__(self, name, seen):
        self.name, self.seen = name, seen

    @hookimpl
    def seqdata_plan_ready(self, plan):
        self.seen.append((self.name, len(plan)))


def test_seqdata_plan_ready_reaches_all_observers_last_registered_first():
    seen = []
    host = PluginHost(plugins=[Observer("first", seen), Observer("last", seen)])
    host.plan_ready(Plan([[0, 0, 3]], offsets=[0, 1]))
    assert seen == [("last", 1), ("first", 1)]


def test_an_observer_that_fails_is_an_error_with_its_place():
    class Fails:
        @hookimpl
        def seqdata_plan_ready(self, plan):
            raise ValueError(f"{len(plan)} batches are too few")

    host = PluginHost(plugins=[Fails()])
    with pytest.raises(PluginError, match=r"'Fails'.*: ValueError: 1 batches are too few"):
        host.plan_ready(Plan([[0, 0, 3]], offsets=[0, 1]))


def test_an_installed_observer_is_used_if_the_environment_names_it(install):
    source = HEAD + "SEEN = []\n\n@hookimpl\ndef seqdata_plan_ready(plan):\n    SEEN.append(plan)\n"
    install("seqdata-acme", "0.2", {"acme": "acme_one"}, acme_one=source)
    plan = Plan([[0, 0, 3]], offsets=[0, 1])
    PluginHost.discover(environ={}).plan_ready(plan)
    assert "acme_one" not in sys.modules
    PluginHost.discover(environ={"SEQDATA_PLUGINS": "acme"}).plan_ready(plan)
    (seen,) = sys.modules["acme_one"].SEEN
    assert seen is plan


def test_registration_hooks_are_asked_once_and_in_a_fixed_order():
    calls = []

    def recording(name):
        class Recorded:
            @hookimpl
            def seqdata_register_backends(self):
                calls.append((name, "backends"))
                return {f"{name}-backend": dict}

            @hookimpl
            def seqdata_register_policies(self):
                calls.append((name, "policies"))
                return {f"{name}-policy": dict}

            @hookimpl
            def seqdata_register_collators(self):
                calls.append((name, "collators"))
                return {f"{name}-collator": dict}

            @hookimpl
            def seqdata_register_readers(self):
                calls.append((name, "readers"))
                return {f"{name}-reader": dict}

        return Recorded()

    host = PluginHost(plugins=[recording("a"), recording("b")])
    for _ in range(2):
        host.policy("b-policy")
        host.collator("a-collator")
        host.backend("a-backend")
        host.reader("b-reader")
    kinds = ["policies", "collators", "backends", "readers"]
    assert calls == [(name, kind) for kind in kinds for name in ("a", "b")]


def test_metadata_is_read_when_a_name_is_not_the_cores_own(install, monkeypatch):
    install("seqdata-acme", "0.2", {"acme": "acme_one"}, acme_one=offering("acme"))
    asked = []
    entry_points = metadata.entry_points
    monkeypatch.setattr(
        metadata, "entry_points", lambda **by: asked.append(by) or entry_points(**by)
    )
    host = PluginHost.discover(environ={})
    assert host.policy("fixed")
    host.plan_ready(Plan([], offsets=[0]))
    assert not asked
    assert host.policy("acme") is dict
    assert host.policy("acme") is dict
    assert len(asked) == 1


class TestLevels:
    """A package says in its metadata which level of the hooks it needs."""

    def lay(self, install, level):
        install("acme-levels", "1.0", {"acme": "acme_levels"}, acme_levels=offering("acme-a"))
        (info,) = install.folder.glob("*.dist-info")
        points = (info / "entry_points.txt").read_text()
        (info / "entry_points.txt").write_text(f"{points}\n[seqdata.api]\n{level} = acme\n")
        return PluginHost.discover(environ={})

    def test_the_level_of_this_release_is_taken(self, install):
        host = self.lay(install, SEQDATA_API)
        assert host.policy("acme-a") is dict
        assert {row.name: row.api for row in host.listing()}["acme"] == SEQDATA_API

    def test_a_higher_level_is_refused_without_an_import(self, install):
        host = self.lay(install, SEQDATA_API + 1)
        text = r"acme-levels 1.0 .*: needs level 2 of the hooks \(`SEQDATA_API`\), but seqdata "
        with pytest.raises(PluginError, match=text + r".* has 1. Update lightning-seqdata"):
            host.policy("acme-a")
        assert "acme_levels" not in sys.modules
        (row,) = [row for row in host.listing() if row.name == "acme"]
        assert (row.state, row.api) == ("broken", 2)

    @pytest.mark.parametrize("level", ["0", "new"])
    def test_what_is_no_level_is_refused(self, level, install):
        with pytest.raises(
            PluginError,
            match=f"must be a level of the hooks, an integer of at least 1, but is '{level}'",
        ):
            self.lay(install, level).policy("acme-a")


def test_offers_are_listed_from_the_text_of_a_module_without_an_import(install):
    text = HEAD + (
        "@hookimpl\ndef seqdata_register_backends():\n    return {'acme-x': 1, 'acme-y': 2}\n\n"
        "@hookimpl\ndef seqdata_register_readers():\n    return TABLE\n"
    )
    install("acme-offers", "1.0", {"acme": "acme_offers"}, acme_offers=text)
    (row,) = [row for row in PluginHost.discover(environ={}).listing() if row.name == "acme"]
    assert row.offers == {"backend": ["acme-x", "acme-y"], "reader": []}
    assert "acme_offers" not in sys.modules


@pytest.mark.parametrize("text", ["def (", "\0"])
def test_a_module_that_cannot_be_parsed_has_no_offers(text, install):
    install("acme-text", "1.0", {"acme": "acme_text", "gone": "acme_gone.inner"}, acme_text=text)
    rows = {row.name: row.offers for row in PluginHost.discover(environ={}).listing()}
    assert rows["acme"] == rows["gone"] == {}


def test_offers_of_the_packages_here_are_known():
    rows = {row.name: row.offers for row in PluginHost.discover(environ={}).listing()}
    assert rows["tokens"] == {"backend": ["tokens"]}
    assert rows["arrays"] == {"backend": ["hdf5", "numpy", "zarr"]}
