"""The settings of a fit, without Lightning: options, data, run file, replay of any batch."""
