"""Pictures of data: charts as numbers, drawn by matplotlib or written as inline SVG.

A chart is made once, from lengths and sizes, and drawn by either ``axes`` or ``svg``. Stores,
batches and loaders pass plain arrays and plans, so that nothing here knows them. Only ``axes``
imports matplotlib, when something is drawn.
"""
