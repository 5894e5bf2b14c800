"""What an encoder in 8 bits costs and brings, on a trained CIFAR-10 ResNet.

    python benchmarks/quantization.py --data DIR --weights FILE [--out DIR]

DIR holds `cifar-10-batches-bin/`, `svhn/test_32x32.mat` and `cifar100_prefix.npz`; FILE is a
safetensors file of a CIFAR ResNet with its classifier `linear`. Uncertainty is attached with
part of the test images, as in `posthoc_cifar10.py`; training images give the ranges of the
activations, and the other test images, SVHN and CIFAR-100 say what changed. Density, scale and
head are float32 in both.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.progress import track
from safetensors.torch import load_file

import density_softmax as ds
from cifar_resnet_accuracy import depth_of, load_classifier
from density_softmax.data import ArraySource
from density_softmax.deploy.export import Exported
from density_softmax.deploy.quantization import BATCH_SIZE, batches_of
from density_softmax.engine import EngineConfig
from density_softmax.metrics import interleaved_latency, latency_ratio
from density_softmax.runs.evaluation import detection_metrics, label_metrics
from density_softmax.runs.rows import write_rows
from density_softmax.serve.predictor import Predictor
from density_softmax.types import Prediction, Row, Source
from posthoc_cifar10 import LAYERS, Images

Found = dict[str, dict[str, float]]
BATCH_SIZES = (1, 32)


def main() -> None:
    """Export twice, compare, and write rows and a table."""
    args = parse()
    torch.set_num_threads(args.threads)
    state = load_file(args.weights)
    images = Images(args.data, args.seed, args.images)
    files = export_both(load_classifier(state), images, args)
    served = {name: Predictor(file, args.threads) for name, file in files.items()}
    found = {name: evaluate(model, images, args.images) for name, model in served.items()}
    for name, values in latency(served, args.repeats).items():
        found[name]["cost"] = values | {"bytes": float(files[name].stat().st_size)}
    network = f"resnet{depth_of(state)}"
    found["int8"]["iid"] |= log_density_change(served, images)
    text = table(network, found)
    print(text)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "table.md").write_text(text + "\n", encoding="utf-8")
    write_rows(args.out / "rows.csv", as_rows(network, args.seed, found))


def export_both(
    classifier: torch.nn.Module, images: Images, args: argparse.Namespace
) -> dict[str, Path]:
    """The attached model in float32 and with an encoder in 8 bits."""
    calibration = images.calibration
    model = ds.attach(
        classifier,
        head="1",
        train=images.train,
        calibration=calibration,
        layers=LAYERS,
        engine=EngineConfig(accelerator="cpu", predict_batch_size=500),
    )
    example = next(calibration.read([range(8)], torch.device("cpu"))).x
    files = {name: args.out / f"{name}.onnx" for name in ("float32", "int8")}
    for name, file in files.items():
        exported: Exported = ds.export(
            model,
            file,
            example=example,
            heldout=calibration,
            quantize=images.train if name == "int8" else None,
            progress=True,
        )
        print(f"{name}: parity of the float graph {exported.parity}")
    return files


def evaluate(model: Predictor, images: Images, limit: int | None) -> Found:
    """Metrics on the clean test images and on both OOD sets."""
    clean = ArraySource(images.bytes, images.labels, images.preparation)
    inside = predict(model, clean, None, "cifar10")
    found = {"iid": label_metrics(inside, images.labels)}
    for name, source in images.ood.items():
        found[name] = detection_metrics(inside, predict(model, source, limit, name))
    return found


def predict(model: Predictor, source: Source, limit: int | None, name: str) -> Prediction:
    """Predictions of the first so many samples, or of all."""
    rows = range(len(source))[:limit]
    total = -(-len(rows) // BATCH_SIZE)
    batches = track(batches_of(source, rows), description=name, total=total)
    parts = zip(*(model.predict(x) for x, _ in batches), strict=True)
    return Prediction(*(torch.from_numpy(np.concatenate(part)) for part in parts))


def log_density_change(served: dict[str, Predictor], images: Images) -> dict[str, float]:
    """How far −epistemic moves on the clean test images, and its own deviation."""
    clean = ArraySource(images.bytes, images.labels, images.preparation)
    before, after = (-predict(m, clean, None, n).epistemic for n, m in served.items())
    shift = after - before
    return {
        "log_density_shift": float(shift.mean()),
        "log_density_spread": float(shift.std()),
        "log_density_deviation": float(before.std()),
    }


def latency(served: dict[str, Predictor], repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds of both in turns, and the ratio to float32."""
    found: dict[str, dict[str, float]] = {name: {} for name in served}
    for size in BATCH_SIZES:
        x = np.random.default_rng(0).normal(size=(size, 3, 32, 32)).astype(np.float32)
        calls = {name: partial(model.predict, x) for name, model in served.items()}
        latencies = interleaved_latency(calls, repeats=repeats, warmup=10)
        ratios = latency_ratio(latencies, "float32")
        for name in served:
            found[name][f"latency_ms:{size}"] = 1e3 * latencies[name].median
            found[name][f"latency_ratio:{size}"] = ratios[name]
    return found


def table(network: str, found: dict[str, Found]) -> str:
    """Both models and their difference, in Markdown."""
    numbers = {
        "accuracy": ("iid", "accuracy"),
        "NLL": ("iid", "nll"),
        "ECE": ("iid", "ece"),
        "AUROC SVHN, epistemic": ("svhn", "auroc:epistemic"),
        "AUROC SVHN, entropy": ("svhn", "auroc:entropy"),
        "AUROC CIFAR-100, epistemic": ("cifar100_prefix", "auroc:epistemic"),
        "AUROC CIFAR-100, entropy": ("cifar100_prefix", "auroc:entropy"),
        "latency, batch 1, relative": ("cost", "latency_ratio:1"),
        "latency, batch 32, relative": ("cost", "latency_ratio:32"),
        "file, MB": ("cost", "bytes"),
    }
    lines = [f"| {network} | float32 | int8 | change |", "|---|---|---|---|"]
    for name, (split, metric) in numbers.items():
        unit = 1e6 if metric == "bytes" else 1.0
        before, after = (found[k][split][metric] / unit for k in ("float32", "int8"))
        lines.append(f"| {name} | {before:.4f} | {after:.4f} | {after - before:+.4f} |")
    moved = found["int8"]["iid"]
    shift, spread = moved["log_density_shift"], moved["log_density_spread"]
    own = moved["log_density_deviation"]
    lines.append(
        f"| log density: own deviation, change | {own:.3f} | | {shift:+.3f} ± {spread:.3f} |"
    )
    return "\n".join(lines)


def as_rows(network: str, seed: int, found: dict[str, Found]) -> list[Row]:
    """Every number as a row; the variant is the precision of the encoder."""
    return [
        Row(f"quantization/{network}", "density_softmax", name, seed, split, metric, value)
        for name, splits in found.items()
        for split, values in splits.items()
        for metric, value in values.items()
    ]


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--weights", type=Path, required=True, metavar="FILE")
    parser.add_argument("--out", type=Path, default=Path("runs/quantization"))
    parser.add_argument("--images", type=int, help="of each set; all if not given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=200, help="rounds of the latency")
    return parser.parse_args()


if __name__ == "__main__":
    main()
