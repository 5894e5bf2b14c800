"""A trained transformer that classifies texts learns when not to be trusted.

The texts are made up of the words of two subjects; the strange ones speak of a third.
"""

import torch
from torch import nn

import density_softmax as ds

SUBJECTS = {
    "sea": "wave ship harbour sail salt anchor tide gull storm captain deck rope",
    "kitchen": "salt oven bread butter knife pan flour sugar taste cook spoon bowl",
    "law": "court judge appeal statute clause verdict witness trial oath motion bail plea",
}
WORDS = sorted({word for words in SUBJECTS.values() for word in words.split()})


def texts(subject: str, count: int, length: int = 12) -> torch.Tensor:
    """Sentences of random words of a subject, as numbers."""
    numbers = torch.tensor([WORDS.index(word) for word in SUBJECTS[subject].split()])
    return numbers[torch.randint(len(numbers), (count, length))]


class TextClassifier(nn.Module):
    """Embedding, two encoder layers, mean over the tokens, linear head."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(WORDS), 32)
        layer = nn.TransformerEncoderLayer(32, nhead=4, dim_feedforward=64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.classifier = nn.Linear(32, num_classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits of a batch of texts."""
        return self.classifier(self.encoder(self.embedding(tokens)).mean(1))


torch.manual_seed(0)
tokens = torch.cat([texts("sea", 600), texts("kitchen", 600)])
labels = torch.arange(2).repeat_interleave(600)
order = torch.randperm(1200)
train, calibration, test = order[:800], order[800:1000], order[1000:]

model = TextClassifier(num_classes=2)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(3):
    for rows in train.split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens[rows]), labels[rows]).backward()
        optimizer.step()
model.eval()

uncertain = ds.attach(
    model,
    train=(tokens[train], labels[train]),
    calibration=(tokens[calibration], labels[calibration]),
    progress=False,
)

for name, batch in {"sea and kitchen": tokens[test], "law": texts("law", 200)}.items():
    with torch.no_grad():
        plain = model(batch).softmax(1).amax(1).mean()
    ours = uncertain.predict(batch)
    print(
        f"{name:<16} confidence: softmax {plain:.3f}, attached {ours.probs.amax(1).mean():.3f}   "
        f"epistemic {ours.epistemic.mean():.1f}"
    )
