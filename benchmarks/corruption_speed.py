"""Seconds per corruption, and the minutes that a whole corrupted test set would take.

python benchmarks/corruption_speed.py --images 1000
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from density_softmax.data.corruptions import ALL_CORRUPTIONS, CORRUPTIONS, SEVERITIES, corrupt

TEST_SET = 10_000


def seconds(images: np.ndarray, kind: str) -> float:
    """Wall-clock time of all severities of one corruption."""
    start = time.perf_counter()
    for severity in SEVERITIES:
        corrupt(images, kind, severity)
    return time.perf_counter() - start


def main() -> None:
    """Time every type and print the projection."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=1000, help="images per type and severity")
    parser.add_argument("--side", type=int, default=32, help="height and width in pixels")
    args = parser.parse_args()
    shape = (args.images, args.side, args.side, 3)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    print(f"seconds for {args.images} images × {len(SEVERITIES)} severities")
    taken = {}
    for kind in ALL_CORRUPTIONS:
        corrupt(images[:2], kind, 1)
        taken[kind] = seconds(images, kind)
        print(f"{kind:<18} {taken[kind]:8.2f}")
    minutes = sum(taken[kind] for kind in CORRUPTIONS) * TEST_SET / args.images / 60
    print(
        f"projected: {minutes:.1f} min for {TEST_SET} images × "
        f"{len(CORRUPTIONS)} types × {len(SEVERITIES)} severities"
    )


if __name__ == "__main__":
    main()
