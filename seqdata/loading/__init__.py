"""Executes the share of a rank: reading, transforms, collating, fetching ahead."""
