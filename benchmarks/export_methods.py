"""Every method of the paper's tables, exported to ONNX: does it answer as before?

    python benchmarks/export_methods.py [--backbone resffn|cifar_resnet|wide_resnet] [--out DIR]

Weights are untrained, settings are each method's defaults. A method that draws samples is to say
that it cannot be exported.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from rich.progress import track

import density_softmax as ds
from density_softmax.config import from_dict
from density_softmax.errors import UserError
from density_softmax.methods import kinds_of
from density_softmax.methods.base import MethodConfig
from density_softmax.nn.backbones.base import BackboneConfig
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.backbones.resnet import CifarResNet
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.runs.rows import write_rows
from density_softmax.types import Row

BACKBONES: dict[str, tuple[BackboneConfig, tuple[int, ...]]] = {
    "resffn": (ResFFN.Config(depth=2, width=16), (2,)),
    "cifar_resnet": (CifarResNet.Config(depth=8), (3, 16, 16)),
    "wide_resnet": (WideResNet.Config(depth=10, width=1), (3, 16, 16)),
}


def main() -> None:
    """One line per method."""
    args = parse()
    rows: list[Row] = []
    for kind in track(kinds_of("paper"), description=args.backbone):
        line, parity = try_export(kind, args.backbone)
        print(f"{kind:28} {line}")
        name = (f"export/{args.backbone}", kind, "default", 0, "export")
        rows += [Row(*name, f"difference:{size}", value) for size, value in parity.items()]
    if args.out is not None:
        write_rows(args.out / "rows.csv", rows)


def try_export(kind: str, backbone: str) -> tuple[str, dict[int, float]]:
    """What happened, and the largest difference at each batch size."""
    encoder, shape = BACKBONES[backbone]
    torch.manual_seed(0)
    example = torch.randn(8, *shape)
    config = from_dict(MethodConfig, {"kind": kind})
    method = config.build(encoder.build(shape), 10, example).mark_fitted().eval()
    with tempfile.TemporaryDirectory() as folder:
        try:
            exported = ds.export(method, Path(folder) / "model.onnx", example=example)
        except UserError as error:
            expected = "as declared" if method.draws_samples else "FAILED"
            return f"{expected}: {error}", {}
    worst = ", ".join(f"batch {size} {value:.1e}" for size, value in exported.parity.items())
    return worst, dict(exported.parity)


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backbone", choices=BACKBONES, default="resffn")
    parser.add_argument("--out", type=Path, help="folder for rows.csv")
    return parser.parse_args()


if __name__ == "__main__":
    main()
