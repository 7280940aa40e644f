"""What a thing must have to be taken for a store or a policy.

Place in the flow: whatever plugins and users give is looked at here first. Makes: nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

POLICY_MEMBERS = ("axis", "num_batches", "plan")
STORE_MEMBERS = ("base_numbers", "fields", "fingerprint", "keys", "lengths", "lengths_of", "read")


def missing_members(obj: object, members: Iterable[str]) -> list[str]:
    """Return the members that a thing does not have."""
    present = set(dir(obj))  # not hasattr: it would compute properties
    return [member for member in members if member not in present]
