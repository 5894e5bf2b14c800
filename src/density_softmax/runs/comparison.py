"""What fitted methods say about every set of a comparison: scores, and how sure these are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from density_softmax import metrics
from density_softmax.engine.calibration import predict_features
from density_softmax.methods.base import Method, MethodConfig
from density_softmax.nn.backbones.headless import Headless
from density_softmax.nn.softmax.head import fit_temperature
from density_softmax.serve.batches import ROWS
from density_softmax.training import Values
from density_softmax.types import Prediction

# Every comparison has these two lines.
PLAIN, SCALED = "deterministic", "temperature_scaling"


class Contender(NamedTuple):
    """A line of a comparison.

    Attributes:
        kind: the registry key of the method.
        variant: how its settings deviate from its defaults.
        label: what tables call it.
    """

    kind: str
    variant: str
    label: str


ORACLE = Contender(SCALED, "oracle: T of each set", "Oracle: the temperature of each shift")


@dataclass(frozen=True)
class Fitted:
    """A method after its fit, and what that took."""

    method: Method
    seconds: float

    @property
    def stored_bytes(self) -> int:
        """What it adds to the network."""
        state = self.method.state_dict()
        own = [v for n, v in state.items() if not n.startswith(("encoder.", "head.linear."))]
        return sum(value.numel() * value.element_size() for value in own)


Found = dict[Contender, dict[tuple[str, str], float]]  # by split and metric


class Contest:
    """Fitted methods and the features of every set: from these all numbers follow.

    Args:
        encoder: the network.
        fitted: the methods.
        rows: of every set, as `read_rows` gives them.
        shifts: names of shifted sets.
        ood: names of OOD sets.
        default: the kind of the method that the others are compared with, if it is among them;
            else that is temperature scaling.
        num_resamples: of the bootstrap.
        seed: decides its draws.
    """

    def __init__(
        self,
        encoder: Headless,
        fitted: Mapping[Contender, Fitted],
        rows: Mapping[str, Values],
        shifts: tuple[str, ...],
        ood: tuple[str, ...],
        default: str,
        num_resamples: int,
        seed: int,
    ) -> None:
        self.encoder, self.fitted, self.rows = encoder, fitted, rows
        self.shifts, self.ood = shifts, ood
        self.num_resamples, self.seed = num_resamples, seed
        self.contenders = tuple(self._in_order())
        kinds = {contender.kind: contender for contender in reversed(self.contenders)}
        self.default = kinds.get(default, kinds[SCALED])
        self.found: Found = {contender: {} for contender in self.contenders}
        # By split and metric, the values of every contender in every resample.
        self._resampled: dict[tuple[str, str], dict[Contender, Tensor]] = {}
        self._weights: dict[int, Tensor] = {}

    def results(self) -> Found:
        """All numbers, those of costs apart from latency included."""
        inside = {c: self._predict(c, "iid") for c in self.fitted}
        self._label("iid", {c: p.probs for c, p in inside.items()})
        for split in self.shifts:
            self._label(split, {c: self._predict(c, split).probs for c in self._calibrators()})
            self._label(split, {ORACLE: self._oracle(split)})
        if self.shifts:
            self._average_shifts()
        for split in self.ood:
            self._detect(split, inside)
        self._subtract_default()
        for contender, each in self.fitted.items():
            self.found[contender]["cost", "stored_bytes"] = float(each.stored_bytes)
            self.found[contender]["cost", "train_seconds:fit"] = each.seconds
        return self.found

    def _in_order(self) -> Iterator[Contender]:
        for contender in self.fitted:
            yield contender
            if contender.kind == SCALED and self.shifts:
                yield ORACLE

    def _calibrators(self) -> list[Contender]:
        """Those with probabilities of their own, the plain network among them."""
        return [c for c in self.fitted if "probs" in MethodConfig.members[c.kind].defines]

    def _predict(self, contender: Contender, split: str) -> Prediction:
        return predict_features(self.fitted[contender].method, self.rows[split]["z"], ROWS)

    def _oracle(self, split: str) -> Tensor:
        """Probabilities at the temperature that the labels of a set ask for."""
        device = self.encoder.head.weight.device
        with torch.no_grad():
            logits = self.encoder.logits(self.rows[split]["z"].to(device)).cpu()
        return (logits / fit_temperature(logits, self.rows[split]["y"])).softmax(-1)

    def _label(self, split: str, probs: Mapping[Contender, Tensor]) -> None:
        """What compares probabilities with labels, of those who define probabilities."""
        y, own = self.rows[split]["y"], {*self._calibrators(), ORACLE}
        for contender in (c for c in probs if c in own):
            p = probs[contender]
            values = {m: getattr(metrics, m)(p, y) for m in ("nll", "ece", "accuracy")}
            self.found[contender] |= {(split, name): value for name, value in values.items()}
            weights = self._weights_of(len(y))
            losses = -p.gather(1, y[:, None])[:, 0].clamp_min(torch.finfo(torch.float32).tiny).log()
            self._keep((split, "nll"), contender, metrics.resampled_means(losses, weights))
            self._keep((split, "ece"), contender, metrics.resampled_ece(p, y, weights))

    def _average_shifts(self) -> None:
        """Means over the shifted sets, and how much of the way to the oracle they are."""
        name = _set_name(self.shifts)
        for contender in (*self._calibrators(), ORACLE):
            values = self.found[contender]
            for metric in ("nll", "ece", "accuracy"):
                each = [values[split, metric] for split in self.shifts]
                values[name, f"c{metric}"] = sum(each) / len(each)
            for metric in ("nll", "ece"):
                drawn = [self._resampled[split, metric].pop(contender) for split in self.shifts]
                self._keep((name, f"c{metric}"), contender, torch.stack(drawn).mean(0))
        scaled = next(c for c in self.fitted if c.kind == SCALED)
        start, end = (self.found[c][name, "cnll"] for c in (scaled, ORACLE))
        for contender in (*self._calibrators(), ORACLE) if start > end else ():
            way = (start - self.found[contender][name, "cnll"]) / (start - end)
            self.found[contender][name, "oracle_share"] = way

    def _detect(self, split: str, inside: Mapping[Contender, Prediction]) -> None:
        """How well each method's own score tells an OOD set from the test set."""
        for contender, known in inside.items():
            scores = known.epistemic, self._predict(contender, split).epistemic
            values = {
                "auroc": metrics.auroc(*scores),
                "aupr": metrics.aupr(*scores),
                "fpr95": metrics.fpr95(*scores),
            }
            named = {(split, f"{name}:epistemic"): value for name, value in values.items()}
            self.found[contender] |= named
            weights = self._weights_of(len(scores[0])), self._weights_of(len(scores[1]), 1)
            drawn = metrics.resampled_auroc(*scores, *weights)
            self._keep((split, "auroc:epistemic"), contender, drawn)

    def _subtract_default(self) -> None:
        """Differences from the default method, and between what resampling puts them."""
        for (split, metric), resampled in self._resampled.items():
            for contender in resampled if self.default in resampled else ():
                if contender != self.default:
                    values = [self.found[c][split, metric] for c in (contender, self.default)]
                    low, high = metrics.interval(resampled[contender] - resampled[self.default])
                    found = {"": values[0] - values[1], "_low": low, "_high": high}
                    for end, value in found.items():
                        self.found[contender][split, f"difference{end}:{metric}"] = value

    def _keep(self, key: tuple[str, str], contender: Contender, values: Tensor) -> None:
        self._resampled.setdefault(key, {})[contender] = values

    def _weights_of(self, num_samples: int, other: int = 0) -> Tensor:
        """Weights of resamples; sets of the same size are taken for versions of the same images."""
        key = 2 * num_samples + other
        if key not in self._weights:
            seed = self.seed + key
            found = metrics.resample_weights(num_samples, self.num_resamples, seed)
            self._weights[key] = found
        return self._weights[key]


def _set_name(shifts: Sequence[str]) -> str:
    """What means over shifts are called: the set that all belong to, if there is one."""
    names = {name.partition("/")[0] for name in shifts}
    alone = len(names) == 1 and all("/" in name for name in shifts)
    return names.pop() if alone else "shifts"
