"""How a :class:`deploy.target.Command` becomes a verb: common options, environment variables, progress.

Every verb gains ``--json``, ``--quiet`` and ``--debug``, and every option ``NAME`` is also read from
``RELU_DEPLOY_NAME``. A parameter called ``progress`` is no option: it is given something that draws on stderr.
"""

from __future__ import annotations

import copy
import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

import typer
from typer.core import TyperCommand
from typer.models import OptionInfo

from deploy.cli.drawing import draw_progress
from deploy.errors import DeployError
from deploy.target import Command, Json

__all__ = ["Answer", "DoneBut", "PlainHelp", "as_verb", "environment_variable", "write_json"]

PREFIX = "RELU_DEPLOY_"
_EPILOG = "Every option is also read from a variable: --fail-under from RELU_DEPLOY_FAIL_UNDER, and so on."
_TAKES = {bool: "", int: "N", float: "NUMBER", str: "TEXT"}
"""What help shows behind an option that names nothing better; a flag takes nothing."""


class DoneBut(Exception):
    """The work is done and its document stands, and yet the call must fail.

    Parameters
    ----------
    document : what the verb would have returned.
    error : why the exit code is not 0: a gate that was missed, a target that refuses.
    """

    def __init__(self, document: Json, error: DeployError) -> None:
        super().__init__(str(error))
        self.document = document
        self.error = error


@dataclass(frozen=True, slots=True)
class Answer:
    """What a verb gave, ready to print."""

    document: Json
    draw: Callable[[Json], str]
    error: DeployError | None = None

    def text(self, *, as_json: bool) -> str:
        """What goes to stdout: one JSON document, or the same for people."""
        if as_json:
            document = self.document
            if self.error is not None and isinstance(document, dict):
                document = {**document, "error": describe(self.error)}
            return write_json(document, indent=1) + "\n"
        drawn = "" if self.document is None else self.draw(self.document)
        return drawn if not drawn or drawn.endswith("\n") else drawn + "\n"


def describe(error: DeployError) -> dict[str, Json]:
    """An error as JSON."""
    return {"code": error.code, "cause": error.cause, "place": error.place, "remedy": error.remedy}


def write_json(document: Json, *, indent: int | None = None) -> str:
    """JSON in characters that stdout can carry; what it cannot is written as JSON's own escapes."""
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    return json.dumps(document, indent=indent, allow_nan=False, ensure_ascii=encoding != "utf8")


def environment_variable(option: str) -> str:
    """Name of the environment variable of an option.

    >>> environment_variable("fail_under")
    'RELU_DEPLOY_FAIL_UNDER'
    """
    return PREFIX + option.strip("-_").replace("-", "_").upper()


class PlainHelp:
    """A typer command whose ``--help`` is shown as the flag that it is."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.metavar = ""
        return option


class _Verb(PlainHelp, TyperCommand):
    pass


def as_verb(name: str, command: Command) -> Any:
    """Build the typer command of a verb; invoking it gives an :class:`Answer`."""
    signature = inspect.signature(command.run, eval_str=True)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != "progress"]

    def invoke(**values: Any) -> Answer:
        quiet = values.pop("quiet")
        for common in ("json", "debug"):  # read at the boundary, which needs them where the call does not parse
            values.pop(common)
        try:
            if len(own) == len(signature.parameters):
                return Answer(command.run(**values), command.text)
            with draw_progress(quiet=quiet) as progress:
                return Answer(command.run(progress=progress, **values), command.text)
        except DoneBut as done:
            return Answer(done.document, command.text, done.error)

    parameters = [
        _as_option(parameter).replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in [*own, *_COMMON]
    ]
    invoke.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    invoke.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name, cls=_Verb, help=command.help, epilog=_EPILOG)(invoke)
    return typer.main.get_command(app)


def _common(name: str, flags: tuple[str, ...], help: str) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=False,
        annotation=Annotated[bool, typer.Option(*flags, help=help)],
    )


_COMMON = [
    _common("json", ("--json",), "Print exactly one JSON document, an error too."),
    _common("quiet", ("--quiet", "-q"), "Say nothing on stderr but errors."),
    _common("debug", ("--debug",), "Show the traceback of an error."),
]


def _as_option(parameter: inspect.Parameter) -> inspect.Parameter:
    """Give an option its environment variable and what help says of its value; arguments have neither.

    Help says once how variables are called, and shows those that are called otherwise.
    """
    annotation = parameter.annotation
    base, info = annotation, None
    if get_origin(annotation) is Annotated:
        base, *extras = get_args(annotation)
        info = next((extra for extra in extras if isinstance(extra, OptionInfo)), None)
        if info is None:
            return parameter
    elif parameter.default is inspect.Parameter.empty:
        return parameter
    option = copy.copy(info) if info is not None else typer.Option()
    if option.envvar is None:
        option.envvar = environment_variable(parameter.name)
    names = [option.default, *(option.param_decls or ())]  # typer takes the first spelling for a default
    flag = next((name for name in names if str(name).startswith("--")), parameter.name)
    option.show_envvar = option.envvar != environment_variable(flag)
    if option.metavar is None:
        option.metavar = next((_TAKES[kind] for kind in (base, *get_args(base)) if kind in _TAKES), None)
    return parameter.replace(annotation=Annotated[base, option])
