"""Recurrent states of lanes, kept by the module between the chunks of long sequences."""
