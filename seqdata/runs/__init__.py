"""What a fit was asked for, without Lightning: options, data, run file, replay of any batch."""
