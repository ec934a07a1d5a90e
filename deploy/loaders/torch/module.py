"""Modules as Python objects: exported with a row of zeros, then read like an archive."""

from __future__ import annotations

import copy
import warnings
from typing import Any

from deploy.errors import LoadError
from deploy.loaders.damage import DAMAGE, one_line
from deploy.loaders.result import Settings
from deploy.loaders.torch.program import Call, Program, Reference
from deploy.loaders.torch.state import as_array
from deploy.requirement import require

__all__ = ["is_torch", "read_module"]


def is_torch(source: object) -> bool:
    """The object is a torch module, ScriptModule or ExportedProgram."""
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(source).__mro__}
    return bool(names & {"torch.nn.modules.module.Module", "torch.export.exported_program.ExportedProgram"})


def read_module(source: Any, settings: Settings) -> Program:
    """Trace a module in evaluation mode; the object itself is not changed."""
    torch = require("torch", extra="torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if isinstance(source, torch.jit.ScriptModule):
            from deploy.loaders.torch.script import trace_script

            return trace_script(source)
        if isinstance(source, torch.export.ExportedProgram):
            return _read_export(torch, source)
        module = copy.deepcopy(source).eval().to("cpu", torch.float64)
        shape = settings.input_shape or (_width(module),)
        try:
            with torch.no_grad():
                exported = torch.export.export(module, (torch.zeros(1, *shape, dtype=torch.float64),))
        except DAMAGE as error:
            raise LoadError(
                f"torch.export cannot trace it on a row of shape {list(shape)}: {one_line(error)}",
                remedy="give the shape of one row: --input-shape 1x28x28 (input_shape=(1, 28, 28))",
            ) from None
        return _read_export(torch, exported)


def _width(module: Any) -> int:
    """How many values the first affine layer takes."""
    for inner in module.modules():
        if hasattr(inner, "in_features"):
            return int(inner.in_features)
        if hasattr(inner, "in_channels"):
            break
    raise LoadError(
        "the shape of one row is not known", remedy="give it: --input-shape 1x28x28 (input_shape=(1, 28, 28))"
    )


def _read_export(torch: Any, exported: Any) -> Program:
    signature = exported.graph_signature
    stored = {**exported.state_dict, **exported.constants}
    bound = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    bound |= getattr(signature, "inputs_to_lifted_tensor_constants", {})
    constants = {name: as_array(stored[target], f"tensor {target}") for name, target in bound.items()}
    calls: list[Call] = []
    dims: tuple[int | str, ...] = ()
    inputs = [name for name in signature.user_inputs if isinstance(name, str)]
    outputs: list[str] = []
    for node in exported.graph.nodes:
        if node.op == "placeholder" and node.name in inputs:
            dims = tuple(int(n) if isinstance(n, int) else str(n) for n in node.meta["val"].shape)
        elif node.op == "call_function":
            calls.append(_read_node(node))
        elif node.op == "output":
            outputs = [argument.name for argument in node.args[0] if hasattr(argument, "name")]
    if len(inputs) != 1 or not outputs:
        raise LoadError(f"{len(inputs)} inputs that matter", remedy="supported is one input tensor")
    return Program(calls, constants, inputs[0], dims, outputs)


def _read_node(node: Any) -> Call:
    target = node.target
    schema = getattr(target, "_schema", None)
    if schema is None:
        name = getattr(target, "__name__", str(target))
        arguments = {f"argument {index}": _argument(value) for index, value in enumerate(node.args)}
        return Call(name, arguments, (node.name,))
    names = [argument.name for argument in schema.arguments]
    arguments = {name: _argument(value) for name, value in zip(names, node.args, strict=False)}
    arguments |= {name: _argument(value) for name, value in node.kwargs.items()}
    return Call(schema.name.partition("::")[2], arguments, (node.name,))


def _argument(value: Any) -> Any:
    if hasattr(value, "op") and hasattr(value, "name"):
        return Reference(value.name)
    if isinstance(value, list | tuple):
        return [_argument(item) for item in value]
    return value
