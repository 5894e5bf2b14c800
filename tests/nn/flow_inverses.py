"""Inverses of flows, which only a proof that they are invertible needs."""

import torch
from torch import Tensor

from density_softmax.nn.densities.flows import AffineCoupling, RadialFlow, RadialLayer, RealNVP


def inverse_of_coupling(coupling: AffineCoupling, kept: Tensor, image: Tensor) -> Tensor:
    """The half that the coupling would move to `image`."""
    s = torch.tanh(coupling.scale(kept))
    return (image - coupling.shift(kept)) * (-s).exp()


def inverse_of_real_nvp(flow: RealNVP, t: Tensor) -> Tensor:
    """The z with s_α(z) = t."""
    kept, moved = t.split(flow.halves, dim=-1)
    if len(flow.couplings) % 2 == 1:
        kept, moved = moved, kept
    for coupling in reversed(flow.couplings):
        kept, moved = moved, kept
        moved = inverse_of_coupling(coupling, kept, moved)
    return torch.cat([kept, moved], dim=-1)


def inverse_of_radial_layer(layer: RadialLayer, t: Tensor) -> Tensor:
    """The z that the layer moves to t: r (r + γ) = ‖t − c‖ (r + α), solved for r."""
    alpha, gamma = layer.reach()
    arm = t - layer.center
    image = torch.linalg.vector_norm(arm, dim=-1)
    half = (image - gamma) / 2
    r = half + (half.square() + alpha * image).sqrt()
    return layer.center + ((alpha + r) / (gamma + r))[..., None] * arm


def inverse_of_radial_flow(flow: RadialFlow, t: Tensor) -> Tensor:
    """The z with s_α(z) = t."""
    for layer in reversed(flow.layers):
        t = inverse_of_radial_layer(layer, t)
    return t
