"""Train every method on as many processes as this was started with: `FOLDER [KIND ...]`.

Each process writes what it ends with, so that processes can be compared with each other.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

from safetensors.torch import save_file
from short_training import ENGINE, points, short_method

from density_softmax.engine import fit, start

# Noise and batch statistics differ between processes by design: here the methods are without.
NOISELESS = {"mc_dropout": {"rate": 0.0}, "mimo": {"num_members": 1, "batch_repetition": 1}}


def main() -> None:
    folder, *kinds = sys.argv[1:]
    engine = replace(ENGINE, devices=int(os.environ.get("WORLD_SIZE", "1")))
    fabric = start(engine)
    for kind in kinds:
        method = short_method(kind, **NOISELESS.get(kind, {}))
        # 43 samples in batches of 16: the last one divides unevenly.
        fit(
            method,
            points(43, 0),
            points(21, 1),
            seed=3,
            engine=engine,
            fabric=fabric,
            progress=False,
        )
        state = {name: value.contiguous() for name, value in method.state_dict().items()}
        save_file(state, Path(folder) / f"{kind}-{fabric.global_rank}.safetensors")


if __name__ == "__main__":
    # With 0 and 3 the two processes order a set of the names of the splits differently.
    seed = {"PYTHONHASHSEED": str(3 * int(os.environ.get("RANK", "0")))}
    if not seed.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | seed)
    main()
