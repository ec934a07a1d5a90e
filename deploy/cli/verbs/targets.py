"""``targets``: what is registered, what it guarantees and does not, and its options."""

from __future__ import annotations

import textwrap
from typing import Any

from deploy.target import Command, Json

__all__ = ["command"]


def run() -> Json:
    """List the targets that are installed."""
    from deploy.options import describe_options
    from deploy.registry import problems, targets

    return {
        "targets": {
            name: {
                "guarantee": target.guarantee,
                "non_guarantee": target.non_guarantee,
                "options": describe_options(target.options),
                "commands": {verb: command.help for verb, command in target.commands().items()},
            }
            for name, target in targets().items()
        },
        "problems": {problem.name: str(problem.error) for problem in problems()},
    }


def text(document: Json) -> str:
    """Draw the list, in lines that fit a terminal."""
    assert isinstance(document, dict)
    blocks = [_target_text(name, entry) for name, entry in document["targets"].items()]
    blocks += [f"{name} cannot be used: {cause}" for name, cause in document["problems"].items()]
    return "\n\n".join(blocks) or "no target is registered"


def _target_text(name: str, entry: dict[str, Any]) -> str:
    from deploy.options import options_text

    lines = [name]
    for title, key in (("guarantees", "guarantee"), ("does not guarantee", "non_guarantee")):
        lines.append(textwrap.fill(f"{title}: {entry[key]}", 100, initial_indent="  ", subsequent_indent="    "))
    if entry["options"]:
        lines.append(textwrap.indent(options_text(entry["options"], prefix=f"--set {name}.", width=98), "  "))
    for verb, meaning in entry["commands"].items():
        lines.append(f"  adds the verb {verb}: {meaning}")
    return "\n".join(lines)


command = Command(help="List the targets: guarantee, non-guarantee, options.", run=run, text=text)
