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
    used = [value for value in list(graph.inputs())[1:] if list(value.uses())]
    if len(used) != 1:
        raise LoadError(f"{len(used)} inputs that matter", remedy="supported is one input tensor")
    reader = _Reader(torch)
    calls = reader.read_block(graph)
    results = _unpack(calls, [value.debugName() for value in graph.outputs()])
    return Program(calls, reader.constants, used[0].debugName(), None, results)


class _Reader:
    """Reads blocks of a graph; constants of all blocks are collected by name."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.constants: dict[str, Any] = {}
        self._literals: dict[str, Any] = {}

    def read_block(self, block: Any) -> list[Call]:
        """The calls of a block, in order."""
        calls: list[Call] = []
        for node in block.nodes():
            kind = node.kind()
            outputs = tuple(value.debugName() for value in node.outputs())
            if kind == "prim::Constant":
                self._read_constant(outputs[0], node)
                continue
            if kind in ("prim::Loop", "prim::CallFunction", "prim::CallMethod"):
                raise LoadError(f"{kind} is not supported", place=f"node {node.kind()}", remedy="trace the module")
            arguments = {
                name: self._argument(value.debugName())
                for name, value in zip(_argument_names(self._torch, node), node.inputs(), strict=False)
            }
            branches = tuple(
                (self.read_block(inner), tuple(Reference(value.debugName()) for value in inner.outputs()))
                for inner in node.blocks()
            )
            calls.append(Call(kind.partition("::")[2], arguments, outputs, branches))
        return calls

    def _read_constant(self, name: str, node: Any) -> None:
        value = node.output().toIValue()
        is_tensor = isinstance(value, self._torch.Tensor)
        if is_tensor:
            self.constants[name] = as_array(value, f"constant {name}")
        else:
            self._literals[name] = value

    def _argument(self, name: str) -> Any:
        return self._literals[name] if name in self._literals else Reference(name)


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
