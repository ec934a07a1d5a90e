"""Networks and rows that benchmarks/separation.py and ternary.py judge on, each with its split fixed here.

Reference networks and data come from RELU_DEPLOY_INPUTS, full Fashion-MNIST from Debian's package
dataset-fashion-mnist. The tabular sets have no network of their own: a small one is trained here, on the first 60 % of
the rows (permuted, seed 0), calibrated on the first 80 % and judged on the rest, as in arXiv 2605.22237.
"""

from __future__ import annotations

import csv
import gzip
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deploy.loaders import load
from deploy.model import Affine, Decision, Mlp

FASHION = Path("/usr/share/datasets/fashion-mnist")

Case = tuple[Mlp, np.ndarray, np.ndarray]
"""Model, calibration rows, held-out rows."""


@dataclass(frozen=True)
class Reference:
    """A reference network: file, rows, which are calibrated on and held out, and which it was not trained on."""

    model: str
    data: str
    calibration: tuple[int, int]
    held_out: tuple[int, int]
    unseen: str | None = None

    def read(self) -> Case:
        """Load the files."""
        folder = Path(os.environ["RELU_DEPLOY_INPUTS"])
        model = load(folder / "models" / f"{self.model}.onnx")
        assert isinstance(model, Mlp)
        x = np.load(folder / "data" / f"{self.data}.npz")["x"].astype(np.float64).reshape(-1, model.n_in)
        return model, x[slice(*self.calibration)], x[slice(*self.held_out)]


_MNIST = ((0, 8000), (8000, 10000))
_SHUTTLE = ((0, 46400), (46400, 58000))

REFERENCES = {
    "digits": Reference("reference/digits_64_32_10", "digits", (0, 1437), (1437, 1797)),
    "breast_cancer": Reference("reference/breast_cancer_30_16_2", "breast_cancer", (0, 455), (455, 569)),
    "mnist": Reference("mnist_784_128_10/mnist_784_128_10.legacy", "mnist/mnist_t10k", *_MNIST),
    "shuttle64": Reference("reference/shuttle_9_64_7", "shuttle/shuttle", *_SHUTTLE),
    "shuttle256": Reference("reference/shuttle_9_256_7", "shuttle/shuttle", *_SHUTTLE),
    "digits_deep": Reference("reference/digits_64_32_32_10", "digits", (0, 1437), (1437, 1797)),
    "mnist_deep": Reference("reference/mnist_784_128_64_10", "mnist/mnist_t10k", *_MNIST, "6000:8000"),
    "mnist_256": Reference("reference/mnist_784_256_256_10", "mnist/mnist_t10k", *_MNIST, "6000:8000"),
    "mnist_six": Reference("reference/mnist_784_64x6_10", "mnist/mnist_t10k", *_MNIST, "6000:8000"),
    "fashion_part": Reference(
        "fashion_784_128_10/fashion_784_128_10.legacy",
        "fashion_mnist_part/fashion_t10k_first4443",
        (0, 3443),
        (3443, 4443),
    ),
}

TABULAR = ("blood", "cancer", "credit_first6000", "diabetes", "heart", "heart_disease", "income_first6000")


def read_case(name: str, fashion: Path = FASHION) -> Case:
    """Model, calibration rows and held-out rows."""
    if name == "fashion":
        return read_fashion(fashion)
    return REFERENCES[name].read() if name in REFERENCES else train_tabular(name)


def read_fashion(folder: Path) -> Case:
    """The model for full Fashion-MNIST, train file and t10k file, divided by 255."""
    model = load(Path(os.environ["RELU_DEPLOY_INPUTS"]) / "models/reference/fashion60k_784_128_10.onnx")
    assert isinstance(model, Mlp)
    rows = []
    for part in ("train", "t10k"):
        path = folder / f"{part}-images-idx3-ubyte.gz"
        if not path.exists():
            sys.exit(
                f"{path} is missing: give the folder by --fashion, or run: apt-get install dataset-fashion-mnist"
            )
        with gzip.open(path) as file:
            rows.append(np.frombuffer(file.read()[16:], np.uint8).reshape(-1, 784) / 255)
    train, test = rows
    return model, train, test


def train_tabular(name: str, *, width: int = 64, epochs: int = 100) -> Case:
    """A network of one hidden layer on a table whose last (or Class) column is the label; text becomes indicators."""
    import torch

    path = Path(os.environ["RELU_DEPLOY_INPUTS"]) / "data/tabular" / f"pycaret_{name}.csv"
    with path.open(encoding="utf-8-sig") as file:
        header, *lines = csv.reader(file)
    place = header.index("Class") if "Class" in header else len(header) - 1
    columns = list(zip(*lines, strict=True))
    labels = np.unique(columns.pop(place), return_inverse=True)[1]
    x = np.hstack([_numbers(column) for column in columns])
    order = np.random.default_rng(0).permutation(len(x))
    x, labels = x[order], labels[order]
    train, calibration = int(0.6 * len(x)), int(0.8 * len(x))
    mean, std = x[:train].mean(axis=0), np.maximum(x[:train].std(axis=0), 1e-6)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first, last = torch.nn.Linear(x.shape[1], width), torch.nn.Linear(width, int(labels.max()) + 1)
        optimiser = torch.optim.Adam([*first.parameters(), *last.parameters()], lr=1e-3)
        rows = torch.tensor((x[:train] - mean) / std, dtype=torch.float32)
        wanted = torch.tensor(labels[:train])
        for _ in range(epochs):
            for batch in torch.randperm(train).split(64):
                loss = torch.nn.functional.cross_entropy(last(torch.relu(first(rows[batch]))), wanted[batch])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
    (w, b), (v, c) = [
        (layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy()) for layer in (first, last)
    ]
    w = w / std
    model = Mlp((Affine(w, b - w @ mean), Affine(v, c)), ("relu",), Decision("argmax"))
    return model, x[:calibration], x[calibration:]


def _numbers(column: tuple[str, ...]) -> np.ndarray:
    """A column of numbers (missing ones by the median), or one indicator for each text."""
    try:
        values = np.array([float(v) if v not in ("", "?") else np.nan for v in column])
    except ValueError:
        return (np.array(column)[:, None] == np.unique(column)).astype(np.float64)
    return np.where(np.isnan(values), np.nanmedian(values), values)[:, None]
