"""From what a user names to objects: locations to stores, names to policies and collators.

The one place that composes a plugin host for a process, when a name is first needed; every function
takes another host as an argument. Place in the flow: the first step of every run. Reads: locations
and names. Makes: stores, policies, collators.
"""

from seqdata.opening.data import is_map_style, open_store, store_of
from seqdata.opening.forms import Location, form_of
from seqdata.opening.hosts import default_host
from seqdata.opening.members import POLICY_MEMBERS, STORE_MEMBERS
from seqdata.opening.naming import CollatorLike, resolve_collator, resolve_policy
from seqdata.opening.stores import opener_of
from seqdata.opening.writing import write_store

__all__ = [
    "POLICY_MEMBERS",
    "STORE_MEMBERS",
    "CollatorLike",
    "Location",
    "default_host",
    "form_of",
    "is_map_style",
    "open_store",
    "opener_of",
    "resolve_collator",
    "resolve_policy",
    "store_of",
    "write_store",
]
