"""The hooks of seqdata that a plugin may implement.

Project name and entry-point group are both ``seqdata``. A registration hook takes no arguments and
returns a mapping name -> factory, without doing any work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqdata.plan import Plan
    from seqdata.protocols import CollatorFactory, Opener, PolicyFactory, Reader

SEQDATA_API = 1
"""Level of the hooks and of ``seqdata.backends``. Within a level hooks gain arguments only; a
package that needs a higher level names it in its entry points, and is then refused."""

hookspec = pluggy.HookspecMarker("seqdata")
hookimpl = pluggy.HookimplMarker("seqdata")


@hookspec
def seqdata_register_backends() -> Mapping[str, Opener]:  # type: ignore[empty-body]
    """Return storage backends.

    Called: once per process, when a backend is first looked up by name. Never per batch. Return:
    backend name -> opener ``open(location, *, verify) -> Store``. Clashes: a name offered twice is
    a PluginError that names both modules; nothing wins silently.
    """


@hookspec
def seqdata_register_policies() -> Mapping[str, PolicyFactory]:  # type: ignore[empty-body]
    """Return batching policies.

    Called: once per process, when a policy is first looked up by name. Never in loader workers.
    Return: policy name -> factory. Names are lower-case with hyphens, e.g. ``"token-budget"``.
    Clashes: a name offered twice is a PluginError that names both modules; nothing wins silently.
    """


@hookspec
def seqdata_register_collators() -> Mapping[str, CollatorFactory]:  # type: ignore[empty-body]
    """Return collators.

    Called: once per process, when a collator is first looked up by name. Return: collator name ->
    factory without required arguments. Clashes: a name offered twice is a PluginError that names
    both modules; nothing wins silently.
    """


@hookspec
def seqdata_register_readers() -> Mapping[str, Reader]:  # type: ignore[empty-body]
    """Return input formats of ``seqdata write``.

    Called: once per process, when a format is first looked up by name or by a file's suffix.
    Return: reader name -> reader. A name with a leading dot (``".csv"``) is a suffix. Clashes: a
    name offered twice is a PluginError that names both modules; nothing wins silently.
    """


@hookspec
def seqdata_plan_ready(plan: Plan) -> None:
    """Observe the plan of an epoch.

    Called: in the training process, each time a loader has made a plan, before its first batch.
    Arguments: ``plan``, frozen.
    Return: nothing.
    Clashes: none; all implementations are called, last registered first.
    """
