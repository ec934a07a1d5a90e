"""Random ReLU chains in random ONNX spellings, for the loader to read and onnxruntime to run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]

OPSETS = (7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 18, 20, 21)


@dataclass(slots=True)
class Writer:
    """A graph under construction: `value` is the tensor that the chain has reached, of shape `shape`."""

    draw: Any
    rng: np.random.Generator
    opset: int
    dtype: type[np.floating[Any]]
    shape: tuple[int, ...]
    value: str = "x"
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    spelled: list[str] = field(default_factory=list)

    def name(self, stem: str) -> str:
        return f"{stem}.{len(self.nodes)}/{len(self.initializers)}"

    def pick(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def node(self, op: str, inputs: Sequence[str], *, domain: str = "", **attributes: Any) -> str:
        """Append a node and move on to its output."""
        output = self.name(op)
        node_name = self.pick("", output)
        self.nodes.append(helper.make_node(op, inputs, [output], name=node_name, domain=domain, **attributes))
        self.spelled.append(op)
        self.value = output
        return output

    def constant(self, array: Array) -> str:
        """A constant in one of the ways that files have for it; the tensor's name."""
        name = self.name("c")
        way = self.pick("raw", "typed", "node", "identity", "cast")
        if way == "cast" and array.dtype == np.float32 and array.size:
            wide = numpy_helper.from_array(array.astype(np.float64), name)
            self.initializers.append(wide)
            output = self.name("cast")
            self.nodes.append(helper.make_node("Cast", [name], [output], to=TensorProto.FLOAT))
            return output
        if way == "typed" and array.dtype in (np.float32, np.float64, np.int64):
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            tensor = helper.make_tensor(name, kind, array.shape, array.ravel().tolist())
        else:
            tensor = numpy_helper.from_array(array, name)
        if way == "node":
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
            return name
        self.initializers.append(tensor)
        if way == "identity":
            output = self.name("copy")
            self.nodes.append(helper.make_node("Identity", [name], [output]))
            return output
        return name

    def normal(self, *shape: int) -> Array:
        scale = 1.0 / math.sqrt(max(shape[-1], 1)) if shape else 1.0
        return np.asarray(self.rng.normal(size=shape) * scale, dtype=self.dtype)

    def positive(self, *shape: int) -> Array:
        return np.asarray(self.rng.uniform(0.5, 2.0, size=shape), dtype=self.dtype)

    @property
    def width(self) -> int:
        return self.shape[-1]


def normalise_front(w: Writer) -> None:
    """What exporters put in front of the first layer."""
    way = w.pick("none", "sub_div", "mul_add", "scaler", "batch_norm", "reversed")
    last = w.shape[-1:]
    if way == "sub_div":
        w.node("Sub", [w.value, w.constant(w.normal(*last))])
        w.node("Div", [w.value, w.constant(w.positive(*last))])
    elif way == "mul_add":
        w.node("Mul", [w.constant(w.positive(*last)), w.value])
        w.node("Add", [w.value, w.constant(w.normal(1))])
    elif way == "reversed":
        w.node("Sub", [w.constant(w.normal()), w.value])
        w.node("Neg", [w.value])
    elif way == "scaler" and w.dtype is np.float32 and len(w.shape) == 2:
        offset, scale = w.normal(w.width).tolist(), w.positive(w.width).tolist()
        w.node("Scaler", [w.value], domain="ai.onnx.ml", offset=offset, scale=scale)
    elif way == "batch_norm" and len(w.shape) > 1:
        batch_norm(w)


def batch_norm(w: Writer) -> None:
    channels = w.shape[1]
    parameters = [w.positive(channels), w.normal(channels), w.normal(channels), w.positive(channels)]
    w.node("BatchNormalization", [w.value, *(w.constant(a) for a in parameters)], epsilon=w.pick(1e-5, 1e-3))


def lower_windows(w: Writer) -> None:
    """Convolution, pooling and padding over a tensor of 4 axes."""
    if w.pick(True, False):
        pads = [0, 0, 1, 0, 0, 0, 0, 2]
        if w.opset < 11:
            w.node("Pad", [w.value], pads=pads, mode="constant", value=0.5)
        else:
            w.node("Pad", [w.value, w.constant(np.array(pads)), w.constant(np.array(0.5, dtype=w.dtype))])
        w.shape = (w.shape[0], w.shape[1], w.shape[2] + 1, w.shape[3] + 2)
    channels, height, width = w.shape[1:]
    if w.pick(True, False):
        groups = w.pick(1, channels)
        outputs = groups * w.pick(1, 2)
        kernel, stride, dilation = (w.pick(1, 2), w.pick(1, 2)), (w.pick(1, 2), 1), (1, w.pick(1, 2))
        pads = [w.pick(0, 1), 0, w.pick(0, 1), 1]
        weight = w.constant(w.normal(outputs, channels // groups, *kernel))
        inputs = [w.value, weight] + ([w.constant(w.normal(outputs))] if w.pick(True, False) else [])
        w.node("Conv", inputs, strides=stride, dilations=dilation, pads=pads, group=groups, kernel_shape=kernel)
        sizes = [
            (n + before + after - d * (k - 1) - 1) // s + 1
            for n, k, s, d, before, after in zip(
                (height, width), kernel, stride, dilation, pads[:2], pads[2:], strict=True
            )
        ]
        w.shape = (w.shape[0], outputs, *sizes)
    if w.pick(True, False) and min(w.shape[2:]) >= 2:
        pads, stride = w.pick([0, 0, 0, 0], [1, 0, 0, 1]), w.pick(1, 2)
        w.node(
            "AveragePool",
            [w.value],
            kernel_shape=[2, 2],
            strides=[stride, stride],
            pads=pads,
            count_include_pad=w.pick(0, 1),
        )
        w.shape = (
            w.shape[0],
            w.shape[1],
            (w.shape[2] + pads[0] + pads[2] - 2) // stride + 1,
            (w.shape[3] + pads[1] + pads[3] - 2) // stride + 1,
        )
    if w.pick(True, False):
        activate(w)


def flatten(w: Writer) -> None:
    """From any shape to (batch, width)."""
    width = math.prod(w.shape[1:])
    way = w.pick("flatten", "reshape", "reshape_zero", "computed", "transposed")
    if way == "transposed" and len(w.shape) == 4:
        w.node("Transpose", [w.value], perm=[0, 2, 3, 1])
        w.node("Flatten", [w.value], axis=1)
    elif way == "reshape":
        w.node("Reshape", [w.value, w.constant(np.array([-1, width]))])
    elif way == "reshape_zero":
        w.node("Reshape", [w.value, w.constant(np.array([0, -1]))])
    elif way == "computed":
        tensor = w.value
        w.node("Shape", [tensor])
        w.node("Gather", [w.value, w.constant(np.array(0))], axis=0)
        if w.opset < 13:
            w.node("Unsqueeze", [w.value], axes=[0])
        else:
            w.node("Unsqueeze", [w.value, w.constant(np.array([0]))])
        w.node("Concat", [w.value, w.constant(np.array([-1]))], axis=0)
        w.node("Reshape", [tensor, w.value])
    else:
        w.node("Flatten", [w.value], axis=1)
    w.shape = (w.shape[0], width)


def weight(w: Writer, rows: int, columns: int) -> str:
    """A weight of (rows, columns), plain, transposed by a node, or quantised."""
    way = w.pick("plain", "plain", "transposed", "quantised")
    if way == "transposed":
        name = w.constant(w.normal(columns, rows))
        output = w.name("turned")
        w.nodes.append(helper.make_node("Transpose", [name], [output], perm=[1, 0]))
        return output
    if way == "quantised" and w.opset >= 10 and w.dtype is np.float32:
        codes = numpy_helper.from_array(w.rng.integers(-127, 128, (rows, columns)).astype(np.int8), w.name("codes"))
        w.initializers.append(codes)
        scale = numpy_helper.from_array(np.array(0.01, np.float32), w.name("scale"))
        w.initializers.append(scale)
        output = w.name("dequantised")
        w.nodes.append(helper.make_node("DequantizeLinear", [codes.name, scale.name], [output]))
        return output
    return w.constant(w.normal(rows, columns))


def affine(w: Writer, n_out: int) -> None:
    """One affine layer in one of its spellings."""
    n_in = w.width
    if len(w.shape) == 1:
        if w.pick(True, False):
            w.node("MatMul", [weight(w, n_out, n_in), w.value])
        else:
            w.node("MatMul", [w.value, weight(w, n_in, n_out)])
        add_bias(w, n_out)
        w.shape = (n_out,)
        return
    way = w.pick("gemm", "gemm", "matmul", "matmul", "left", "gemm_left", "batched")
    if way == "gemm":
        transposed = w.pick(0, 1)
        matrix = weight(w, n_out, n_in) if transposed else weight(w, n_in, n_out)
        bias: list[str] = []
        shape = w.pick(None, (n_out,), (1, n_out), (1,), ())
        if shape is not None or w.opset < 11:
            bias = [w.constant(w.normal(*(shape if shape is not None else (n_out,))))]
        attributes: dict[str, Any] = {"transB": transposed}
        if w.pick(True, False):
            attributes |= {"alpha": 0.5, "beta": w.pick(2.0, 0.25)}
        w.node("Gemm", [w.value, matrix, *bias], **attributes)
    elif way == "matmul":
        w.node("MatMul", [w.value, weight(w, n_in, n_out)])
        add_bias(w, n_out)
    elif way == "batched":
        w.node("MatMul", [w.value, w.constant(w.normal(1, n_in, n_out))])
        w.node("Reshape", [w.value, w.constant(np.array([-1, n_out]))])
        add_bias(w, n_out)
    else:
        w.node("Transpose", [w.value], perm=[1, 0])
        if way == "left":
            w.node("MatMul", [weight(w, n_out, n_in), w.value])
        else:
            w.node("Gemm", [weight(w, n_in, n_out), w.value, w.constant(w.normal(n_out, 1))], transA=1)
        w.node("Transpose", [w.value])
        add_bias(w, n_out)
    w.shape = (w.shape[0], n_out)


def add_bias(w: Writer, n_out: int) -> None:
    way = w.pick("none", "right", "left", "sub", "scalar", "sum", "row")
    if way == "none":
        return
    bias = w.constant(
        w.normal(1)
        if way == "scalar"
        else w.normal(1, n_out)
        if way == "row" and len(w.shape) > 1
        else w.normal(n_out)
    )
    if way == "sub":
        w.node("Sub", [w.value, bias])
    elif way == "left":
        w.node("Add", [bias, w.value])
    elif way == "sum" and w.opset >= 8:
        w.node("Sum", [w.value, bias])
    else:
        w.node("Add", [w.value, bias])


def idle(w: Writer) -> None:
    """Nodes that exporters leave behind."""
    way = w.pick("none", "none", "identity", "dropout", "squeeze", "mul", "batch_norm", "cast")
    if way == "identity":
        w.node("Identity", [w.value])
    elif way == "dropout":
        w.node("Dropout", [w.value])
    elif way == "mul":
        w.node("Mul", [w.value, w.constant(w.positive(1))])
    elif way == "cast":
        w.node("Cast", [w.value], to=helper.np_dtype_to_tensor_dtype(np.dtype(w.dtype)))
    elif way == "batch_norm" and len(w.shape) == 2:
        batch_norm(w)
    elif way == "squeeze":
        axis = len(w.shape)
        if w.opset < 13:
            w.node("Unsqueeze", [w.value], axes=[axis])
            w.node("Squeeze", [w.value], axes=[axis])
        else:
            w.node("Unsqueeze", [w.value, w.constant(np.array([axis]))])
            w.node("Squeeze", [w.value, w.constant(np.array([-1]))])


def activate(w: Writer) -> None:
    """A ReLU, or an activation that ReLUs write exactly."""
    way = w.pick(
        "Relu", "Relu", "Relu", "LeakyRelu", "PRelu", "Clip", "Abs", "Max", "Min", "Mul", "Pow", "HardSigmoid"
    )
    channels = w.shape[1] if len(w.shape) > 1 else w.shape[0]
    if way == "LeakyRelu":
        w.node("LeakyRelu", [w.value], alpha=0.125)
    elif way == "PRelu" and w.dtype is np.float32:
        w.node("PRelu", [w.value, w.constant(w.normal(channels, *[1] * (len(w.shape) - 2)))])
    elif way == "Clip" and w.dtype is np.float32:
        low, high = w.pick((0.0, None), (0.0, 6.0), (-0.25, 0.5), (None, 0.75))
        if w.opset < 11:
            bounds = {name: bound for name, bound in (("min", low), ("max", high)) if bound is not None}
            w.node("Clip", [w.value], **bounds)
        else:
            names = ["" if bound is None else w.constant(np.array(bound, dtype=w.dtype)) for bound in (low, high)]
            w.node("Clip", [w.value, *names])
    elif way in ("Max", "Min") and w.opset >= 8:
        w.node(way, [w.value, w.constant(np.array([w.pick(0.0, 0.25)], dtype=w.dtype))])
    elif way == "Mul":
        w.node("Mul", [w.value, w.value])
    elif way == "Pow":
        w.node("Pow", [w.value, w.constant(np.array(2, dtype=w.dtype))])
    elif way == "HardSigmoid" and w.dtype is np.float32:
        w.node("HardSigmoid", [w.value])
    elif way == "Abs":
        w.node("Abs", [w.value])
    else:
        w.node("Relu", [w.value])


@dataclass(frozen=True, slots=True)
class Chain:
    """A model, and rows for it: arrays of the model's input shape, one call each."""

    model: onnx.ModelProto
    calls: tuple[Array, ...]
    dtype: type[np.floating[Any]]
    spelled: tuple[str, ...]


@st.composite
def chains(draw: Any) -> Chain:
    """A random chain with random weights; every choice can be shrunk."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    opset = draw(st.sampled_from(OPSETS))
    dtype = draw(st.sampled_from((np.float32, np.float32, np.float32, np.float64)))
    form = draw(st.sampled_from(("row", "rows", "fixed", "flat", "image", "images")))
    n_in = draw(st.integers(1, 6))
    batch: int | str = {"rows": "batch", "images": "N", "fixed": 3}.get(form, 1)
    rest = (2, 4, 3) if form.startswith("image") else (n_in,)
    shape = rest if form == "flat" else (1 if isinstance(batch, str) else batch, *rest)
    w = Writer(draw, rng, opset, dtype, shape)
    if form.startswith("image"):
        if w.pick(True, False):
            lower_windows(w)
        flatten(w)
    else:
        normalise_front(w)
    depth = draw(st.integers(1, 4))
    for layer in range(depth):
        affine(w, draw(st.integers(1, 6)))
        idle(w)
        if layer < depth - 1 and draw(st.booleans()):
            activate(w)
    outputs = _end(w)
    declared_in = shape if form == "flat" else (batch, *rest)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = [helper.make_tensor_value_info("x", kind, declared_in)]
    if draw(st.booleans()):
        inputs += [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in w.initializers]
    if draw(st.booleans()):
        w.nodes.append(helper.make_node("Relu", [w.nodes[0].output[0]], ["nobody reads this"]))
        if w.nodes[0].op_type in ("Constant", "Cast", "Identity", "Transpose", "Shape", "DequantizeLinear"):
            w.nodes.pop()
    if draw(st.booleans()):
        order = rng.permutation(len(w.nodes))
        w.nodes = [w.nodes[index] for index in order]
    graph = helper.make_graph(w.nodes, "chain", inputs, outputs, w.initializers)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 2)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=min(8, 10))
    rows = [np.asarray(rng.normal(size=shape), dtype=dtype) for _ in range(3)]
    return Chain(model, tuple(rows), dtype, tuple(w.spelled))


def _end(w: Writer) -> list[onnx.ValueInfoProto]:
    """The tail, and the declared outputs."""
    way = w.pick("none", "none", "relu", "softmax", "log_softmax", "sigmoid", "argmax")
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(w.dtype))
    is_wide = w.width > 1
    if way == "relu":
        w.node("Relu", [w.value])
    elif way == "sigmoid":
        w.node("Sigmoid", [w.value])
    elif way in ("softmax", "argmax") and is_wide:
        w.node("Softmax", [w.value], axis=len(w.shape) - 1)
    elif way == "log_softmax" and is_wide:
        w.node("LogSoftmax", [w.value], axis=len(w.shape) - 1)
    outputs = [helper.make_tensor_value_info(w.value, kind, None)]
    if way == "argmax" and is_wide:
        label = w.node("ArgMax", [w.value], axis=len(w.shape) - 1, keepdims=w.pick(0, 1))
        outputs.append(helper.make_tensor_value_info(label, TensorProto.INT64, None))
    return outputs
