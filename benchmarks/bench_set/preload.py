"""Imported once, before the processes of the loaders are forked: what all of them need."""

import torch  # noqa: F401
from peers.asking import let_torchvision_load

let_torchvision_load()

import lightning.pytorch.profilers  # noqa: E402, F401
