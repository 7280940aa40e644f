"""Statistics that are fitted on the training view: exact, mergeable, and saved with the model."""
