"""Concrete ML: the network on TFHE with 6-bit integers, as its own post-training quantisation makes it."""

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
from concrete.ml.torch.compile import compile_torch_model

BITS = 6
data = np.load(Path(sys.argv[1]) / "square.npz")
rows = data["x"]
expected = (rows @ data["w1"].T + data["b1"]) ** 2 @ data["w2"].T + data["b2"]


class Square(torch.nn.Module):
    """Two linear layers around a square."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(data["w1"].shape[1], data["w1"].shape[0])
        self.last = torch.nn.Linear(data["w2"].shape[1], data["w2"].shape[0])

    def forward(self, x):
        return self.last(self.first(x) ** 2)


net = Square().eval()
with torch.no_grad():
    for layer, name in ((net.first, "1"), (net.last, "2")):
        layer.weight.copy_(torch.tensor(data["w" + name], dtype=torch.float32))
        layer.bias.copy_(torch.tensor(data["b" + name], dtype=torch.float32))
module = compile_torch_model(net, rows.astype(np.float32), n_bits=BITS, rounding_threshold_bits=BITS)
simulated = module.forward(rows.astype(np.float32), fhe="simulate")
module.fhe_circuit.keygen()
times = []
for row in rows[:2]:
    quantized = module.quantize_input(row[None].astype(np.float32))
    encrypted = module.fhe_circuit.encrypt(quantized)
    start = time.process_time()
    module.fhe_circuit.run(encrypted)
    times.append(time.process_time() - start)
print(
    json.dumps(
        {
            "ms": statistics.median(times) * 1e3,
            "error": float(np.abs(simulated - expected).max()),
            "settings": f"TFHE, {BITS}-bit post-training quantisation and rounding; error by its simulation",
            "argmax_agrees": float((simulated.argmax(axis=1) == expected.argmax(axis=1)).mean()),
        }
    )
)
