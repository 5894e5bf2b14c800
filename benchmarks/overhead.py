"""What Density-Softmax adds to the latency of ERM, in torch and exported.

    python benchmarks/overhead.py [--backbones resffn,...] [--density gaussian] [--out DIR]

Both are measured in turns, as `timing.py` describes. The recipes of these networks use the paper's
flow; --density replaces it.

Half a percent of a whole pass is less than its noise, so the rest of a pass, all that follows the
encoder, is timed too. The overhead 1 + (our rest − ERM's) / (ERM's whole pass), all of them
medians, is shown twice: cold, right after an encoder, which has just emptied the caches, and warm,
on stored features. The rest of an exported network is a graph of its own, run after the whole. In
parentheses are the interquartile ranges of both rests together, over the same whole pass. Reading
layers for a density is not counted: none of the paper's recipes does so.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from density_softmax.methods.base import Method
from density_softmax.metrics import Latency
from density_softmax.nn.densities import DensityConfig
from density_softmax.recipes import prepare
from density_softmax.types import Row
from timing import (
    BACKBONES,
    EAGER,
    ONNX,
    Calls,
    Numbers,
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

FORMS = (EAGER, ONNX)


def main() -> None:
    """Compare the two on one network after another."""
    measure_all(overhead, table, parse())


def overhead(backbone: str, args: argparse.Namespace) -> list[Row]:
    """Density-Softmax against ERM, whole passes and what follows the encoder."""
    recipe, rows, x = BACKBONES[backbone], list[Row](), inputs(BACKBONES[backbone], args)
    methods = build(recipe, args.density)
    graphs = export_all(methods, x[:2], args.threads, backbone)
    rests = {kind: rest_alone(method) for kind, method in methods.items()}
    z = features(methods[ERM], x)
    rest_graphs = export_all(rests, z[:2], args.threads, f"{backbone}, rest")
    forms = {f"{EAGER}/{kind}": method for kind, method in methods.items()}
    for size in args.batches:
        batch, stored = x[:size], z[:size]
        exported, small = exported_calls(graphs, batch), exported_calls(rest_graphs, stored)
        passes = {name: EagerPass(m, batch) for name, m in forms.items()}
        behind = {name: ExportedPass(exported[name], small[name]) for name in exported}
        warm: Calls = {f"rest {name}": stored_rest(m, batch) for name, m in forms.items()}
        warm_graphs: Calls = {f"rest {name}": call for name, call in small.items()}
        blocks: list[Calls] = [
            {**passes, **warm},
            {**exported, **warm_graphs, **{f"behind {name}": p for name, p in behind.items()}},
        ]
        found = take_turns(blocks, args.seconds, f"{backbone}, batch {size}")
        rows += as_rows(recipe, size, {name: found[name] for name in (*passes, *exported)})
        rows += rest_rows(recipe, size, found, {**passes, **behind})
    return rows


def build(recipe: str, density: str | None) -> dict[str, Method]:
    """Both methods, ours with another density if one is named."""
    changes = [f"method.density={density}"] if density else []
    recipes = {ERM: prepare(recipe, ERM), OURS: prepare(recipe, OURS, changes)}
    return {kind: as_if_fitted(untrained(chosen)) for kind, chosen in recipes.items()}


def rest_alone(method: Method) -> Method:
    """A copy whose inputs are features."""
    method = copy.deepcopy(method)
    method.encoder = nn.Identity()
    return method


def features(method: Method, x: Tensor) -> Tensor:
    """What the encoder makes of inputs."""
    with torch.no_grad():
        return method.features(x)


class Pass:
    """A call that takes the time of a whole pass and that of its rest."""

    def __init__(self) -> None:
        self.wholes, self.rests = list[float](), list[float]()


class EagerPass(Pass):
    """A forward pass, whose rest begins where the encoder is done."""

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
        self.rests.append(done - self.encoded)

    def _note(self, *_: object) -> None:
        self.encoded = time.perf_counter()


class ExportedPass(Pass):
    """A whole graph and, right behind it, that of its rest."""

    def __init__(self, whole: Callable[[], object], rest: Callable[[], object]) -> None:
        super().__init__()
        self.whole, self.rest = whole, rest

    def __call__(self) -> None:
        """One pass and its rest."""
        began = time.perf_counter()
        self.whole()
        done = time.perf_counter()
        self.rest()
        self.rests.append(time.perf_counter() - done)
        self.wholes.append(done - began)


def stored_rest(method: Method, x: Tensor) -> Callable[[], object]:
    """What a forward pass does behind its encoder, whose features are there."""
    with torch.inference_mode():
        z = method.features(x)
    rest = copy.copy(method)
    rest.features = lambda x: z  # type: ignore[method-assign]
    return partial(rest, x)


def rest_rows(
    recipe: str, size: int, found: Mapping[str, Latency], passes: Mapping[str, Pass]
) -> list[Row]:
    """What our rest adds to a whole pass of ERM, with cold and with warm caches."""
    rows = []
    for form in FORMS:
        ours, erm = (passes[f"{form}/{kind}"] for kind in (OURS, ERM))
        warm = [found[f"rest {form}/{kind}"] for kind in (OURS, ERM)]
        cold = [Latency(tuple(times)) for times in (ours.rests, erm.rests, erm.wholes)]
        # Single calls beside single calls, turns beside turns: a busy machine treats them unlike.
        measured = {"cold": cold, "warm": [*warm, found[f"{form}/{ERM}"]]}
        for caches, (rest, erm_rest, whole) in measured.items():
            values = {
                "ratio": 1 + (rest.median - erm_rest.median) / whole.median,
                "spread": (rest.high - rest.low + erm_rest.high - erm_rest.low) / whole.median,
                "us": 1e6 * rest.median,
                "us_of_erm": 1e6 * erm_rest.median,
            }
            label = (recipe, OURS, f"runtime={form}", 0, "cost")
            for metric, value in values.items():
                rows.append(Row(*label, f"{caches}_overhead_{metric}:{size}", value))
    return rows


def table(rows: Sequence[Row]) -> str:
    """A line per batch size and form, in Markdown."""
    numbers = Numbers(rows)
    columns = "ERM, ms | Density-Softmax, ms | whole pass | overhead, cold | overhead, warm"
    lines = [f"| batch | both are | rounds | {columns} | / eager ERM |", "|---" * 9 + "|"]
    for size in numbers.sizes:
        for form in FORMS:
            cells = [str(size), form, numbers.show(OURS, form, f"rounds:{size}", ".0f")]
            cells += [numbers.show(k, form, f"latency_ms:{size}", ".4g") for k in (ERM, OURS)]
            for part in ("latency", "cold_overhead", "warm_overhead"):
                cells.append(numbers.ratio(OURS, form, part, size, ".4f"))
            cells.append(numbers.show(OURS, form, f"latency_ratio_to_eager:{size}"))
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + f"\n\nThe paper's ratio at batch 1: {numbers.paper(OURS)}\n"


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
