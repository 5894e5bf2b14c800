"""How many parameters each method has, beside the paper's counts.

    python benchmarks/parameters.py [--out DIR]

They are counted on the networks of the paper's recipes: WRN-28-10 with 10 and with 100 classes,
ResNet-50 with 1,000. A second count adds buffers that a checkpoint has to keep anyway: statistics
of batch norm, precisions, covariances.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.progress import track

from density_softmax.files import write_text
from density_softmax.metrics import num_parameters
from density_softmax.recipes import get_recipe
from density_softmax.report.names import method_name
from density_softmax.report.paper import paper_value
from density_softmax.runs.rows import write_rows
from density_softmax.types import Row
from untrained import all_methods, untrained

RECIPES = ("cifar10", "cifar100", "imagenet")


def main() -> None:
    """Count, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/parameters"))
    args = parser.parse_args()
    rows = [
        Row(recipe, kind, "default", 0, "cost", metric, value)
        for recipe in RECIPES
        for kind in track(all_methods(), description=recipe)
        for metric, value in count(recipe, kind).items()
    ]
    write_rows(args.out / "rows.csv", rows)
    text = table(rows)
    write_text(args.out / "table.md", text + "\n")
    print(text)


def count(recipe: str, kind: str) -> dict[str, float]:
    """Parameters, and with them all floating-point buffers."""
    method = untrained(get_recipe(recipe, kind))
    buffers = sum(b.numel() for b in method.buffers() if b.is_floating_point())
    parameters = num_parameters(method)
    return {"params": float(parameters), "stored": float(parameters + buffers)}


def table(rows: list[Row]) -> str:
    """A line per method in Markdown: millions of parameters, ours / with buffers / the paper's."""
    values = {(row.method, row.recipe, row.metric): row.value for row in rows}
    heads = [f"{recipe} (M)" for recipe in RECIPES]
    lines = ["| method | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for kind in dict.fromkeys(row.method for row in rows):
        cells = []
        for recipe in RECIPES:
            ours, stored = (values[kind, recipe, m] / 1e6 for m in ("params", "stored"))
            paper = paper_value(recipe, kind, "params")
            theirs = "–" if paper is None else f"{paper / 1e6:.2f}"
            cells.append(f"{ours:.2f} / {stored:.2f} / {theirs}")
        lines.append(f"| {method_name(kind)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
