"""How long a prediction of every method takes, relative to ERM: eager, and in onnxruntime.

    python benchmarks/latency.py [--backbones resffn,...] [--methods all|a,b] [--out DIR]

The paper's ratios stand beside ours; `timing.py` says how they are measured. What Density-Softmax
adds to ERM is in `overhead.py`, more exactly.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

from rich.progress import track

from density_softmax.recipes import get_recipe
from density_softmax.report.names import method_name
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
from untrained import chosen_methods, untrained


def main() -> None:
    """Compare all methods on one network after another."""
    measure_all(compare, table, parse())


def compare(backbone: str, args: argparse.Namespace) -> list[Row]:
    """Every method eager and, where it can be, exported."""
    recipe, rows = BACKBONES[backbone], list[Row]()
    kinds = track(args.methods, description=f"{backbone}: build")
    methods = {kind: as_if_fitted(untrained(get_recipe(recipe, kind))) for kind in kinds}
    x = inputs(recipe, args)
    served = export_all(methods, x[:2], args.threads, backbone)
    for size in args.batches:
        eager: Calls = {f"{EAGER}/{kind}": partial(m, x[:size]) for kind, m in methods.items()}
        title = f"{backbone}, batch {size}"
        found = take_turns([eager, exported_calls(served, x[:size])], args.seconds, title)
        rows += as_rows(recipe, size, found)
    return rows


def table(rows: Sequence[Row]) -> str:
    """A line per method and batch size, in Markdown."""
    numbers = Numbers(rows)
    heads = "eager, ms | / ERM | exported, ms | / exported ERM | / eager ERM | paper, / ERM"
    lines = [f"| method | batch | rounds | {heads} |", "|---" * 9 + "|"]
    for kind in numbers.kinds:
        for size in numbers.sizes:
            cells = [
                method_name(kind),
                str(size),
                numbers.show(kind, EAGER, f"rounds:{size}", ".0f"),
            ]
            for form in (EAGER, ONNX):
                cells.append(numbers.show(kind, form, f"latency_ms:{size}"))
                cells.append(numbers.ratio(kind, form, "latency", size))
            cells.append(numbers.show(kind, ONNX, f"latency_ratio_to_eager:{size}"))
            cells.append(numbers.paper(kind) if size == 1 else "–")
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", type=chosen_methods, default="all", help="all, or a,b")
    add_options(parser, batches="1", out="runs/latency")
    return parser.parse_args()


if __name__ == "__main__":
    main()
