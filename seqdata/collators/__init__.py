"""How ragged columns are laid out as tensors: one file per layout."""
