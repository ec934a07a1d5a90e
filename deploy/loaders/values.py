"""What lowerings of every format say where an input is of the wrong sort."""

from __future__ import annotations

from deploy.errors import LoadError

__all__ = ["refuse_constant", "refuse_moving"]


def refuse_constant(name: str) -> LoadError:
    """The error where the input called `name` must depend on the network's input, and does not."""
    return LoadError(f"{name} is a constant; supported is one that depends on the network's input")


def refuse_moving(name: str) -> LoadError:
    """The error where the input called `name` must be a constant, and depends on the network's input."""
    return LoadError(f"{name} depends on the network's input; supported is a constant there")
