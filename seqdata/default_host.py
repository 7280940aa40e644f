"""The plugin host of a process.

Place in the flow: names are looked up here where no other host is given. Makes: a host.
"""

from __future__ import annotations

import functools

from seqdata.host import PluginHost


@functools.cache
def default_host() -> PluginHost:
    """Return the host of this process; made at the first call, over the installed plugins."""
    return PluginHost.discover()
