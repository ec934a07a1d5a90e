"""OpenFHE: the same cyclic layout as ours with real packing, hoisted baby steps, at the smallest ring that fits."""

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from openfhe import CCParamsCKKSRNS, GenCryptoContext, PKESchemeFeature, ScalingTechnique, SecurityLevel

N, SLOTS = 8192, 4096
data = np.load(Path(sys.argv[1]) / "square.npz")
row = data["x"][0]
expected = data["w2"] @ (data["w1"] @ row + data["b1"]) ** 2 + data["b2"]

parameters = CCParamsCKKSRNS()
parameters.SetMultiplicativeDepth(3)
parameters.SetScalingModSize(35)
parameters.SetFirstModSize(45)
parameters.SetScalingTechnique(ScalingTechnique.FIXEDAUTO)
parameters.SetNumLargeDigits(4)
parameters.SetRingDim(N)
parameters.SetBatchSize(SLOTS)
parameters.SetSecurityLevel(SecurityLevel.HEStd_128_classic)
cc = GenCryptoContext(parameters)
for feature in (PKESchemeFeature.PKE, PKESchemeFeature.KEYSWITCH, PKESchemeFeature.LEVELEDSHE):
    cc.Enable(feature)
keys = cc.KeyGen()
cc.EvalMultKeyGen(keys.secretKey)


def power_of_two(at_least):
    return 1 << max(0, int(np.ceil(np.log2(at_least))))


def layout(period, block, stride):
    s = np.arange(SLOTS) % period
    return stride * (s // block) + (s % block) % stride


def prepare(matrix, columns, rows, stride, babies, level):
    """Diagonals as [giant][baby], each rolled forward by its giant step."""
    found = []
    for giant in range(-(-stride // babies)):
        group = []
        for baby in range(babies):
            at = np.roll(columns, -(giant * babies + baby))
            used = (at < matrix.shape[1]) & (rows < matrix.shape[0])
            values = np.where(used, matrix[np.where(used, rows, 0), np.where(used, at, 0)], 0.0)
            rolled = np.roll(values, giant * babies)
            group.append(cc.MakeCKKSPackedPlaintext(rolled.tolist(), 1, level) if values.any() else None)
        found.append(group)
    return found


def product(ciphertext, diagonals, babies, folds):
    digits = cc.EvalFastRotationPrecompute(ciphertext)
    rotated = [ciphertext] + [cc.EvalFastRotation(ciphertext, b, 2 * N, digits) for b in range(1, babies)]
    total = None
    for group in reversed(diagonals):
        if total is not None:
            total = cc.EvalRotate(total, babies)
        for plain, one in zip(group, rotated, strict=True):
            if plain is not None:
                term = cc.EvalMult(one, plain)
                total = term if total is None else cc.EvalAdd(total, term)
    for step in folds:
        total = cc.EvalAdd(total, cc.EvalRotate(total, step))
    return total


hidden, outputs = power_of_two(len(data["b1"])), power_of_two(len(data["b2"]))
first_stride = power_of_two(-(-len(row) * hidden // SLOTS))
first_columns = layout(SLOTS, hidden, first_stride)
hidden_rows = layout(hidden, min(hidden, outputs), min(hidden, outputs))
output_rows = np.arange(SLOTS) % outputs % len(data["b2"])
first_folds = [hidden << k for k in range((SLOTS // hidden).bit_length() - 1)]
last_folds = [outputs << k for k in range((hidden // outputs).bit_length() - 1)]
first_babies, last_babies = min(4, first_stride), 4
steps = {*range(1, 4), first_babies, last_babies, *first_folds, *last_folds}
cc.EvalRotateKeyGen(keys.secretKey, sorted(steps))

first = prepare(data["w1"], first_columns, hidden_rows, first_stride, first_babies, 0)
last = prepare(data["w2"], hidden_rows, output_rows, outputs, last_babies, 2)
filled = np.where(hidden_rows < len(data["b1"]), hidden_rows, -1)
bias = np.where(filled >= 0, data["b1"][filled], 0.0)
first_bias = cc.MakeCKKSPackedPlaintext(bias.tolist())
last_bias = cc.MakeCKKSPackedPlaintext(data["b2"][output_rows].tolist())
padded = np.where(first_columns < len(row), row[np.minimum(first_columns, len(row) - 1)], 0.0)
request = cc.Encrypt(keys.publicKey, cc.MakeCKKSPackedPlaintext(padded.tolist()))
times = []
for _ in range(8):
    start = time.process_time()
    z = cc.EvalAdd(product(request, first, first_babies, first_folds), first_bias)
    answer = cc.EvalAdd(product(cc.EvalSquare(z), last, last_babies, last_folds), last_bias)
    times.append(time.process_time() - start)
decrypted = cc.Decrypt(answer, keys.secretKey)
decrypted.SetLength(SLOTS)
slots = np.array(decrypted.GetRealPackedValue())
logits = np.array([slots[np.arange(SLOTS) % outputs % len(expected) == o].mean() for o in range(len(expected))])
print(
    json.dumps(
        {
            "ms": statistics.median(times) * 1e3,
            "error": float(np.abs(logits - expected).max()),
            "settings": f"N={N}, primes [45, 35, 35, 35] + 60, real packing, hoisted baby steps, one thread",
        }
    )
)
