"""The boundary of the command: arguments in, one exit code out, and no traceback unless asked for.

Only the standard library's lightest modules are imported before :func:`main` can catch Ctrl-C.
"""

from __future__ import annotations

import errno
import itertools
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

    from deploy.errors import DeployError

__all__ = ["main", "run"]

INTERRUPTED = 130


def main() -> None:
    """Entry point of the console script."""
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_ours:
        signal.signal(signal.SIGINT, _interrupt)
        signal.signal(signal.SIGALRM, _interrupt)
    code = run(sys.argv[1:])
    if is_ours:  # all is written and said: what the interpreter does at its end has no use for an exception
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Ctrl-C, but for imports, which are finished first.

    Modules in C and Rust run Python while they are imported, and not all of them survive an exception there: a
    pydantic model may be left with a pattern that matches nothing, in memory that is no longer its own.
    """
    where = frame
    while where is not None:
        if where.f_code.co_filename.startswith("<frozen importlib"):
            signal.setitimer(signal.ITIMER_REAL, 0.02)  # comes back here as SIGALRM
            return
        where = where.f_back
    raise KeyboardInterrupt


def run(arguments: Sequence[str]) -> int:
    """Run the command and give its exit code: 0, or the code of :mod:`deploy.errors`, or 130."""
    try:
        _prepare_streams()
        return _run(_verb_first(arguments))
    except KeyboardInterrupt:
        return _interrupted(arguments)
    finally:
        _close_stdout()


def _verb_first(arguments: Sequence[str]) -> list[str]:
    """Put the flags that every verb has behind the verb: ``--json inspect m`` means ``inspect --json m``.

    >>> _verb_first(["--json", "-q", "inspect", "m.onnx"]), _verb_first(["--version", "--json"])
    (['inspect', '--json', '-q', 'm.onnx'], ['--version', '--json'])
    """
    flags = list(itertools.takewhile(("--json", "--quiet", "-q", "--debug").__contains__, arguments))
    verb = list(arguments[len(flags) : len(flags) + 1])
    return [*verb, *flags, *arguments[len(flags) + 1 :]]


def _prepare_streams() -> None:
    """A stream that was closed swallows; a character that the stream's encoding lacks is written as its escape."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
        elif hasattr(stream, "reconfigure") and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _run(arguments: list[str]) -> int:
    from deploy.cli.verb import Answer
    from deploy.errors import DeployError

    as_json = _is_given("--json", arguments)
    try:
        answer = _answer(arguments)
    except DeployError as error:
        return _fail(error, arguments, as_json=as_json)
    if not isinstance(answer, Answer):  # typer has said everything: help, the version, or that it was interrupted
        return _interrupted(arguments) if answer == INTERRUPTED else 0
    try:
        text = answer.text(as_json=as_json)
    except Exception as error:  # noqa: BLE001  the boundary
        return _fail(_unexpected(error), arguments, as_json=as_json)
    try:
        _print(text)
    except DeployError as error:
        return _fail(error, arguments, as_json=False)
    if answer.error is None:
        return 0
    return _fail(answer.error, arguments, as_json=False)


def _interrupted(arguments: Sequence[str]) -> int:
    if _is_given("--json", list(arguments)):
        _print('{"error": {"code": "interrupted", "cause": "interrupted", "place": "", "remedy": ""}}\n')
    sys.stderr.write("interrupted\n")
    return INTERRUPTED


def _answer(arguments: list[str]) -> object:
    """What the verb answered, or an exit code where typer has already said everything."""
    from deploy.cli.app import build_app
    from deploy.errors import DeployError, InputError, StorageError, UsageError

    try:
        return build_app().main(arguments or ["--help"], prog_name="relu-deploy", standalone_mode=False)
    except DeployError:
        raise
    except OSError as error:
        if error.filename is None and error.strerror is None:
            raise DeployError(str(error)) from error
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise InputError(error.strerror or str(error), place=str(error.filename or "")[:200]) from error
        raise StorageError(error.strerror or str(error), place=str(error.filename or "")) from error
    except Exception as error:
        if _came_from_interrupt(error):
            raise KeyboardInterrupt from error
        if hasattr(error, "format_message"):  # typer's own errors: the call does not parse
            context = getattr(error, "ctx", None)
            path = context.command_path if context is not None else "relu-deploy"
            cause = " ".join(error.format_message().split())
            raise UsageError(cause.rstrip("."), remedy=f"see {path} --help") from error
        raise _unexpected(error) from error


def _unexpected(error: Exception) -> DeployError:
    from deploy.errors import DeployError

    found = DeployError(
        f"unexpected {type(error).__name__}: {error}", remedy="run again with --debug and report what it shows"
    )
    found.__cause__ = error
    return found


def _came_from_interrupt(error: BaseException) -> bool:
    """Say whether Ctrl-C is at the bottom of an error: half-done imports turn it into errors of their own."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, KeyboardInterrupt):
            return True
        inner = inner.__cause__ or inner.__context__
    return False


def _is_given(flag: str, arguments: list[str]) -> bool:
    """Say whether a common flag is set, before (and whether or not) the rest parses."""
    from deploy.cli.verb import environment_variable

    variable = os.environ.get(environment_variable(flag), "")
    return flag in arguments or variable.lower() in ("1", "true", "t", "yes", "y", "on")


def _fail(error: DeployError, arguments: list[str], *, as_json: bool) -> int:
    from deploy.cli.verb import describe, write_json
    from deploy.text import printable

    if _is_given("--debug", arguments):
        import traceback

        traceback.print_exception(error)
    if as_json:
        _print(write_json({"error": describe(error)}) + "\n")
    place = f"{error.place}: " if error.place else ""
    sys.stderr.write(printable(f"error: {place}{error.cause}\n"))
    if error.remedy:
        sys.stderr.write(printable(f"  what helps: {error.remedy}\n"))
    return error.exit_code


def _print(text: str) -> None:
    """Write to stdout; a reader that has gone (``| head``) has seen enough, a full disk is an error."""
    from deploy.errors import StorageError
    from deploy.text import printable

    try:
        sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()
    except BrokenPipeError:
        _silence_stdout()
    except OSError as error:
        _silence_stdout()
        raise StorageError(f"stdout cannot be written: {error.strerror}") from None


def _silence_stdout() -> None:
    """Let the interpreter's last flush go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _close_stdout() -> None:
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        _silence_stdout()
