"""Small classifiers of the kinds that people have, with the names that people give their layers."""

import torch
from torch import nn


class BasicBlock(nn.Module):
    def __init__(self, inside, outside, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(outside), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2, self.downsample = nn.BatchNorm2d(outside), None
        if stride > 1:
            shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outside))

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        h = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(h)) + shortcut)


class ResNet(nn.Module):
    """As torchvision's, narrow, on small images."""

    def __init__(self, pooled_stem=True):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, 2 if pooled_stem else 1, 1, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(6), nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if pooled_stem else nn.Identity()
        self.layer1 = nn.Sequential(BasicBlock(6, 6), BasicBlock(6, 6))
        self.layer2 = nn.Sequential(BasicBlock(6, 8, 2), BasicBlock(8, 8))
        self.layer3 = nn.Sequential(BasicBlock(8, 10, 2), BasicBlock(10, 10))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(10, 3)

    def forward(self, x):
        h = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        h = self.layer3(self.layer2(self.layer1(h)))
        return self.fc(torch.flatten(self.avgpool(h), 1))


class VGG(nn.Module):
    """With a classifier of three layers and dropout."""

    def __init__(self):
        super().__init__()
        layers, inside = [], 3
        for outside in (4, 4, "pool", 6, 6, "pool", 8, 8, "pool"):
            if outside == "pool":
                layers.append(nn.MaxPool2d(2))
                continue
            layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.ReLU(inplace=True)]
            inside = outside
        self.features, self.avgpool = nn.Sequential(*layers), nn.AdaptiveAvgPool2d(2)
        hidden = [nn.Linear(32, 16), nn.ReLU(True), nn.Dropout()]
        hidden += [nn.Linear(16, 16), nn.ReLU(True), nn.Dropout()]
        self.classifier = nn.Sequential(*hidden, nn.Linear(16, 3))

    def forward(self, x):
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class InvertedResidual(nn.Module):
    def __init__(self, inside, outside, stride, expand):
        super().__init__()
        hidden = inside * expand
        layers = [normed(inside, hidden, 1)] if expand > 1 else []
        layers += [normed(hidden, hidden, 3, stride, hidden), nn.Conv2d(hidden, outside, 1)]
        self.conv = nn.Sequential(*layers, nn.BatchNorm2d(outside))

    def forward(self, x):
        return self.conv(x)


def normed(inside, outside, size, stride=1, groups=1):
    convolution = nn.Conv2d(inside, outside, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outside), nn.ReLU6(inplace=True))


class MobileNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            normed(3, 6, 3, 2),
            InvertedResidual(6, 4, 1, 1),
            InvertedResidual(4, 6, 2, 4),
            InvertedResidual(6, 6, 1, 4),
            InvertedResidual(6, 8, 2, 4),
            normed(8, 16, 1),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(16, 3))

    def forward(self, x):
        return self.classifier(nn.functional.adaptive_avg_pool2d(self.features(x), 1).flatten(1))


class AllConvolutional(nn.Module):
    """Its head is a convolution, and a mean over positions follows."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 8, 3, 2, 1), nn.ReLU())
        )
        self.conv = nn.Conv2d(8, 3, 1)

    def forward(self, x):
        return self.conv(self.features(x)).mean((2, 3))


class Block(nn.Module):
    """A transformer block of one's own."""

    def __init__(self, width=12):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width))

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, 12, 4, 4)
        self.cls_token = nn.Parameter(torch.randn(1, 1, 12))
        self.pos_embed = nn.Parameter(torch.randn(1, 17, 12) / 4)
        self.pos_drop = nn.Dropout()
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.norm, self.head = nn.LayerNorm(12), nn.Linear(12, 3)

    def forward(self, x):
        h = self.patch_embed(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.cls_token.expand(len(h), -1, -1), h], 1) + self.pos_embed
        return self.head(self.norm(self.blocks(self.pos_drop(h)))[:, 0])


class TextTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.fc = nn.Linear(8, 3)

    def forward(self, tokens):
        return self.fc(self.encoder(self.embed(tokens)).mean(1))


class SignalBlock(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv1d(inside, outside, 3, 2, 1), nn.BatchNorm1d(outside)
        self.conv2 = nn.Conv1d(outside, outside, 3, 1, 1)

    def forward(self, x):
        return self.conv2(self.bn1(self.conv1(x)).relu()).relu()


class SignalNetwork(nn.Module):
    """A CNN on signals of one channel."""

    def __init__(self):
        super().__init__()
        self.block1, self.block2 = SignalBlock(1, 6), SignalBlock(6, 8)
        self.block3, self.out = SignalBlock(8, 10), nn.Linear(10, 3)

    def forward(self, x):
        return self.out(self.block3(self.block2(self.block1(x))).mean(-1))


class Recurrent(nn.Module):
    def __init__(self, kind=nn.LSTM):
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(50, 8), kind(8, 12, batch_first=True)
        self.decoder = nn.Linear(12, 3)

    def forward(self, tokens):
        return self.decoder(self.rnn(self.embedding(tokens))[0][:, -1])


class Cosine(nn.Module):
    """Its answer is 10 cos(w, z), from weights of its own."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8))
        self.weight = nn.Parameter(torch.randn(3, 8))

    def forward(self, x):
        z = nn.functional.normalize(self.body(x))
        return 10 * z @ nn.functional.normalize(self.weight).T


class Tied(nn.Module):
    """Its answer is a product with embeddings of the classes."""

    def __init__(self):
        super().__init__()
        self.embed, self.drop = nn.Embedding(50, 8), nn.Dropout()
        self.mix, self.classes = nn.Linear(8, 8), nn.Embedding(3, 8)

    def forward(self, tokens):
        h = self.drop(self.mix(self.embed(tokens)).tanh().mean(1))
        return h @ self.classes.weight.T


def perceptron(outputs=3):
    layers = [nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, outputs)]
    return nn.Sequential(*layers)


IMAGE, TOKENS, SIGNAL, VECTOR = (3, 16, 16), (7,), (1, 32), (5,)

# By kind: how to build it, what it reads, and what is to be found in it.
KINDS = {
    "ResNet": (ResNet, IMAGE, "fc", ("layer1", "layer2")),
    "ResNet for small images": (lambda: ResNet(False), IMAGE, "fc", ("layer1", "layer2")),
    "VGG": (VGG, IMAGE, "classifier.6", ("features.3", "features.8")),
    "MobileNet": (MobileNet, IMAGE, "classifier.1", ("features.1", "features.3")),
    "all convolutional": (AllConvolutional, IMAGE, "conv", ("features.1", "features")),
    "ViT": (VisionTransformer, IMAGE, "head", ("pos_drop", "blocks.0")),
    "text transformer": (TextTransformer, TOKENS, "fc", ("embed", "encoder.layers.0")),
    "1-D CNN": (SignalNetwork, SIGNAL, "out", ("block1", "block2")),
    "LSTM": (Recurrent, TOKENS, "decoder", ("embedding", "rnn")),
    "GRU": (lambda: Recurrent(nn.GRU), TOKENS, "decoder", ("embedding", "rnn")),
    "MLP": (perceptron, VECTOR, "4", ("0",)),
    "cosine head": (Cosine, VECTOR, "body", ("body.0",)),
    "tied head": (Tied, TOKENS, "drop", ("embed",)),
    "logistic regression": (lambda: nn.Sequential(nn.Linear(5, 3)), VECTOR, "0", ()),
}


def inputs(shape, num_samples, seed):
    generator = torch.Generator().manual_seed(seed)
    if shape == TOKENS:
        return torch.randint(0, 50, (num_samples, *shape), generator=generator)
    return torch.randn(num_samples, *shape, generator=generator)


def trained(build, shape, seed=0):
    """A model that knows its task, data of it to train on, and others to calibrate on.

    Inputs of a class have a level of their own; tokens, a range of numbers.
    """
    torch.manual_seed(seed)
    model, sets = build(), []
    for number, size in enumerate((300, 150, 60)):
        x, y = inputs(shape, size, number), torch.arange(size) % 3
        level = y.view(-1, *[1] * len(shape))
        x = (x // 3 + 17 * level) % 50 if shape == TOKENS else x * 0.5 + (level - 1) * 0.3
        sets.append((x, y))
    x, y = sets[0]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(30):
        rows = torch.arange(60 * step, 60 * step + 60) % len(y)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    return model.eval(), *sets
