"""The Arrow store: manifest, mapped shards, writing, on this machine and remote."""
