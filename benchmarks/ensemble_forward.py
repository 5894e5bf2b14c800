"""The forward pass of a deep ensemble: one member after another, or stacked under vmap.

Medians over interleaved rounds, relative to one member after another. `stacked` has its weights
stacked beforehand, which an ensemble whose members are trained and saved one by one would have to
do again after every change; `stacked anew` includes that.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from density_softmax.methods.deep_ensemble import DeepEnsemble
from density_softmax.metrics import interleaved_latency, latency_ratio
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.runs.rows import write_rows
from density_softmax.types import Row

NETWORKS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "resffn-12-128": (ResFFN(2, depth=12, width=128), (2,)),
    "wrn-10-2": (WideResNet.Config(depth=10, width=2).build((3, 32, 32)), (3, 32, 32)),
}
CLASSES = 10
REFERENCE = "one after another"


def ways(ensemble: DeepEnsemble, x: Tensor) -> dict[str, Callable[[], Tensor]]:
    """The mean probabilities of a batch, by name of how they are computed."""
    members = list(ensemble.members)
    shape = copy.deepcopy(members[0]).to("meta")

    def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        return functional_call(shape, (parameters, buffers), (x,)).probs

    def stacked(state: tuple[dict[str, Tensor], dict[str, Tensor]]) -> Tensor:
        return vmap(one)(*state).mean(0)

    state = stack_module_state(members)
    return {
        REFERENCE: lambda: ensemble(x).probs,
        "stacked": lambda: stacked(state),
        "stacked anew": lambda: stacked(stack_module_state(members)),
    }


@torch.no_grad()
def measure(name: str, batch_size: int, num_members: int, repeats: int) -> list[Row]:
    """Time relative to one member after another, of every way."""
    network, shape = NETWORKS[name]
    torch.manual_seed(0)
    ensemble = DeepEnsemble(network, CLASSES, DeepEnsemble.Config(num_members=num_members))
    calls = ways(ensemble.eval(), torch.randn(batch_size, *shape))
    for call in calls.values():
        torch.testing.assert_close(call(), calls[REFERENCE](), rtol=0, atol=1e-5)
    ratios = latency_ratio(interleaved_latency(calls, repeats), REFERENCE)
    label = (name, "deep_ensemble")
    return [
        Row(*label, way, 0, "cost", f"latency_ratio:{batch_size}", ratio)
        for way, ratio in ratios.items()
    ]


def main() -> None:
    """Measure, print, and write rows where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="folder for rows.csv")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = [
        row
        for name in NETWORKS
        for batch_size in (1, 32)
        for row in measure(name, batch_size, args.members, args.repeats)
    ]
    for row in rows:
        print(f"{row.recipe:14} {row.metric:18} {row.variant:18} {row.value:6.2f}")
    if args.out is not None:
        write_rows(args.out / "rows.csv", rows)


if __name__ == "__main__":
    main()
