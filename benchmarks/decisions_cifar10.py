"""Policies and monitors of trained CIFAR-10 ResNets: what `decisions.py --data` measures."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track
from safetensors.torch import load_file
from scipy.stats import ks_2samp

import density_softmax as ds
from cifar_resnet_accuracy import depth_of, load_classifier
from density_softmax.data import ArraySource
from density_softmax.data.corruptions import corrupt
from density_softmax.decide.conformal import GuaranteeError
from density_softmax.engine import EngineConfig, fit
from density_softmax.engine.passes import collect
from density_softmax.engine.runtime import start
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.nn.backbones.headless import Headless
from density_softmax.nn.softmax.scale import ConstantScale, TemperatureScale
from density_softmax.posthoc import around
from density_softmax.recipes.attach import closed_form
from density_softmax.runs.rows import write_rows
from density_softmax.types import Row, Source
from posthoc_cifar10 import BATCH_SIZE, EXAMPLE, LAYERS, Images

NUM_POLICY, NUM_BEFORE, COVERAGE, FALSE_ALARMS = 2000, 1000, 0.95, 0.01
SEVERITIES, WINDOW = (1, 3, 5), 100
SCORES = ("lac", "aps")
Ints = NDArray[np.int64]
Values = dict[str, float]


class Labelled:
    """Predictions of one method on one set, as arrays."""

    def __init__(self, prediction: ds.Prediction, y: torch.Tensor) -> None:
        self.p = ds.Prediction(*(values.double() for values in prediction))
        self.y = y.numpy()

    def rows(self, chosen: Ints) -> ds.Prediction:
        """The predictions of some rows."""
        return ds.Prediction(*(values[torch.from_numpy(chosen)] for values in self.p))

    def pair(self, chosen: Ints) -> tuple[ds.Prediction, Ints]:
        """Some rows with their labels."""
        return self.rows(chosen), self.y[chosen]

    def __len__(self) -> int:
        return len(self.y)


class Network:
    """A trained network, and its features: the last ones and, behind them, those of layers."""

    def __init__(self, file: Path, engine: EngineConfig) -> None:
        self.state = load_file(file)
        self.name = f"resnet{depth_of(self.state)}"
        self.engine, self.fabric = engine, start(engine)
        self.reader = self.around(closed_form(LAYERS))

    def around(self, config: DensitySoftmax.Config) -> DensitySoftmax:
        """A method that is not fitted yet, around a copy of the network."""
        method = around(Headless(load_classifier(self.state), "1"), config, EXAMPLE)
        assert isinstance(method, DensitySoftmax)
        return method

    def features(self, source: Source) -> ArraySource:
        """Of a set, with its labels."""
        rows = collect(
            self.fabric,
            source,
            lambda batch: {"z": self.reader.features(batch.x), "y": batch.y},
            batch_size=BATCH_SIZE,
        )
        return ArraySource(rows["z"], rows["y"])

    def methods(self, train: Source, calibration: Source) -> dict[str, DensitySoftmax]:
        """Plain softmax, temperature scaling and Density-Softmax, from the same features."""
        base = closed_form(LAYERS)
        known = {"train": self.features(train), "heldout": self.features(calibration)}
        methods = {
            "deterministic": dataclasses.replace(base, scale=ConstantScale.Config(1.0)),
            "temperature_scaling": dataclasses.replace(base, scale=TemperatureScale.Config()),
            "density_softmax": base,
        }
        found = {name: self.around(config) for name, config in methods.items()}
        for method in found.values():
            sets = train, calibration
            fit(method, *sets, features=known, engine=self.engine, progress=False)
        return found


def measure(args: argparse.Namespace) -> None:
    """Measure every network and write rows."""
    torch.set_num_threads(args.threads)
    engine = EngineConfig(accelerator="cpu", predict_batch_size=BATCH_SIZE)
    images = Images(args.data, args.seed, None)
    rows: list[Row] = []
    for file in sorted((args.models or args.data).glob("*.safetensors")):
        rows += _network_rows(Network(file, engine), images, args)
        write_rows(args.out / "rows.csv", rows)
    print(summary(rows))
    print(args.out / "rows.csv")


def _network_rows(network: Network, images: Images, args: argparse.Namespace) -> list[Row]:
    """Every number of one network."""
    train = images.train
    assert isinstance(train, ArraySource)
    train = ArraySource(train.x[: args.train], train.y[: args.train], train.preparation)
    methods = network.methods(train, images.calibration)
    rows: list[Row] = []
    judges: dict[str, Judge] = {}
    kinds = images.corruptions[: args.corruptions]
    total = 2 + len(kinds) * len(SEVERITIES)
    sets = _sets(images, args.images, kinds)
    for split, source in track(sets, description=network.name, total=total):
        features = network.features(source)
        for name, method in methods.items():
            found = Labelled(method.predict_features(features.x), features.y)
            if name not in judges:
                judges[name] = Judge(found, args.repeats, args.seed)
            for metric, value in judges[name].values(split, found).items():
                recipe = f"decisions_cifar10/{network.name}"
                rows.append(Row(recipe, name, "", args.seed, split, metric, value))
    return rows


def _sets(images: Images, count: int | None, kinds: Sequence[str]) -> Iterator[tuple[str, Source]]:
    """Images for the policy and clean ones, then shifted ones of the same rows, then SVHN."""
    kept = images.rows[: None if count is None else NUM_POLICY + count]
    size = len(kept)
    clean, y = images.bytes[:size], images.labels[:size]
    yield "iid", ArraySource(clean, y, images.preparation)
    channels_last = np.ascontiguousarray(clean[NUM_POLICY:].permute(0, 2, 3, 1).numpy())
    for kind in kinds:
        for severity in SEVERITIES:
            changed = corrupt(channels_last, kind, severity, indices=kept[NUM_POLICY:].numpy())
            x = torch.from_numpy(np.ascontiguousarray(changed.transpose(0, 3, 1, 2)))
            yield f"cifar10-c/{kind}/{severity}", ArraySource(x, y[NUM_POLICY:], images.preparation)
    svhn = images.ood["svhn"]
    assert isinstance(svhn, ArraySource)
    size = min(len(svhn), size - NUM_POLICY)
    yield "svhn", ArraySource(svhn.x[:size], svhn.y[:size], images.preparation)


class Judge:
    """The policies and monitors of one method.

    Args:
        iid: predictions of clean images, the first of which fit the policies.
        repeats: streams per shift.
        seed: orders the streams.
    """

    def __init__(self, iid: Labelled, repeats: int, seed: int) -> None:
        first, self.test = np.arange(NUM_POLICY), np.arange(NUM_POLICY, len(iid))
        self.iid, self.repeats, self.seed = iid, repeats, seed
        self.calibration = iid.pair(first)
        self.policies = {
            score: ds.Policy.fit(None, self.calibration, coverage=COVERAGE, score=score)  # type: ignore[arg-type]
            for score in SCORES
        }
        self.policy = ds.Policy.fit(
            None, self.calibration, max_error=0.05, false_alarms=FALSE_ALARMS
        )

    def values(self, split: str, found: Labelled) -> Values:
        """Everything about one set."""
        rows = self.test if split == "iid" else np.arange(len(found))
        values = self.false_alarms() if split == "iid" else self.delays(found)
        values |= self.actions(found.pair(rows), with_labels=split != "svhn")
        if split == "svhn":
            return values
        values |= self.sets(found.pair(rows)) | self.accuracy(found.pair(rows))
        return values if split == "iid" else values | self.weighted(found)

    def sets(self, data: tuple[ds.Prediction, Ints]) -> Values:
        """Coverage and size of sets."""
        values = {}
        for score, policy in self.policies.items():
            sets = policy(data[0]).sets
            assert sets is not None
            values[f"coverage:{score}"] = float(sets[np.arange(len(sets)), data[1]].mean())
            values[f"set_size:{score}"] = float(sets.sum(1).mean())
        return values

    def actions(self, data: tuple[ds.Prediction, Ints], with_labels: bool) -> Values:
        """Shares of actions, and of errors among answers."""
        decided = self.policy(data[0])
        answered = decided.action == "answer"
        values = {f"share:{a}": float((decided.action == a).mean()) for a in ("answer", "unknown")}
        if with_labels and answered.any():
            values["error"] = float((decided.labels != data[1])[answered].mean())
        return values

    def accuracy(self, data: tuple[ds.Prediction, Ints]) -> Values:
        """The estimated accuracy beside the true one."""
        monitor = ds.Monitor(self.policy, window=len(data[1]))
        monitor.update(data[0])
        truth = float((data[0].probs.argmax(1).numpy() == data[1]).mean())
        return {"accuracy": truth, "estimated_accuracy": monitor.accuracy.value}

    def weighted(self, found: Labelled) -> Values:
        """Coverage with weights from one half of the set, on the other; NaN if refused."""
        order = np.random.default_rng(self.seed).permutation(len(found))
        target, test = order[: len(order) // 2], order[len(order) // 2 :]
        values = {}
        for weights in ("classifier", "density"):
            try:
                policy = ds.Policy.fit(
                    None,
                    self.calibration,
                    coverage=COVERAGE,
                    target=found.rows(target),
                    weights=weights,
                )
            except GuaranteeError:
                values[f"coverage:{weights}"] = float("nan")
                continue
            sets = policy(found.rows(test)).sets
            assert sets is not None
            covered = sets[np.arange(len(test)), found.y[test]]
            values[f"coverage:{weights}"] = float(covered.mean())
            values[f"set_size:{weights}"] = float(sets.sum(1).mean())
        return values

    def false_alarms(self) -> Values:
        """The share of streams of clean images that ever raise an alarm."""
        rng, alarms = np.random.default_rng(self.seed), []
        for repeat in range(self.repeats):
            monitor = ds.Monitor(self.policy, FALSE_ALARMS, seed=repeat)
            alarms.append(monitor.update(self.iid.rows(rng.permutation(self.test))))
        return {"alarms": float(np.mean(alarms))}

    def delays(self, found: Labelled) -> Values:
        """Inputs after a change until the alarm, by monitor and by windowed tests: medians."""
        rng = np.random.default_rng(self.seed)
        ours, theirs = [], []
        for repeat in range(self.repeats):
            before = rng.choice(self.test, min(NUM_BEFORE, len(self.test)), replace=False)
            after = rng.permutation(len(found))
            monitor = ds.Monitor(self.policy, FALSE_ALARMS, seed=repeat)
            for data, chosen in ((self.iid, before), (found, after)):
                monitor.update(data.rows(chosen))
            ours.append(_delay(monitor.alarmed_at, len(before)))
            scores = [d.p.epistemic.numpy()[c] for d, c in ((self.iid, before), (found, after))]
            theirs.append(_delay(self.windowed_alarm(np.concatenate(scores)), len(before)))
        return {
            "inputs_to_alarm": float(np.median(ours)),
            "inputs_to_alarm:ks": float(np.median(theirs)),
        }

    def windowed_alarm(self, stream: NDArray[np.float64]) -> int | None:
        """The end of the first window that a Kolmogorov-Smirnov test tells from calibration.

        Windows share the rate of false alarms, so that it is that of the whole stream.
        """
        known = self.calibration[0].epistemic.numpy()
        windows = range(0, len(stream) - WINDOW + 1, WINDOW)
        for begin in windows:
            p_value = ks_2samp(known, stream[begin : begin + WINDOW]).pvalue
            if p_value < FALSE_ALARMS / len(windows):
                return begin + WINDOW
        return None


def _delay(alarmed_at: int | None, before: int) -> float:
    """Inputs from the change to the alarm; infinite if there was none, NaN if it was false."""
    if alarmed_at is None:
        return float("inf")
    return float(alarmed_at - before) if alarmed_at > before else float("nan")


def summary(rows: list[Row]) -> str:
    """Medians over corruptions by severity, without those refused, in Markdown."""
    metrics = list(dict.fromkeys(row.metric for row in rows))
    lines = [f"| set | method | {' | '.join(metrics)} |", "|---" * (len(metrics) + 2) + "|"]
    groups: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in rows:
        parts = row.split.split("/")
        key = parts[0] if len(parts) == 1 else f"severity {parts[2]}"
        groups.setdefault((key, row.method), {}).setdefault(row.metric, []).append(row.value)
    for (key, method), found in groups.items():
        known = {name: [v for v in values if v == v] for name, values in found.items()}
        cells = [f"{np.median(known[m]):.3g}" if known.get(m) else "" for m in metrics]
        lines.append(f"| {key} | {method} | {' | '.join(cells)} |")
    return "\n".join(lines)
