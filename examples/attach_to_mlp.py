"""A trained multi-layer perceptron on a table learns when not to be trusted."""

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn

import density_softmax as ds

torch.manual_seed(0)
x, y = load_breast_cancer(return_X_y=True)
x_train, x_rest, y_train, y_rest = train_test_split(x, y, test_size=0.5, random_state=0)
scaler = StandardScaler().fit(x_train)
train = torch.tensor(scaler.transform(x_train)).float(), torch.tensor(y_train)
rest = torch.tensor(scaler.transform(x_rest)).float(), torch.tensor(y_rest)

# A classifier as one has it, trained without a thought of uncertainty.
model = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(200):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(train[0]), train[1]).backward()
    optimizer.step()
model.eval()

# Half of the rest calibrates; nothing of the model changes.
calibration, test = (rest[0][:140], rest[1][:140]), (rest[0][140:], rest[1][140:])
uncertain = ds.attach(model, train=train, calibration=calibration, progress=False)

known = uncertain.predict(test[0])
strange = uncertain.predict(test[0] + 20)  # measured in other units, say
print(f"accuracy                  {(known.probs.argmax(1) == test[1]).float().mean():.3f}")
print(f"confidence, known inputs  {known.probs.amax(1).mean():.3f}")
print(f"confidence, strange ones  {strange.probs.amax(1).mean():.3f}")
print(f"plain softmax on those    {model(test[0] + 20).softmax(1).amax(1).mean():.3f}")
