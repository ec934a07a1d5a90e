"""What programs do with the logits: probabilities and labels."""

from __future__ import annotations

from deploy.loaders.tails import decide, end_network, span_one_group, stripped_decision
from deploy.loaders.torch.table import Arguments, Context, Value, operator, signal_at

__all__: list[str] = []


@operator("softmax", "_softmax", "log_softmax", "_log_softmax")
def _softmax(context: Context, arguments: Arguments) -> Value:
    signal = signal_at(arguments, "self", "input")
    span_one_group(signal, int(arguments["dim"]))
    return end_network(signal, "log_softmax" if "log_softmax" in context.op else "softmax", context.label)


@operator("sigmoid")
def _sigmoid(context: Context, arguments: Arguments) -> Value:
    return end_network(signal_at(arguments, "self"), "sigmoid", context.label)


@operator("argmax", "argmin", takes_tail=True)
def _arg_extreme(context: Context, arguments: Arguments) -> Value:
    value = arguments["self"]
    axis = arguments.get("dim")
    span_one_group(value, len(value.shape) - 1 if axis is None else int(axis))
    rule = "argmax" if context.op == "argmax" else "argmin"
    context.chain.note(stripped_decision(context.label))
    return decide(value, "argmax" if rule == "argmax" else "argmin", (1,), context.label)
