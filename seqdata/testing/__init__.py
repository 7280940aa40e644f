"""The conformance kit: what every policy, store and loader must keep, as checks to call.

``plans`` and ``shares`` check policies, ``lanes`` those that deal by rows, ``stores`` backends and
``loaders`` whole loaders; ``generators`` makes hypothesis strategies of the inputs worth trying.
Nothing here needs pytest.
"""
