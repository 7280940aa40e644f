"""Deferred weight gradients: a backward pass computes gradients of inputs first, of weights later.

The weight gradient of a layer is one matrix product over all rows and timesteps after the scan, and
no other stage needs it. A stage therefore sends the gradient of its inputs at once, and computes
weight gradients when it would otherwise be idle. (Qi et al. 2024, "Zero bubble pipeline
parallelism", arXiv 2401.10241.) ``nn.LSTM`` computes both together, so this module implements the
scan, with the equations of torch.
Place in the flow: below ``stack``. Reads: layers of torch. Makes: the same gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class WeightGradients:
    """Matrix products of a backward pass whose weight gradients are not computed yet."""

    def __init__(self) -> None:
        self._products: dict[int, tuple[Tensor, Tensor | None, list[tuple[Tensor, Tensor]]]] = {}

    def multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return ``x @ weight.T + bias``, as ``torch.nn.functional.linear`` does.

        The backward pass computes the gradient of ``x`` only, and notes the product.
        """
        out: Tensor = _Product.apply(x, weight, bias, self)  # type: ignore[no-untyped-call]
        return out

    def note(self, weight: Tensor, bias: Tensor | None, x: Tensor, gradient: Tensor) -> None:
        """Note a product, for the gradients of its weight and bias.

        Args:
            weight: (out, in).
            bias: (out,), or None.
            x: (..., in), input of the product.
            gradient: (..., out), gradient of the product.
        """
        pair = x.reshape(-1, x.shape[-1]), gradient.reshape(-1, gradient.shape[-1])
        self._products.setdefault(id(weight), (weight, bias, []))[2].append(pair)

    def take(self) -> Callable[[], None]:
        """Return a function that adds the gradients of all noted weights; clear the notes."""
        products, self._products = self._products, {}

        def add() -> None:
            with torch.no_grad():
                for weight, bias, pairs in products.values():
                    x, gradient = (
                        torch.cat(values).to(weight.dtype) for values in zip(*pairs, strict=True)
                    )
                    if weight.requires_grad:
                        _accumulate(weight, gradient.T @ x)
                    if bias is not None and bias.requires_grad:
                        _accumulate(bias, gradient.sum(0))

        return add


class DeferredLinear:
    """Linear layer with a deferred weight gradient.

    Args:
        linear: Layer that has the weights.
        weights: Object that keeps the products until their weight gradients are computed.
    """

    def __init__(self, linear: nn.Linear, weights: WeightGradients) -> None:
        self._linear, self._weights = linear, weights

    def __call__(self, x: Tensor) -> Tensor:
        """Return the output of the layer, (..., out_features)."""
        return self._weights.multiply(x, self._linear.weight, self._linear.bias)


class DeferredLayer:
    """Layer of an LSTM, GRU or RNN with deferred weight gradients.

    One product computes all inputs before the scan. In the scan, each timestep has one product of
    the state.

    Args:
        layer: Module of one layer with ``batch_first=True``, which has the weights.
        weights: Object that keeps the products until their weight gradients are computed.
    """

    def __init__(self, layer: nn.RNNBase, weights: WeightGradients) -> None:
        self._layer, self._weights = layer, weights
        steps: dict[str, Callable[..., Any]] = {"LSTM": self._step_lstm, "GRU": self._step_gru}
        self._step = steps.get(layer.mode, self._step_rnn)

    def __call__(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Run rows of equal length.

        Args:
            x: (p, T, input_size) float.
            state: (1, p, size) float, or a pair (h, c) for an LSTM; None: zeros.

        Returns:
            Outputs, (p, T, size) float, and the state after the last timestep.
        """
        gates = self._multiply("ih", x)  # (p, T, gates x hidden)
        h, c = state if isinstance(state, tuple) else (state, None)
        h = self._make_zeros(x, self._layer.proj_size) if h is None else h[0]
        c = (self._make_zeros(x, 0) if c is None else c[0]) if self._layer.mode == "LSTM" else None
        outputs = []
        for gate in gates.unbind(1):
            h, c = self._step(gate, h, c)
            outputs.append(h)
        end = h[None] if c is None else (h[None], c[None])
        return torch.stack(outputs, dim=1), end

    def _step_lstm(self, gate: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f, g, o = (gate + self._multiply("hh", h)).chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return (self._multiply("hr", h) if self._layer.proj_size else h), c

    def _step_gru(self, gate: Tensor, h: Tensor, _: None) -> tuple[Tensor, None]:
        xr, xz, xn = gate.chunk(3, dim=1)
        hr, hz, hn = self._multiply("hh", h).chunk(3, dim=1)
        z = torch.sigmoid(xz + hz)
        n = torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
        return n + z * (h - n), None

    def _step_rnn(self, gate: Tensor, h: Tensor, _: None) -> tuple[Tensor, None]:
        total = gate + self._multiply("hh", h)
        return (torch.tanh if self._layer.mode == "RNN_TANH" else torch.relu)(total), None

    def _multiply(self, name: str, x: Tensor) -> Tensor:
        weight = getattr(self._layer, f"weight_{name}_l0")
        return self._weights.multiply(x, weight, getattr(self._layer, f"bias_{name}_l0", None))

    def _make_zeros(self, x: Tensor, size: int) -> Tensor:
        return x.new_zeros(len(x), size or self._layer.hidden_size)


class _Product(torch.autograd.Function):
    """A linear map whose backward pass leaves its weights to ``WeightGradients``."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, weights: WeightGradients
    ) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.weights = weights
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight, bias = ctx.saved_tensors
        ctx.weights.note(weight, bias, x, gradient)
        gradient = gradient.to(weight.dtype)  # autocast has another
        return (gradient @ weight if ctx.needs_input_grad[0] else None), None, None, None


def _accumulate(parameter: Tensor, gradient: Tensor) -> None:
    gradient = gradient.to(parameter.dtype)
    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
