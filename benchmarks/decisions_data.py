"""Policies and monitors on real data: CIFAR-10 under corruptions, and queries out of scope.

    python benchmarks/decisions_data.py cifar10 --data DIR [--weights FILE ...] [--choose]
    python benchmarks/decisions_data.py clinc --data clinc150.json

DIR and FILE are as for posthoc_cifar10.py, and the queries as for posthoc_clinc.py. Three methods
read the same network: the plain softmax, temperature scaling (both with their entropy as epistemic
score) and Density-Softmax. One part of the data that the network was not trained on sets
temperature and scale, another fits policies, and the rest is reported.

Predictions are kept in OUT/NETWORK, so that a run that was stopped continues. OUT/rows.csv holds
for every set: coverage and size of sets by score, with weights from half of a shifted set (NaN if
refused) and refitted on it; shares of actions and errors among answers; the estimated beside the
true accuracy, and the two estimates that it is the mean of; inputs until the alarm, beside a
windowed Kolmogorov-Smirnov test at the same rate of false alarms (medians over streams, infinite if
most of them raise none).

With --choose no test image is looked at: half of the calibrating images, and the four corruptions
that CIFAR-10-C calls extra. That is how the estimate of the accuracy was chosen.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track
from safetensors.torch import load_file
from scipy.stats import ks_2samp
from torch import Tensor, nn

import density_softmax as ds
import posthoc_clinc
from cifar_resnet_accuracy import depth_of, load_classifier
from density_softmax.data import ArraySource
from density_softmax.data.corruptions import corrupt
from density_softmax.decide.conformal import GuaranteeError
from density_softmax.engine import EngineConfig, fit, start
from density_softmax.engine.calibration import predict_features
from density_softmax.engine.passes import collect
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.nn.backbones.headless import Headless
from density_softmax.nn.softmax.scale import ConstantScale, TemperatureScale
from density_softmax.posthoc import around
from density_softmax.recipes.attach import closed_form
from density_softmax.runs.rows import write_rows
from density_softmax.types import Row, Source
from posthoc_cifar10 import BATCH_SIZE, LAYERS, Images, first

NUM_POLICY, NUM_BEFORE, NUM_REFIT = 2000, 1000, 500
COVERAGE, MAX_ERROR, FALSE_ALARMS = 0.95, 0.05, 0.01
SEVERITIES, WINDOW = (1, 3, 5), 100
SCORES = ("lac", "aps", "raps")
METHODS = ("deterministic", "temperature_scaling", "density_softmax")
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Values = dict[str, float]


class Labelled(NamedTuple):
    """Predictions of one method on one set, and the labels."""

    probs: Floats
    epistemic: Floats
    y: Ints

    def rows(self, chosen: Any) -> Labelled:
        """Some rows."""
        return Labelled(*(values[chosen] for values in self))

    @property
    def pair(self) -> tuple[Labelled, Ints]:
        """As a policy is fitted to it."""
        return self, self.y


class Network:
    """A trained network with three methods around it.

    Args:
        name: for rows and files.
        model: ends in a linear layer.
        head: the name of that layer.
        layers: names of layers that the density reads.
        train: what the network was trained on.
        calibration: what sets temperature and scale.
        engine: how the network is run.
    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        head: str,
        layers: Sequence[str],
        train: Source,
        calibration: Source,
        engine: EngineConfig,
    ) -> None:
        self.name, self.fabric = name, start(engine)
        self.batch_size = engine.predict_batch_size or BATCH_SIZE
        base, example = closed_form(tuple(layers)), next(train.read([[0]], torch.device("cpu"))).x
        configs = (
            dataclasses.replace(base, scale=ConstantScale.Config(1.0)),
            dataclasses.replace(base, scale=TemperatureScale.Config()),
            base,
        )
        self.methods: dict[str, DensitySoftmax] = {}
        for kind, config in zip(METHODS, configs, strict=True):
            method = around(Headless(model, head), config, example)
            assert isinstance(method, DensitySoftmax)
            self.methods[kind] = method
        known = {"train": self.features(train), "heldout": self.features(calibration)}
        for method in self.methods.values():
            fit(method, train, calibration, features=known, engine=engine, progress=False)

    def features(self, source: Source) -> ArraySource:
        """Of a set, with its labels."""
        reader = self.methods[METHODS[-1]].eval()
        rows = collect(
            self.fabric,
            source,
            lambda batch: {"z": reader.features(batch.x), "y": batch.y},
            batch_size=self.batch_size,
        )
        return ArraySource(rows["z"], rows["y"])

    def predictions(self, source: Source) -> dict[str, Labelled]:
        """Of all methods."""
        features, found = self.features(source), {}
        for kind, method in self.methods.items():
            p = predict_features(method, features.x, self.batch_size)
            score = p.epistemic if kind == METHODS[-1] else p.entropy
            probs, epistemic = (values.double().numpy() for values in (p.probs, score))
            found[kind] = Labelled(probs, epistemic, features.y.numpy())
        return found


Sets = Iterator[tuple[str, Callable[[], Source]]]


def kept(
    folder: Path, network: Callable[[], Network], sets: Sets, total: int
) -> Iterator[tuple[str, dict[str, Labelled]]]:
    """Predictions of all sets, computed unless an earlier run did."""
    made: list[Network] = []
    for split, source in track(sets, description=folder.name, total=total):
        file = folder / f"{split.replace('/', '-')}.npz"
        if not file.exists():
            made = made or [network()]
            found = made[0].predictions(source())
            folder.mkdir(parents=True, exist_ok=True)
            arrays = {f"{k}_{n}": v for k, p in found.items() for n, v in p._asdict().items()}
            np.savez_compressed(file, **arrays)
        with np.load(file) as arrays:
            yield (
                split,
                {k: Labelled(*(arrays[f"{k}_{n}"] for n in Labelled._fields)) for k in METHODS},
            )


def cifar10(args: argparse.Namespace, engine: EngineConfig) -> list[Row]:
    """ResNets under corruptions, and on SVHN."""
    count = None if args.images is None else NUM_POLICY + args.images
    images = Images(args.data, args.seed, count, args.choose)
    num_policy = NUM_POLICY if not args.choose else len(images.rows) // 2
    train = images.train if args.train is None else first(images.train, args.train)
    rows: list[Row] = []
    for file in args.weights or sorted(args.data.glob("*.safetensors")):
        state = load_file(file)
        name = f"resnet{depth_of(state)}{'-choose' * args.choose}"

        def network(state: dict[str, Tensor] = state, name: str = name) -> Network:
            model, sets = load_classifier(state), (train, images.calibration)
            return Network(name, model, "1", LAYERS, *sets, engine)

        total = 2 + len(images.corruptions) * len(SEVERITIES)
        found = kept(args.out / name, network, image_sets(images, num_policy), total)
        rows += judged(f"decisions_cifar10/{name}", found, num_policy, args)
    return rows


def image_sets(images: Images, num_policy: int) -> Sets:
    """Images for the policy and clean ones, then shifted ones of the same rows, then SVHN."""
    yield "iid", lambda: images.test
    later, y = images.rows[num_policy:], images.labels[num_policy:]
    clean = np.ascontiguousarray(images.bytes[num_policy:].permute(0, 2, 3, 1).numpy())
    for kind in images.corruptions:
        for severity in SEVERITIES:

            def shifted(kind: str = kind, severity: int = severity) -> Source:
                changed = corrupt(clean, kind, severity, indices=later.numpy())
                x = torch.from_numpy(np.ascontiguousarray(changed.transpose(0, 3, 1, 2)))
                return ArraySource(x, y, images.preparation)

            yield f"cifar10-c/{kind}/{severity}", shifted
    if "svhn" in images.ood:
        yield "svhn", lambda: first(images.ood["svhn"], len(y))


def clinc(args: argparse.Namespace, engine: EngineConfig) -> list[Row]:
    """Queries behind a sentence encoder, and some that belong to no intent."""
    sets = posthoc_clinc.vectors(args)
    x, y = sets["val"]
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(args.seed))
    first, second = order[: len(y) // 2], order[len(y) // 2 :]
    train, calibration = ArraySource(*sets["train"]), ArraySource(x[first], y[first])
    test, strange = sets["test"], sets["oos_test"]

    def network() -> Network:
        model = posthoc_clinc.trained(*sets["train"], args.hidden)
        head = str(len(model) - 1)
        return Network("clinc", model, head, (), train, calibration, engine)

    def known() -> Source:
        return ArraySource(torch.cat([x[second], test[0]]), torch.cat([y[second], test[1]]))

    name = "hidden" if args.hidden else "linear"
    splits = iter([("iid", known), ("out of scope", lambda: ArraySource(*strange))])
    found = kept(args.out / name, network, splits, 2)
    return judged(f"decisions_clinc/{name}", found, len(second), args)


def judged(
    recipe: str,
    found: Iterator[tuple[str, dict[str, Labelled]]],
    num_policy: int,
    args: argparse.Namespace,
) -> list[Row]:
    """Every number about every set."""
    rows: list[Row] = []
    judges: dict[str, Judge] = {}
    for split, predictions in found:
        for name, each in predictions.items():
            if name not in judges:
                judges[name] = Judge(each, num_policy, args.repeats, args.seed)
            values = judges[name].values(split, each)
            rows += [Row(recipe, name, "", args.seed, split, *value) for value in values.items()]
    return rows


class Judge:
    """The policies and monitors of one method.

    Args:
        iid: predictions of clean inputs, the first of which fit the policies.
        num_policy: how many do.
        repeats: streams per shift.
        seed: orders the streams.
    """

    def __init__(self, iid: Labelled, num_policy: int, repeats: int, seed: int) -> None:
        self.calibration = iid.rows(slice(num_policy))
        self.iid = iid.rows(slice(num_policy, None))
        self.repeats, self.seed = repeats, seed
        self.policies = {score: self.fitted(coverage=COVERAGE, score=score) for score in SCORES}
        self.policies["classwise"] = self.fitted(coverage=COVERAGE, classwise=True)
        self.policy = self.fitted(max_error=MAX_ERROR, false_alarms=FALSE_ALARMS)

    def fitted(self, **promises: Any) -> ds.Policy:
        """A policy of the calibration samples."""
        return ds.Policy.fit(None, self.calibration.pair, **promises)

    def values(self, split: str, found: Labelled) -> Values:
        """Everything about one set."""
        if split == "iid":
            found = self.iid
            return self.false_alarms() | self.labelled(found)
        values = self.delays(found) | self.shares(found)
        if split in ("svhn", "out of scope"):  # whose labels are of other classes
            return values
        return values | self.labelled(found) | self.restored(found)

    def labelled(self, found: Labelled) -> Values:
        """What needs labels: coverage, errors among answers, and accuracies."""
        values = self.shares(found)
        for name, policy in self.policies.items():
            values |= _covered(name, policy, found)
        decided = self.policy(found)
        answered = decided.action == "answer"
        if answered.any():
            values["error"] = float((decided.labels != found.y)[answered].mean())
        monitor = ds.Monitor(self.policy, window=len(found.y))
        monitor.update(found)
        low, high = monitor.accuracy.low, monitor.accuracy.high
        reliability = self.policy.reliability
        mean, share = reliability.estimates(reliability.sums(found.probs.max(1)))
        truth = float((found.probs.argmax(1) == found.y).mean())
        return values | {
            "accuracy": truth,
            "estimated_accuracy": monitor.accuracy.value,
            "estimated_accuracy:mean": mean,
            "estimated_accuracy:share": share,
            "accuracy_in_interval": float(low <= truth <= high),
        }

    def shares(self, found: Labelled) -> Values:
        """Shares of actions."""
        action = self.policy(found).action
        return {f"share:{a}": float((action == a).mean()) for a in ("answer", "abstain", "unknown")}

    def restored(self, found: Labelled) -> Values:
        """Coverage on one part of a set after the other was seen: without labels, and with some."""
        order = np.random.default_rng(self.seed).permutation(len(found.y))
        cut = len(order) // 2
        seen, test = found.rows(order[:cut]), found.rows(order[cut:])
        values: Values = {}
        for weights in ("classifier", "density"):
            try:
                policy = self.fitted(coverage=COVERAGE, target=seen, weights=weights)
            except GuaranteeError:
                values[f"coverage:{weights}"] = float("nan")
                continue
            values |= _covered(weights, policy, test)
            values[f"effective:{weights}"] = policy.sets.quantiles.effective  # type: ignore[union-attr]
        labelled = seen.rows(slice(NUM_REFIT))
        return values | _covered("refit", self.policies["lac"].refit(labelled.pair), test)

    def false_alarms(self) -> Values:
        """The share of streams of clean inputs that ever raise an alarm."""
        rng, alarms = np.random.default_rng(self.seed), []
        for repeat in range(self.repeats):
            monitor = ds.Monitor(self.policy, FALSE_ALARMS, seed=repeat)
            alarms.append(monitor.update(self.iid.rows(rng.permutation(len(self.iid.y)))))
        return {"alarms": float(np.mean(alarms))}

    def delays(self, found: Labelled) -> Values:
        """Inputs after a change until the alarm, by monitor and by windowed tests: medians."""
        rng = np.random.default_rng(self.seed)
        ours, theirs = [], []
        for repeat in range(self.repeats):
            before = self.iid.rows(rng.permutation(len(self.iid.y))[:NUM_BEFORE])
            after = found.rows(rng.permutation(len(found.y)))
            monitor = ds.Monitor(self.policy, FALSE_ALARMS, seed=repeat)
            monitor.update(before)
            monitor.update(after)
            ours.append(_delay(monitor.alarmed_at, len(before.y)))
            stream = np.concatenate([before.epistemic, after.epistemic])
            theirs.append(_delay(self.windowed_alarm(stream), len(before.y)))
        medians = float(np.nanmedian(ours)), float(np.nanmedian(theirs))
        return dict(zip(("inputs_to_alarm", "inputs_to_alarm:ks"), medians, strict=True))

    def windowed_alarm(self, stream: Floats) -> int | None:
        """The end of the first window that a Kolmogorov-Smirnov test tells from calibration.

        Windows share the rate of false alarms, so that it is that of the whole stream.
        """
        windows = range(0, len(stream) - WINDOW + 1, WINDOW)
        for begin in windows:
            window = stream[begin : begin + WINDOW]
            p_value = ks_2samp(self.calibration.epistemic, window, method="asymp").pvalue
            if p_value < FALSE_ALARMS / len(windows):
                return begin + WINDOW
        return None


def _covered(name: str, policy: ds.Policy, found: Labelled) -> Values:
    """Coverage and size of sets; of the class that is covered least, too."""
    sets = policy(found).sets
    assert sets is not None
    covered = sets[np.arange(len(sets)), found.y]
    counts = np.bincount(found.y)
    worst = (np.bincount(found.y, covered)[counts > 0] / counts[counts > 0]).min()
    values = {"coverage": covered.mean(), "set_size": sets.sum(1).mean(), "worst_class": worst}
    return {f"{key}:{name}": float(value) for key, value in values.items()}


def _delay(alarmed_at: int | None, before: int) -> float:
    """Inputs from the change to the alarm; infinite if there was none, NaN if it was false."""
    if alarmed_at is None:
        return float("inf")
    return float(alarmed_at - before) if alarmed_at > before else float("nan")


def summary(rows: list[Row]) -> str:
    """Means over corruptions by severity (medians of inputs until the alarm), in Markdown."""
    metrics = list(dict.fromkeys(row.metric for row in rows if "worst" not in row.metric))
    lines = [f"| set | method | {' | '.join(metrics)} |", "|---" * (len(metrics) + 2) + "|"]
    groups: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in rows:
        parts = row.split.split("/")
        key = parts[0] if len(parts) == 1 else f"severity {parts[2]}"
        groups.setdefault((key, row.method), {}).setdefault(row.metric, []).append(row.value)
    for (key, method), found in groups.items():
        known = {name: [v for v in values if v == v] for name, values in found.items()}
        cells = [_cell(m, known[m]) if known.get(m) else "" for m in metrics]
        lines.append(f"| {key} | {method} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *errors_of_estimates(rows)])


def _cell(metric: str, values: list[float]) -> str:
    middle = np.median if metric.startswith("inputs") else np.mean
    return f"{middle(values):.3g}"


def errors_of_estimates(rows: list[Row]) -> list[str]:
    """The mean absolute error of the estimated accuracy over all shifted sets, by method."""
    values = {(row.recipe, row.method, row.split, row.metric): row.value for row in rows}
    found: dict[tuple[str, ...], list[float]] = {}
    for (recipe, method, split, metric), value in values.items():
        if metric.startswith("estimated_accuracy") and "/" in split:
            error = abs(value - values[recipe, method, split, "accuracy"])
            found.setdefault((recipe, method, metric), []).append(error)
    return [
        f"{', '.join(names)}: mean absolute error {np.mean(errors):.4f}, largest {max(errors):.3f}"
        for names, errors in found.items()
    ]


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=["cifar10", "clinc"])
    parser.add_argument("--data", type=Path, required=True, metavar="PATH")
    parser.add_argument("--weights", type=Path, nargs="*", metavar="FILE")
    parser.add_argument("--encoder", type=Path, metavar="FOLDER")
    parser.add_argument("--hidden", type=int, default=0, help="width of a hidden layer; 0 for none")
    parser.add_argument("--choose", action="store_true", help="report no test image")
    parser.add_argument("--train", type=int, help="training images to read; all if not given")
    parser.add_argument("--images", type=int, help="images to report on; all if not given")
    parser.add_argument("--repeats", type=int, default=20, help="streams per shift")
    parser.add_argument("--out", type=Path, default=Path("runs/decisions"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def main() -> None:
    """Measure, print and write rows."""
    args = parse()
    torch.set_num_threads(args.threads)
    engine = EngineConfig(accelerator="cpu", predict_batch_size=BATCH_SIZE)
    rows = {"cifar10": cifar10, "clinc": clinc}[args.kind](args, engine)
    file = args.out / f"{args.kind}.csv"
    write_rows(file, rows)
    print(summary(rows))
    print(file)


if __name__ == "__main__":
    main()
