"""Serving an exported wide ResNet: import time, throughput, and the same answers from four threads.

    python benchmarks/serving.py [--depth 28 --width 10] [--out DIR]

The weights are untrained: nothing here depends on them. Import time is that of a fresh process
that has a `Predictor` class at hand, and of one that has loaded the model and answered once.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

import density_softmax as ds
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.runs.rows import write_rows
from density_softmax.types import Row

SHAPE = (3, 32, 32)
READY = """
from time import perf_counter
began = perf_counter()
import density_softmax as ds
ds.Predictor
imported = perf_counter()
import numpy as np
ds.Predictor({file!r}).predict(np.zeros((1, 3, 32, 32), np.float32))
import sys
print(imported - began, perf_counter() - began, int("torch" in sys.modules))
"""


def main() -> None:
    """Export, then measure."""
    args = parse()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        torch.manual_seed(0)
        encoder = WideResNet.Config(args.depth, args.width).build(SHAPE)
        method = DensitySoftmax(encoder, 10).mark_fitted().eval()
        exported = ds.export(method, file, example=torch.randn(2, *SHAPE), progress=True)
        print(f"WRN-{args.depth}-{args.width}: parity {dict(exported.parity)}")
        found = start_up(file, args.repeats) | throughput(file, args.requests)
    for metric, value in found.items():
        print(f"{metric:32} {value:10.3f}")
    if args.out is not None:
        name = (f"serving/wrn-{args.depth}-{args.width}", "density_softmax", "default", 0, "cost")
        write_rows(args.out / "rows.csv", [Row(*name, key, value) for key, value in found.items()])


def start_up(file: Path, repeats: int) -> dict[str, float]:
    """Seconds until a fresh process has the class, and until it has answered; medians."""
    times = []
    for _ in range(repeats):
        command = [sys.executable, "-c", READY.format(file=str(file))]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        imported, answered, torch_there = map(float, text.split())
        assert not torch_there, "serving imported torch"
        times.append((imported, answered))
    imported, answered = (statistics.median(values) for values in zip(*times, strict=True))
    return {"import_seconds": imported, "first_answer_seconds": answered}


def throughput(file: Path, num_requests: int) -> dict[str, float]:
    """Requests of one image per second, from one thread and from four, all answers compared."""
    predictor = ds.Predictor(file, threads=1)
    rng = np.random.default_rng(0)
    requests = [rng.normal(size=(1, *SHAPE)).astype(np.float32) for _ in range(num_requests)]
    began = perf_counter()
    alone = [predictor.predict(x) for x in requests]
    single = num_requests / (perf_counter() - began)
    began = perf_counter()
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(predictor.predict, requests))
    several = num_requests / (perf_counter() - began)
    largest = max(
        float(np.abs(a - b).max())
        for ours, theirs in zip(together, alone, strict=True)
        for a, b in zip(ours, theirs, strict=True)
    )
    return {
        "requests_per_second:1_thread": single,
        "requests_per_second:4_threads": several,
        "largest_difference": largest,
    }


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--depth", type=int, default=28)
    parser.add_argument("--width", type=int, default=10)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=7, help="fresh processes")
    parser.add_argument("--out", type=Path, help="folder for rows.csv")
    return parser.parse_args()


if __name__ == "__main__":
    main()
