"""TorchScript: the archive is loaded by ``torch.jit`` (no Python code in it), frozen, and its graph read."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deploy.errors import LoadError
from deploy.loaders.damage import DAMAGE, one_line
from deploy.loaders.torch.program import Call, Program, Reference
from deploy.loaders.torch.state import as_array
from deploy.requirement import require

__all__ = ["read_script", "trace_script"]


def read_script(path: Path) -> Program:
    """Read a TorchScript archive."""
    torch = require("torch", extra="torch")
    return _quietly(lambda: trace_script(torch.jit.load(str(path), map_location="cpu")))


def _quietly(work: Callable[[], Program]) -> Program:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return work()
    except LoadError:
        raise
    except DAMAGE as error:
        raise LoadError(f"damaged, or no TorchScript ({one_line(error)})", remedy="export it again") from None


def trace_script(module: Any) -> Program:
    """Freeze a ScriptModule (weights become constants, branches on training fall away) and list its calls."""
    torch = require("torch", extra="torch")
    frozen = torch.jit.freeze(module.eval(), optimize_numerics=False)
    graph = frozen.graph
    inputs = list(graph.inputs())[1:]
    used = [value for value in inputs if list(value.uses())]
    if len(used) != 1:
        raise LoadError(f"{len(used)} inputs that matter", remedy="supported is one input tensor")
    constants: dict[str, Any] = {}
    literals: dict[str, Any] = {}
    calls: list[Call] = []
    for node in graph.nodes():
        kind = node.kind()
        outputs = tuple(value.debugName() for value in node.outputs())
        if kind == "prim::Constant":
            value = node.output().toIValue()
            if isinstance(value, torch.Tensor):
                constants[outputs[0]] = as_array(value, f"constant {outputs[0]}")
            else:
                literals[outputs[0]] = value
            continue
        if kind in ("prim::If", "prim::Loop", "prim::CallFunction", "prim::CallMethod"):
            raise LoadError(f"{kind} depends on the input", place=f"node {outputs[:1]}", remedy="trace the module")
        names = _argument_names(torch, node)
        given = [value.debugName() for value in node.inputs()]
        arguments = {
            name: literals[value] if value in literals else Reference(value)
            for name, value in zip(names, given, strict=False)
        }
        calls.append(Call(kind.partition("::")[2], arguments, outputs))
    results = _unpack(calls, [value.debugName() for value in graph.outputs()])
    return Program(calls, constants, used[0].debugName(), None, results)


def _argument_names(torch: Any, node: Any) -> list[str]:
    schema = node.schema()
    if schema == "(no schema)":
        return [f"argument {index}" for index, _ in enumerate(node.inputs())]
    return [argument.name for argument in torch._C.parse_schema(schema).arguments]


def _unpack(calls: list[Call], outputs: list[str]) -> list[str]:
    """Outputs, with a tuple of tensors taken apart."""
    makers = {name: call for call in calls for name in call.outputs}
    maker = makers.get(outputs[0]) if len(outputs) == 1 else None
    if maker is None or maker.op != "TupleConstruct":
        return outputs
    return [value.name for value in maker.arguments.values() if isinstance(value, Reference)]
