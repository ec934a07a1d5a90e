"""Property: a random torch module gives the same network through every exporter and file form."""

from __future__ import annotations

import io
import itertools
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deploy
from deploy.errors import LoadError

torch = pytest.importorskip("torch")
nn = torch.nn

MODULES = 20


class Straight(nn.Module):
    """An nn.Module with its own forward: view, functional activations, batch normalisation and dropout."""

    def __init__(self, widths: list[int], *, with_norm: bool) -> None:
        super().__init__()
        self.fc = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.norm = nn.BatchNorm1d(widths[1]) if with_norm else nn.Identity()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.view(x.size(0), -1)
        for index, layer in enumerate(self.fc):
            x = layer(x)
            if index == 0:
                x = self.norm(x)
            if index < len(self.fc) - 1:
                x = self.drop(torch.nn.functional.relu(x))
        return x


def random_module(seed: int) -> tuple[Any, int]:
    """A module in evaluation mode with weights and statistics that matter, and its number of inputs."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    widths = [int(w) for w in rng.integers(2, 9, size=rng.integers(3, 6))]
    kind = seed % 4
    if kind == 0:
        module: Any = Straight(widths, with_norm=bool(rng.integers(2)))
    else:
        layers: list[Any] = [nn.Flatten()] if kind == 1 else []
        for index, (a, b) in enumerate(itertools.pairwise(widths)):
            layers.append(nn.Linear(a, b, bias=bool(rng.integers(4))))
            if index < len(widths) - 2:
                if kind == 2:
                    layers.append(nn.BatchNorm1d(b))
                choices = (
                    [nn.ReLU(), nn.ReLU()]
                    if kind < 3
                    else [nn.LeakyReLU(0.2), nn.ReLU6(), nn.Hardtanh(), nn.PReLU()]
                )
                layers.append(choices[rng.integers(len(choices))])
                if rng.integers(2):
                    layers.append(nn.Dropout(0.3))
        if kind == 3:
            layers.append([nn.Softmax(dim=1), nn.LogSoftmax(dim=1), nn.Identity()][rng.integers(3)])
        module = nn.Sequential(*layers)
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.BatchNorm1d):
                part.running_mean.normal_()
                part.running_var.uniform_(0.5, 2.0)
                part.weight.normal_()
                part.bias.normal_()
    return module.eval(), widths[0]


def files(module: Any, n_in: int, folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each way to hand the module over, with a thunk that loads it."""
    example = torch.zeros(2, n_in)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(module, example)
        torch.jit.save(traced, folder / "traced.pt")
        torch.jit.save(torch.jit.script(module), folder / "scripted.pt")
        dynamic = ({0: torch.export.Dim("batch")},)
        torch.export.save(torch.export.export(module, (example,), dynamic_shapes=dynamic), folder / "dynamic.pt2")
        torch.export.save(torch.export.export(module, (example,)), folder / "fixed.pt2")
        lowered = torch.export.export(module, (example,)).run_decompositions()
        torch.export.save(lowered, folder / "core.pt2")
        onnx_file = io.BytesIO()
        torch.onnx.export(module, (example,), onnx_file, dynamo=False, opset_version=17)
        (folder / "legacy.onnx").write_bytes(onnx_file.getvalue())
    for name in ("traced.pt", "scripted.pt", "dynamic.pt2", "fixed.pt2", "core.pt2", "legacy.onnx"):
        yield name, lambda path=folder / name: deploy.load(path)
    yield "module", lambda: deploy.load(module)
    yield "script module", lambda: deploy.load(traced)


def check(module: Any, n_in: int, model: Any, name: str, *, tolerance: float = 1e-9) -> None:
    """Both sides run in float64 on weights that were cast exactly; an exporter may round on its own."""
    x = np.random.default_rng(0).normal(size=(5, n_in))
    with torch.no_grad():
        expected = module.double()(torch.from_numpy(x)).numpy()
    module.float()
    np.testing.assert_allclose(model.outputs(x), expected, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("seed", range(MODULES))
def test_every_exporter_gives_the_same_network(seed: int, tmp_path: Path) -> None:
    module, n_in = random_module(seed)
    for name, load in files(module, n_in, tmp_path):
        check(module, n_in, load(), name)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(MODULES))
def test_the_dynamo_exporter_gives_the_same_network(seed: int, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    module, n_in = random_module(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (torch.zeros(2, n_in),), tmp_path / "dynamo.onnx", dynamo=True, verbose=False)
    # that exporter folds batch normalisation in float32
    check(module, n_in, deploy.load(tmp_path / "dynamo.onnx"), "dynamo", tolerance=1e-5)


SPELLINGS: dict[str, Callable[[Any], object]] = {
    "plain": lambda state: state,
    "prefixed": lambda state: OrderedDict((f"module.{name}", value) for name, value in state.items()),
    "checkpoint": lambda state: {"epoch": 3, "model_state_dict": state, "optimizer": {"lr": 0.1}},
    "lightning": lambda state: {"state_dict": OrderedDict((f"model.{n}", v) for n, v in state.items()), "epoch": 1},
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("is_zip", [True, False])
def test_state_dicts_give_the_network_in_stored_order(spelling: str, is_zip: bool, tmp_path: Path) -> None:
    module = nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)
    )
    module.eval()[1].running_var.uniform_(0.5, 2.0)
    path = tmp_path / "state.pt"
    torch.save(SPELLINGS[spelling](module.state_dict()), path, _use_new_zipfile_serialization=is_zip)
    model = deploy.load(path)
    check(module, 4, model, spelling)
    assert any("0 - 1 - relu - 3 - relu - 5" in note for note in model.notes)


def test_half_precision_weights_are_cast_exactly(tmp_path: Path) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).to(dtype)
        torch.save(module.state_dict(), tmp_path / "half.pt")
        check(module.double(), 4, deploy.load(tmp_path / "half.pt"), str(dtype))


def test_a_layer_list_gives_order_and_activations() -> None:
    torch.manual_seed(0)
    parts = {"out": nn.Linear(5, 2), "a": nn.Linear(5, 5), "b": nn.Linear(5, 5), "first": nn.Linear(3, 5)}
    state = {f"{name}.{kind}": value for name, part in parts.items() for kind, value in part.state_dict().items()}
    with pytest.raises(LoadError, match="more than one order"):
        deploy.load(state)
    chain = nn.Sequential(
        parts["first"], nn.ReLU(), parts["b"], nn.LeakyReLU(0.1), parts["a"], parts["out"], nn.Softmax(dim=1)
    )
    check(chain, 3, deploy.load(state, layers="first,relu,b,leaky_relu:0.1,a,out,softmax"), "listed")
    plain = nn.Sequential(parts["first"], nn.ReLU(), parts["b"], nn.ReLU(), parts["a"], nn.ReLU(), parts["out"])
    check(plain, 3, deploy.load(state, layers=["first", "b", "a", "out"]), "order alone")
    with pytest.raises(LoadError, match=r"no layer 'frist'.*first"):
        deploy.load(state, layers="frist,b,a,out")


def test_an_unordered_state_is_put_in_the_only_order_that_fits() -> None:
    module = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2))
    names = {"0": "input_layer", "2": "hidden", "4": "output_layer"}
    state = {f"{names[n.partition('.')[0]]}.{n.partition('.')[2]}": v for n, v in module.state_dict().items()}
    check(module, 3, deploy.load(dict(sorted(state.items()))), "sorted")


@pytest.mark.parametrize(
    ("module", "pattern"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), "tanh"),
        (nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2)), "sigmoid in the middle"),
        (nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2)), "gelu|erf"),
        (nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)), "layer_norm"),
    ],
)
def test_other_activations_are_refused_by_name(module: Any, pattern: str, tmp_path: Path) -> None:
    for _, load in files(module.eval(), 3, tmp_path):
        with pytest.raises(LoadError, match=rf"(?i){pattern.replace('_', '_?')}"):
            load()


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.fc(x))


def test_a_residual_is_refused(tmp_path: Path) -> None:
    for name, load in files(Residual().eval(), 3, tmp_path):
        with pytest.raises(LoadError, match="joins"):
            load()
        assert name


def test_training_mode_is_refused(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.ReLU(), nn.Linear(4, 2)).train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(module, (torch.zeros(2, 3),)), tmp_path / "train.pt2")
    with pytest.raises(LoadError, match="training mode"):
        deploy.load(tmp_path / "train.pt2")


def test_a_module_object_is_not_changed() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.ReLU(), nn.Linear(4, 2)).train()
    deploy.load(module)
    assert module.training
    assert module[0].weight.dtype == torch.float32


class Explosive:
    """A pickle of it writes a file when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.write_text, (self.path, "opened"))


@pytest.mark.parametrize("name", ["model.pt", "model.pkl", "model.joblib"])
def test_no_pickle_is_ever_opened(name: str, tmp_path: Path) -> None:
    import pickle

    mark, path = tmp_path / "mark", tmp_path / name
    if name.endswith(".pt"):
        torch.save(Explosive(mark), path)
    else:
        path.write_bytes(pickle.dumps(Explosive(mark)))
    with pytest.raises(LoadError, match="can run any code"):
        deploy.load(path)
    assert not mark.exists()


def test_an_exported_archive_never_opens_its_pickles(tmp_path: Path) -> None:
    """Example inputs, and weights stored as pickles of code, are left alone or refused."""
    import pickle
    import zipfile

    mark = tmp_path / "mark"
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(module, (torch.zeros(2, 3),)), tmp_path / "good.pt2")
    bomb = pickle.dumps(Explosive(mark))
    with zipfile.ZipFile(tmp_path / "good.pt2") as good, zipfile.ZipFile(tmp_path / "bad.pt2", "w") as bad:
        for name in good.namelist():
            bad.writestr(name, bomb if "sample_inputs" in name else good.read(name))
    model = deploy.load(tmp_path / "bad.pt2")
    check(module, 3, model, "bad.pt2")
    assert any("example inputs" in note for note in model.notes)
    assert not mark.exists()


def test_archives_of_older_exporters_are_read(tmp_path: Path) -> None:
    """Up to PyTorch 2.6 the graph lay in one JSON file and the weights in a state_dict beside it."""
    import zipfile

    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(module, (torch.zeros(2, 3),)), tmp_path / "new.pt2")
    weights = io.BytesIO()
    torch.save(module.state_dict(), weights)
    with zipfile.ZipFile(tmp_path / "new.pt2") as new, zipfile.ZipFile(tmp_path / "old.pt2", "w") as old:
        graph = next(name for name in new.namelist() if name.endswith("models/model.json"))
        old.writestr("serialized_exported_program.json", new.read(graph))
        old.writestr("serialized_state_dict.pt", weights.getvalue())
        old.writestr("serialized_constants.pt", b"")
        old.writestr("version", "7.3")
    check(module, 3, deploy.load(tmp_path / "old.pt2"), "old.pt2")


def test_a_convolution_needs_the_shape_of_a_row(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 3)
    ).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(module, torch.zeros(1, 2, 8, 4)), tmp_path / "conv.pt")
    x = np.random.default_rng(0).normal(size=(5, 2, 8, 4))
    with torch.no_grad():
        expected = module.double()(torch.from_numpy(x)).numpy()
    for source in (module, tmp_path / "conv.pt"):
        with pytest.raises(LoadError, match="input_shape"):
            deploy.load(source)
        model = deploy.load(source, input_shape=(2, 8, 4))
        # float32 weights were cast exactly; both sides run in float64
        np.testing.assert_allclose(model.outputs(x.reshape(5, -1)), expected, rtol=1e-9, atol=1e-9)


class Written(nn.Module):
    """Two linear layers and a buffer, for forwards as people write them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 5), nn.Linear(5, 3)
        self.register_buffer("mean", torch.randn(6))


class FrontNormalised(Written):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (x.view(-1, 6) / 255.0 - self.mean) / 0.5
        return torch.log_softmax(self.b(torch.relu(self.a(x))), dim=1)


class Reversed(Written):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1.0 - self.b(torch.clamp(-self.a(x.reshape(x.shape[0], -1)), min=0.0, max=6.0))


class Squared(Written):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        return self.b(h * h)


class Products(Written):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.maximum(x @ self.a.weight.t() + self.a.bias, torch.zeros(5))
        return torch.matmul(h, self.b.weight.t())


class Squeezed(Written):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.abs(self.a(x.unsqueeze(1)))).squeeze(1)


@pytest.mark.parametrize("kind", [FrontNormalised, Reversed, Squared, Products, Squeezed])
def test_forwards_as_people_write_them(kind: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = kind().eval()
    x = np.random.default_rng(0).normal(size=(5, 6))
    with torch.no_grad():
        expected = module(torch.from_numpy(x.astype(np.float32))).numpy()
    for name, load in files(module, 6, tmp_path):
        # the reference runs in float32
        np.testing.assert_allclose(load().outputs(x), expected, rtol=1e-4, atol=1e-4, err_msg=name)


def test_a_file_that_fixes_its_batch_keeps_convolutions_row_by_row(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 3)
    ).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (torch.zeros(3, 1, 5, 5),), tmp_path / "conv.onnx", dynamo=False, opset_version=17
        )
    model = deploy.load(tmp_path / "conv.onnx")
    assert model.input_shape == (1, 5, 5)
    assert any("fixes the batch to 3" in note for note in model.notes)
