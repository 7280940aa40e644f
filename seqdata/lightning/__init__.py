"""The integration with Lightning: the only package that imports it."""
