"""Every hook: what a plugin gives through it arrives; it is documented, and has a test here."""

import ast
import inspect
import re
from pathlib import Path

import pytest

from seqdata import hookspecs
from seqdata.hookspecs import hookimpl
from seqdata.host import PluginHost
from seqdata.plan import Plan

HERE = Path(__file__)
PAGE = HERE.parents[1] / "docs" / "about" / "extend" / "hooks.md"
HOOKS = {name: hook for name, hook in vars(hookspecs).items() if hasattr(hook, "seqdata_spec")}


def test_seqdata_register_backends():
    class Plugin:
        @hookimpl
        def seqdata_register_backends(self):
            return {"mine": dict}

    assert PluginHost(plugins=[Plugin()]).backend("mine") is dict


def test_seqdata_register_policies():
    class Plugin:
        @hookimpl
        def seqdata_register_policies(self):
            return {"mine": dict}

    assert PluginHost(plugins=[Plugin()]).policy("mine") is dict


def test_seqdata_register_collators():
    class Plugin:
        @hookimpl
        def seqdata_register_collators(self):
            return {"mine": dict}

    assert PluginHost(plugins=[Plugin()]).collator("mine") is dict


def test_seqdata_register_readers():
    class Plugin:
        @hookimpl
        def seqdata_register_readers(self):
            return {".mine": dict}

    assert PluginHost(plugins=[Plugin()]).reader(".mine") is dict


def test_seqdata_plan_ready():
    seen = []

    class Plugin:
        @hookimpl
        def seqdata_plan_ready(self, plan):
            seen.append(plan)

    plan = Plan([[0, 0, 3]], offsets=[0, 1])
    PluginHost(plugins=[Plugin()]).plan_ready(plan)
    assert len(seen) == 1
    assert seen[0] is plan


def test_there_are_five_hooks():
    assert len(HOOKS) == 5


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_has_a_heading_with_its_exact_signature(name):
    arguments = ", ".join(inspect.signature(HOOKS[name]).parameters)
    headings = re.findall(r"^## `(.+)`$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert f"{name}({arguments})" in headings


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_has_a_test_named_after_it(name):
    tests = [node.name for node in ast.parse(HERE.read_text("utf-8")).body if hasattr(node, "name")]
    assert f"test_{name}" in tests


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_says_when_it_is_called_and_what_happens_when_two_clash(name):
    text = inspect.getdoc(HOOKS[name])
    assert [word for word in ("Called:", "Return:", "Clashes:") if word not in text] == []
