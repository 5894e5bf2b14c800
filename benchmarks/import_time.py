"""How long the package takes to import, relative to torch, and the command line to answer.

    python benchmarks/import_time.py [--repeats 15] [--out DIR]

Everything runs in new processes, in turns. `import density_softmax as ds; ds.attach` is compared
with `import torch` by CPU time, which other work on the machine changes less than seconds on the
clock; the command line is timed by the clock, as its user would.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path
from time import perf_counter

from density_softmax.runs.rows import write_rows
from density_softmax.types import Row

IMPORTS = {"torch": "import torch", "attach": "import density_softmax as ds; ds.attach"}
TELL = "; import time; print(time.process_time())"
ANSWERS = ("--help", "--version", "trian")


def main() -> None:
    """Measure and print."""
    args = parse()
    rounds = [{**import_seconds(), **answer_seconds()} for _ in range(args.repeats)]
    found = {name: statistics.median(times[name] for times in rounds) for name in rounds[0]}
    for name, value in found.items():
        print(f"{name:28} {value:.2f}")
    if args.out is not None:
        label = ("import_time", "density_softmax", "default", 0, "cost")
        write_rows(args.out / "rows.csv", [Row(*label, n, value) for n, value in found.items()])


def import_seconds() -> dict[str, float]:
    """CPU seconds of each import, and ours relative to torch's."""
    found = {}
    for name, code in IMPORTS.items():
        command = [sys.executable, "-c", code + TELL]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found[f"cpu_seconds:{name}"] = float(done.stdout)
    ratio = found["cpu_seconds:attach"] / found["cpu_seconds:torch"]
    return {**found, "import_ratio:attach": ratio}


def answer_seconds() -> dict[str, float]:
    """Seconds on the clock until the command line has answered."""
    found = {}
    for argument in ANSWERS:
        began = perf_counter()
        subprocess.run([sys.executable, "-m", "density_softmax", argument], capture_output=True)
        found[f"seconds:{argument}"] = perf_counter() - began
    return found


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15, help="rounds; medians are printed")
    parser.add_argument("--out", type=Path, help="folder for rows.csv")
    return parser.parse_args()


if __name__ == "__main__":
    main()
