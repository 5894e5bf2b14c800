"""What Density-Softmax adds to the latency of ERM: eager, folded and exported.

    python benchmarks/overhead.py [--backbones resffn,...] [--density gaussian] [--out DIR]

Both are measured as they are, with everything folded that an export folds, and exported, in turns
as `timing.py` says. The recipes of these networks have the paper's flow; --density puts another
in its place.

Half a percent of a whole pass is less than its noise, so what comes after the encoder, the tail,
is timed too. 1 + (our tail − ERM's) / (ERM's whole pass), all of them medians, is shown twice:
right behind an encoder, which has just emptied the caches, and on stored features, where they are
warm. Of an exported network the tail is a graph of its own, run after the whole. In parentheses
are the interquartile ranges of both tails together, over the same whole pass. Reading layers for
a density is not in the tail: none of the paper's recipes does.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from density_softmax.deploy.folding import fold_all
from density_softmax.methods.base import Method
from density_softmax.metrics import Latency
from density_softmax.nn.densities import DensityConfig
from density_softmax.recipes import prepare
from density_softmax.types import Row
from timing import (
    BACKBONES,
    EAGER,
    FOLDED,
    ONNX,
    Calls,
    Figures,
    add_options,
    as_if_fitted,
    as_rows,
    export_all,
    exported_calls,
    inputs,
    measure_all,
    take_turns,
)
from untrained import ERM, OURS, untrained

FORMS = (EAGER, FOLDED, ONNX)


def main() -> None:
    """Compare the two on one network after another."""
    measure_all(overhead, table, parse())


def overhead(backbone: str, args: argparse.Namespace) -> list[Row]:
    """Density-Softmax against ERM, whole passes and tails."""
    recipe, rows, x = BACKBONES[backbone], list[Row](), inputs(BACKBONES[backbone], args)
    methods = build(recipe, args.density)
    graphs = export_all(methods, x[:2], args.threads, backbone)
    tails = {kind: tail_alone(method) for kind, method in methods.items()}
    z = features(methods[ERM], x)
    tail_graphs = export_all(tails, z[:2], args.threads, f"{backbone}, tail")
    forms = {f"{EAGER}/{kind}": method for kind, method in methods.items()}
    forms |= {f"{FOLDED}/{kind}": folded(method, x[:2]) for kind, method in methods.items()}
    for size in args.batches:
        batch, stored = x[:size], z[:size]
        exported, small = exported_calls(graphs, batch), exported_calls(tail_graphs, stored)
        passes = {name: EagerPass(m, batch) for name, m in forms.items()}
        behind = {name: ExportedPass(exported[name], small[name]) for name in exported}
        warm: Calls = {f"tail {name}": stored_tail(m, batch) for name, m in forms.items()}
        warm_graphs: Calls = {f"tail {name}": call for name, call in small.items()}
        blocks: list[Calls] = [
            {**passes, **warm},
            {**exported, **warm_graphs, **{f"behind {name}": p for name, p in behind.items()}},
        ]
        found = take_turns(blocks, args.seconds, f"{backbone}, batch {size}")
        rows += as_rows(recipe, size, {name: found[name] for name in (*passes, *exported)})
        rows += tail_rows(recipe, size, found, {**passes, **behind})
    return rows


def build(recipe: str, density: str | None) -> dict[str, Method]:
    """Both methods, ours with another density if one is named."""
    changes = [f"method.density={density}"] if density else []
    recipes = {ERM: prepare(recipe, ERM), OURS: prepare(recipe, OURS, changes)}
    return {kind: as_if_fitted(untrained(chosen)) for kind, chosen in recipes.items()}


def folded(method: Method, example: Tensor) -> Method:
    """A copy that computes in torch what an export would."""
    method = copy.deepcopy(method)
    fold_all(method, example)
    return method


def tail_alone(method: Method) -> Method:
    """A copy that is given features."""
    method = copy.deepcopy(method)
    method.encoder = nn.Identity()
    return method


def features(method: Method, x: Tensor) -> Tensor:
    """What the encoder makes of inputs."""
    with torch.no_grad():
        return method.features(x)


class Pass:
    """A call that takes the time of a whole pass and that of its tail."""

    def __init__(self) -> None:
        self.wholes, self.tails = list[float](), list[float]()


class EagerPass(Pass):
    """A forward pass, whose tail begins where the encoder is done."""

    def __init__(self, method: Method, x: Tensor) -> None:
        super().__init__()
        self.method, self.x, self.encoded = method, x, 0.0

    def __call__(self) -> None:
        """One pass."""
        hook = self.method.encoder.register_forward_hook(self._note)
        began = time.perf_counter()
        self.method(self.x)
        done = time.perf_counter()
        hook.remove()
        self.wholes.append(done - began)
        self.tails.append(done - self.encoded)

    def _note(self, *_: object) -> None:
        self.encoded = time.perf_counter()


class ExportedPass(Pass):
    """A whole graph and, right behind it, that of its tail."""

    def __init__(self, whole: Callable[[], object], tail: Callable[[], object]) -> None:
        super().__init__()
        self.whole, self.tail = whole, tail

    def __call__(self) -> None:
        """One pass and its tail."""
        began = time.perf_counter()
        self.whole()
        done = time.perf_counter()
        self.tail()
        self.tails.append(time.perf_counter() - done)
        self.wholes.append(done - began)


def stored_tail(method: Method, x: Tensor) -> Callable[[], object]:
    """What a forward pass does behind its encoder, whose features are there."""
    with torch.inference_mode():
        z = method.features(x)
    tail = copy.copy(method)
    tail.features = lambda x: z  # type: ignore[method-assign]
    return partial(tail, x)


def tail_rows(
    recipe: str, size: int, found: Mapping[str, Latency], passes: Mapping[str, Pass]
) -> list[Row]:
    """What our tail adds to a whole pass of ERM, with cold and with warm caches."""
    rows = []
    for form in FORMS:
        ours, erm = (passes[f"{form}/{kind}"] for kind in (OURS, ERM))
        warm = [found[f"tail {form}/{kind}"] for kind in (OURS, ERM)]
        cold = [Latency(tuple(times)) for times in (ours.tails, erm.tails, erm.wholes)]
        # Single calls beside single calls, turns beside turns: a busy machine treats them unlike.
        measured = {"cold": cold, "warm": [*warm, found[f"{form}/{ERM}"]]}
        for caches, (tail, erm_tail, whole) in measured.items():
            values = {
                "ratio": 1 + (tail.median - erm_tail.median) / whole.median,
                "spread": (tail.high - tail.low + erm_tail.high - erm_tail.low) / whole.median,
                "us": 1e6 * tail.median,
                "us_of_erm": 1e6 * erm_tail.median,
            }
            label = (recipe, OURS, f"runtime={form}", 0, "cost")
            for metric, value in values.items():
                rows.append(Row(*label, f"{caches}_tail_{metric}:{size}", value))
    return rows


def table(rows: Sequence[Row]) -> str:
    """A line per batch size and form, in Markdown."""
    figures = Figures(rows)
    heads = "ERM, ms | Density-Softmax, ms | whole pass | tail behind the encoder | tail alone"
    lines = [f"| batch | both are | rounds | {heads} | / eager ERM |", "|---" * 9 + "|"]
    for size in figures.sizes:
        for form in FORMS:
            cells = [str(size), form, figures.show(OURS, form, f"rounds:{size}", ".0f")]
            cells += [figures.show(k, form, f"latency_ms:{size}", ".4g") for k in (ERM, OURS)]
            for part in ("latency", "cold_tail", "warm_tail"):
                cells.append(figures.ratio(OURS, form, part, size, ".4f"))
            cells.append(figures.show(OURS, form, f"latency_ratio_to_eager:{size}"))
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + f"\n\nThe paper's ratio at batch 1: {figures.paper(OURS)}\n"


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = list(DensityConfig.members)
    parser.add_argument("--density", choices=kinds, help="the recipe's own if not given")
    add_options(parser, batches="1,8,64", out="runs/overhead")
    return parser.parse_args()


if __name__ == "__main__":
    main()
