"""Orion: the chain as its own modules, compiled to Lattigo; ring degree 8192 is its smallest configuration that fits."""

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import orion
import torch
from orion import nn

data = np.load(Path(sys.argv[1]) / "square.npz")
row = data["x"][:1]
expected = data["w2"] @ (data["w1"] @ row[0] + data["b1"]) ** 2 + data["b2"]

# Orion's quadratic keeps the scale as it is, so primes of the middle are as long as the scale. Its own MLP example
# takes a ternary secret of 192 non-zeros; at 2^13 and 174 bits that is the configuration that it ships.
PARAMETERS = {
    "ckks_params": {
        "LogN": 13,
        "LogQ": [29, 26, 26, 26, 26, 26],
        "LogP": [29, 29],
        "LogScale": 26,
        "H": 8192,
        "RingType": "ConjugateInvariant",
    },
    "orion": {
        "margin": 2,
        "embedding_method": "hybrid",
        "backend": "lattigo",
        "fuse_modules": True,
        "debug": False,
        "io_mode": "none",
    },
}


class Square(nn.Module):
    """Two linear layers around a square."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(data["w1"].shape[1], data["w1"].shape[0])
        self.middle = nn.Quad()
        self.last = nn.Linear(data["w2"].shape[1], data["w2"].shape[0])

    def forward(self, x):
        return self.last(self.middle(self.first(x)))


orion.init_scheme(PARAMETERS)
net = Square()
with torch.no_grad():
    for layer, name in ((net.first, "1"), (net.last, "2")):
        layer.weight.copy_(torch.tensor(data["w" + name], dtype=torch.float32))
        layer.bias.copy_(torch.tensor(data["b" + name], dtype=torch.float32))
net.eval()
x = torch.tensor(row, dtype=torch.float32)
net(x)
orion.fit(net, torch.tensor(data["x"], dtype=torch.float32))
level = orion.compile(net)
request = orion.encrypt(orion.encode(x, level))
net.he()
times = []
for _ in range(8):
    start = time.process_time()
    answer = net(request)
    times.append(time.process_time() - start)
logits = answer.decrypt().decode().numpy().ravel()[: len(expected)]
print(
    json.dumps(
        {
            "ms": statistics.median(times) * 1e3,
            "error": float(np.abs(logits - expected).max()),
            "settings": f"Lattigo, N=2^13, LogQ {PARAMETERS['ckks_params']['LogQ']}, LogP [29, 29], one thread",
        }
    )
)
