"""A trained ResNet with torchvision's layer names learns when not to be trusted.

With torchvision installed, `torchvision.models.resnet50(weights=...)` takes the place of the
network below: its head is "fc" and its layers are "layer1" to "layer4", too.
"""

import torch
from torch import nn

import density_softmax as ds
from density_softmax.data import find_images
from density_softmax.data.readers import data_root
from density_softmax.nn.backbones.resnet import CifarResNet


class ResNet(nn.Module):
    """Layers by the names that everybody uses."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        body = CifarResNet.Config(depth=8).build((1, 8, 8))
        for name, module in body.named_children():
            setattr(self, name, module)
        self.forward_features = body.forward
        self.fc = nn.Linear(body.num_features, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits of a batch of images."""
        return self.fc(self.forward_features(x))


torch.manual_seed(0)
digits = find_images("digits", data_root()).images
train, test = digits.read("train"), digits.read("test")
x_train, x_test = train.x / 255, test.x / 255

model = ResNet(num_classes=10)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(12):
    for rows in torch.randperm(1000).split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x_train[rows]), train.y[rows]).backward()
        optimizer.step()
model.eval()

uncertain = ds.attach(
    model,
    train=(x_train[:1000], train.y[:1000]),
    calibration=(x_train[1000:], train.y[1000:]),
    progress=False,
)

for name, x in {"digits": x_test, "negatives of them": 1 - x_test}.items():
    with torch.no_grad():
        plain, ours = model(x).softmax(1), uncertain.predict(x).probs
    accuracy = (plain.argmax(1) == test.y).float().mean()
    print(
        f"{name:<18} accuracy {accuracy:.3f}   confidence: softmax {plain.amax(1).mean():.3f}, "
        f"attached {ours.amax(1).mean():.3f}"
    )
