"""Serving exported models: a Predictor in a process of its own, and the service over HTTP.

    python benchmarks/serving.py [--parts predictor,load,half,overload,kill,soak] [--out DIR]

`predictor`: import time, first answer and throughput of an exported wide ResNet (`--depth`,
`--width`), and the same answers from four threads. The other parts start `density-softmax serve`
with a ResNet-20 on loopback and send single images; both sides share the machine.

`load`: requests per second of 32 clients, with micro-batching (`--batch 32`) and one by one
(`--batch 1`) in turn, for binary tensors, JSON and PNG files; CPU time of service and clients per
request, and how much of it is not the Predictor's. `half`: latency at half of the rate that
was reached. `overload`: five times the rate that can be served, in requests of 16 images: clients
on the same two cores cannot send five times as many single images as a ResNet-20 answers. `kill`:
one of two workers is killed under half of the load. `soak`: `--minutes` at half of the load;
memory, errors, and whether answers are those of the Predictor.

Weights are untrained: nothing here depends on them. `--models DIR` keeps the exported file.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.request import urlopen

import numpy as np
import torch
from PIL import Image

import density_softmax as ds
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.nn.backbones.resnet import CifarResNet
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.runs.rows import write_rows
from density_softmax.serve.predictor import Predictor
from density_softmax.types import Row
from load import Load, binary, drive, request

SHAPE = (3, 32, 32)
NAMES = [f"class{number}" for number in range(10)]
PIXELS = {"kind": "images", "mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
CLIENTS, OVERLOAD = 32, 5
FLOOD, HEAVY = 512, 16  # clients that overload a service, and images of their requests
SETTLED = 60.0  # seconds after which memory is compared
NUM_IMAGES = 64
OUTPUTS = ("probs", "epistemic", "typicality", "label", "action")
PARTS = ("predictor", "load", "half", "overload", "kill", "soak")
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

Numbers = dict[str, float]


def main() -> None:
    """Export, then measure."""
    args, rows = parse(), list[Row]()
    with tempfile.TemporaryDirectory() as folder:
        for part in args.parts:
            name = f"serving/wrn-{args.depth}-{args.width}" if part == "predictor" else "serving"
            for metric, value in MEASURES[part](Path(folder), args).items():
                print(f"{part:10} {metric:44} {value:12.4f}", flush=True)
                rows.append(Row(name, "density_softmax", "default", 0, "cost", metric, value))
    if args.out is not None:
        write_rows(args.out / "rows.csv", rows)


def measure_predictor(folder: Path, args: argparse.Namespace) -> Numbers:
    """The Predictor by itself."""
    file = folder / "wide_resnet.onnx"
    torch.manual_seed(0)
    encoder = WideResNet.Config(args.depth, args.width).build(SHAPE)
    method = DensitySoftmax(encoder, 10).mark_fitted().eval()
    exported = ds.export(method, file, example=torch.randn(2, *SHAPE), progress=True)
    print(f"WRN-{args.depth}-{args.width}: parity {dict(exported.parity)}")
    return start_up(file, args.repeats) | throughput(file, args.requests)


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


def resnet(folder: Path, args: argparse.Namespace) -> Path:
    """A ResNet-20 with what `attach` adds, and a policy, exported once."""
    file = Path(args.models or folder) / "resnet20.onnx"
    if file.exists():
        return file
    torch.manual_seed(0)
    backbone = CifarResNet.Config(depth=20).build(SHAPE)
    head = torch.nn.Linear(64, 10)
    network = torch.nn.Sequential(backbone, head).eval()
    x = torch.randn(1200, *SHAPE)
    with torch.no_grad():  # as many inputs of each class, and sure answers
        features = torch.cat([backbone(part) for part in x.split(100)])
        head.weight *= 20 / head(features).std(0).mean()
        head.bias.copy_(head.bias - head(features).mean(0))
        y = head(features).argmax(1)
    data = [(x[rows], y[rows]) for rows in (slice(500), slice(500, 900), slice(900, None))]
    model = ds.attach(network, train=data[0], calibration=data[1], progress=False)
    policy = ds.Policy.fit(model, data[2], coverage=0.9, false_alarms=0.01)
    ds.export(model, file, example=x[:1], policy=policy, class_names=NAMES, normalisation=PIXELS)
    return file


@contextmanager
def service(file: Path, *options: object) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """A service of a model, and its port."""
    code = "from density_softmax.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", str(file), "--port", "0", *map(str, options)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline().strip().rsplit(":", 1)[1])
    try:
        yield port, process
    finally:
        process.terminate()
        process.wait(90)


def pictures() -> Any:
    """Images as bytes, (images, height, width, channels)."""
    rng = np.random.default_rng(1)
    return np.clip(rng.normal(128, 64, (NUM_IMAGES, 32, 32, 3)), 0, 255).astype(np.uint8)


def forms(predictor: Predictor) -> dict[str, list[bytes]]:
    """The images as requests of every form."""
    path, found = f"/v2/models/{predictor.path.stem}/infer", dict[str, list[bytes]]()
    images = pictures()
    prepared = predictor.prepare(images)
    found["binary"] = [binary(path, "raw", "UINT8", x[None], OUTPUTS) for x in images]
    wanted = [{"name": name} for name in OUTPUTS]
    entry = {"name": "x", "datatype": "FP32", "shape": [1, *SHAPE]}
    bodies = [
        {"inputs": [{**entry, "data": x.reshape(-1).tolist()}], "outputs": wanted} for x in prepared
    ]
    found["json"] = [request(path, json.dumps(b).encode(), "application/json") for b in bodies]
    files = [io.BytesIO() for _ in images]
    for image, file in zip(images, files, strict=True):
        Image.fromarray(image).save(file, "PNG")
    found["png"] = [request("/predict", file.getvalue(), "image/png") for file in files]
    return found


def measure_load(folder: Path, args: argparse.Namespace) -> Numbers:
    """Micro-batching against one by one, in turn, for every form of request."""
    file = resnet(folder, args)
    requests, found = forms(Predictor(file)), alone(file)
    with service(file, "--batch", 32) as together, service(file, "--batch", 1) as single:
        services = {"batched": together, "one_by_one": single}
        for form, bodies in requests.items():
            rounds: dict[str, list[Numbers]] = {name: [] for name in services}
            for number in range(args.rounds + 1):  # the first warms up
                for name, each in services.items():
                    seconds = args.seconds if number else 0.5
                    rounds[name].append(costs(*each, bodies, seconds))
            found |= compare_rounds(form, {name: each[1:] for name, each in rounds.items()})
            both = found[f"service_cpu_ms:{form}:batched"]
            found[f"overhead_cpu_ms:{form}"] = both - found["predictor_cpu_ms:batch32"]
    return found


def costs(
    port: int, process: subprocess.Popen[str], bodies: list[bytes], seconds: float
) -> Numbers:
    """Requests per second of 32 clients, and the CPU time of both sides per request in ms."""
    before, own = _cpu_seconds(process.pid), time.process_time()
    load = drive(port, bodies, CLIENTS, seconds)
    answered = load.statuses[200] / 1000
    return {
        "requests_per_second": load.rate,
        "service_cpu_ms": (_cpu_seconds(process.pid) - before) / answered,
        "clients_cpu_ms": (time.process_time() - own) / answered,
    }


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def compare_rounds(form: str, rounds: dict[str, list[Numbers]]) -> Numbers:
    """Medians of each way to serve, and of the ratios within rounds."""
    found = {
        f"{metric}:{form}:{name}": statistics.median(each[metric] for each in loads)
        for name, loads in rounds.items()
        for metric in loads[0]
    }
    rates = [[each["requests_per_second"] for each in loads] for loads in rounds.values()]
    ratios = [together / single for together, single in zip(*rates, strict=True)]
    found[f"batching_ratio:{form}"] = statistics.median(ratios)
    found[f"batching_ratio:{form}:smallest"] = min(ratios)
    return found


def alone(file: Path) -> Numbers:
    """CPU time of the Predictor without HTTP, in milliseconds per image, on one thread."""
    predictor = Predictor(file, threads=1)
    x, found = predictor.prepare(pictures()), dict[str, float]()
    for size in (1, 32):
        predictor.predict(x[:size])
        times = []
        for _ in range(200 // size):
            began = time.process_time()
            predictor.predict(x[:size])
            times.append((time.process_time() - began) / size)
        found[f"predictor_cpu_ms:batch{size}"] = 1000 * statistics.median(times)
    return found


def saturation(port: int, bodies: list[bytes], seconds: float, clients: int = CLIENTS) -> float:
    """Requests per second that clients in a closed loop get answered."""
    drive(port, bodies, clients, 1.0)
    return drive(port, bodies, clients, seconds).rate


def measure_half(folder: Path, args: argparse.Namespace) -> Numbers:
    """Latency at half of the load that can be served."""
    file = resnet(folder, args)
    bodies = forms(Predictor(file))["binary"]
    with service(file) as (port, _):
        most = saturation(port, bodies, args.seconds)
        loads = [drive(port, bodies, CLIENTS, args.seconds, most / 2) for _ in range(args.rounds)]
    medians = [load.quantile(0.5) for load in loads]
    ratios = [load.quantile(0.99) / load.quantile(0.5) for load in loads]
    return {
        "saturation": most,
        "latency_ms:median": statistics.median(medians),
        "latency_ms:p99": statistics.median(load.quantile(0.99) for load in loads),
        "p99_over_median": statistics.median(ratios),
        "not_answered": sum(n for load in loads for s, n in load.statuses.items() if s != 200),
    }


def measure_overload(folder: Path, args: argparse.Namespace) -> Numbers:
    """Five times the load that can be served: answered or refused, none lost."""
    file, images = resnet(folder, args), pictures()
    parts = [images[i : i + HEAVY] for i in range(0, NUM_IMAGES, HEAVY)]
    bodies = [binary("/v2/models/resnet20/infer", "raw", "UINT8", x, OUTPUTS) for x in parts]
    with service(file, "--max-queue", 8 * HEAVY) as (port, _):
        most = saturation(port, bodies, args.seconds, clients=8)
        load = drive(port, bodies, FLOOD, 4 * args.seconds, OVERLOAD * most)
    sent = sum(load.statuses.values())
    return {
        "saturation": most,
        "sent_over_saturation": sent / load.seconds / most,
        "answered_over_saturation": load.rate / most,
        **{f"answers:{status}": count for status, count in sorted(load.statuses.items())},
        "lost": load.statuses.get(0, 0),
        "latency_ms:median": load.quantile(0.5),
        "latency_ms:p99": load.quantile(0.99),
        "latency_ms:largest": load.quantile(1.0),
    }


def measure_kill(folder: Path, args: argparse.Namespace) -> Numbers:
    """One of two workers is killed under half of the load."""
    file = resnet(folder, args)
    bodies = forms(Predictor(file))["binary"]
    with service(file, "--workers", 2, "--threads", 1) as (port, process):
        time.sleep(5)
        most = saturation(port, bodies, args.seconds)
        before = _monitored(port)
        with ThreadPoolExecutor(1) as pool:
            driven = pool.submit(drive, port, bodies, CLIENTS, 4 * args.seconds, most / 2)
            time.sleep(args.seconds)
            os.kill(_workers(process)[0], signal.SIGKILL)
            load = driven.result()
        time.sleep(3)
        after, alive = _monitored(port), len(_workers(process))
    answered = load.statuses.get(200, 0)
    return {
        "requests": sum(load.statuses.values()),
        "answered": answered,
        "broken_connections": load.statuses.get(0, 0),
        "latency_ms:largest": load.quantile(1.0),
        "workers_after": alive,
        "monitored_inputs_less_answered": after - before - answered,
    }


def _workers(process: subprocess.Popen[str]) -> list[int]:
    pids = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(p) for p in pids if b"spawn_main" in Path(f"/proc/{p}/cmdline").read_bytes()]


def _monitored(port: int) -> int:
    time.sleep(2.5)  # states are written every second
    with urlopen(f"http://127.0.0.1:{port}/monitor", timeout=60) as answer:
        return int(json.load(answer)["monitor"]["inputs"])


def measure_soak(folder: Path, args: argparse.Namespace) -> Numbers:
    """Half of the load for long: errors, memory, and answers beside those of the Predictor."""
    file = resnet(folder, args)
    predictor = Predictor(file)
    bodies, check = forms(predictor)["binary"], compared(_expected(predictor))
    with service(file) as (port, process):
        rate = saturation(port, bodies, args.seconds) / 2
        drive(port, bodies, CLIENTS, SETTLED, rate)
        first, end = _memory(process.pid), time.monotonic() + 60 * args.minutes
        whole, largest = Load(), first
        while (left := end - time.monotonic()) > 0:
            whole.add(drive(port, bodies, CLIENTS, min(30.0, left), rate, check))
            largest = max(largest, _memory(process.pid))
        last = _memory(process.pid)
    with service(file, "--batch", 1) as (port, _):
        single = drive(port, bodies, CLIENTS, 10 * args.seconds, rate / 2, check)
    answered = whole.statuses.get(200, 0)
    return {
        "minutes": args.minutes,
        "requests_per_second": rate,
        "requests": sum(whole.statuses.values()),
        "errors": sum(whole.statuses.values()) - answered,
        "memory_mb:before": first / 2**20,
        "memory_mb:after": last / 2**20,
        "memory_growth": last / first - 1,
        "memory_growth:largest": largest / first - 1,
        "other_labels_or_actions": sum(map(math.isinf, whole.answers)),
        "answers_with_the_same_bits": sum(each == 0 for each in whole.answers) / answered,
        "largest_relative_difference": max(whole.answers),
        "one_by_one:requests": single.statuses.get(200, 0),
        "one_by_one:answers_with_other_bits": sum(each != 0 for each in single.answers),
    }


def _memory(pid: int) -> int:
    """Resident memory in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _expected(predictor: Predictor) -> list[tuple[bytes, bytes]]:
    """The bytes of numbers and texts that answer each image by itself."""
    found = []
    assert predictor.policy is not None
    for image in pictures():
        answer = predictor.predict(predictor.prepare(image[None]))
        decision = predictor.policy(answer)
        arrays = (answer.probs, answer.epistemic, decision.typicality)
        texts = [str(text).encode() for text in (decision.names[0], decision.action[0])]
        numbers = b"".join(array.tobytes() for array in arrays)
        found.append((numbers, b"".join(len(t).to_bytes(4, "little") + t for t in texts)))
    return found


def compared(expected: list[tuple[bytes, bytes]]) -> Callable[[int, bytes], float]:
    """A check of an answer: the largest relative difference, 0 if all bits are the same.

    It is infinite if label or action differ.
    """
    split = 4 * (len(NAMES) + 1)

    def check(number: int, body: bytes) -> float:
        numbers, texts = expected[number]
        if body.endswith(numbers + texts):
            return 0.0
        if not body.endswith(texts):
            return math.inf
        found = body[-len(numbers + texts) : -len(texts)]
        pairs = [
            np.concatenate([np.frombuffer(b[:split], np.float32), np.frombuffer(b[split:])])
            for b in (found, numbers)
        ]
        return float(np.max(np.abs(pairs[0] - pairs[1]) / (1e-6 + np.abs(pairs[1]))))

    return check


MEASURES = dict(
    zip(
        PARTS,
        (
            measure_predictor,
            measure_load,
            measure_half,
            measure_overload,
            measure_kill,
            measure_soak,
        ),
        strict=True,
    )
)


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS))
    parser.add_argument("--depth", type=int, default=28)
    parser.add_argument("--width", type=int, default=10)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=7, help="fresh processes")
    parser.add_argument("--models", help="folder for exported files: read if there, else written")
    parser.add_argument("--rounds", type=int, default=5, help="of each load, in turn")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a round")
    parser.add_argument("--minutes", type=float, default=30.0, help="of the soak")
    parser.add_argument("--out", type=Path, help="folder for rows.csv")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"no part {', '.join(unknown)}; there are: {', '.join(PARTS)}")
    return args


if __name__ == "__main__":
    main()
