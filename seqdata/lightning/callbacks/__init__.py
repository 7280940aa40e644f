"""Callbacks for a Trainer, most of which only observe."""
