"""HElayers: the ONNX chain, compiled and packed by the library itself."""

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import pyhelayers

folder = Path(sys.argv[1])
data = np.load(folder / "square.npz")
row = data["x"][:1]
expected = (data["w2"] @ (data["w1"] @ row[0] + data["b1"]) ** 2) + data["b2"]

plain = pyhelayers.NeuralNetPlain()
plain.init_from_files(pyhelayers.PlainModelHyperParams(), [str(folder / "square.onnx")])
requirements = pyhelayers.HeRunRequirements()
requirements.set_he_context_options([pyhelayers.SealCkksContext()])
requirements.optimize_for_batch_size(1)
requirements.set_model_encrypted(False)
profile = pyhelayers.HeModel.compile(plain, requirements)
context = pyhelayers.HeModel.create_context(profile)
model = pyhelayers.NeuralNet(context)
model.encode(plain, profile)
coder = pyhelayers.ModelIoEncoder(model)
request, answer = pyhelayers.EncryptedData(context), pyhelayers.EncryptedData(context)
coder.encode_encrypt(request, [row])
times = []
for _ in range(12):
    start = time.process_time()
    model.predict(answer, request)
    times.append(time.process_time() - start)
logits = coder.decrypt_decode_output(answer).ravel()[: len(expected)]
print(
    json.dumps(
        {
            "ms": statistics.median(times) * 1e3,
            "error": float(np.abs(logits - expected).max()),
            "settings": "SEAL, weights in the clear, N and chain chosen by the library",
        }
    )
)
