"""Options of targets, passed through without knowing any: ``--set ckks.fit=exact``, ``--options FILE.toml``."""

from __future__ import annotations

import json
import math
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from deploy.errors import UsageError
from deploy.reading import read_text
from deploy.registry import nearest

if TYPE_CHECKING:
    from deploy.target import Target

__all__ = ["describe_options", "options_text", "parse_options", "parse_settings"]


_NO_LIST = ("tuple_type", "list_type")


def parse_options(
    targets: Mapping[str, Target], *, sets: Sequence[str] = (), file: str | Path | None = None
) -> dict[str, BaseModel]:
    """Build the options of each target.

    Parameters
    ----------
    targets : the targets whose options are wanted.
    sets : "target.option=value"; they override the file's.
    file : TOML with one table per target.

    Raises
    ------
    UsageError : an unknown target or option (with the nearest name), or a value that does not fit.
    """
    values: dict[str, dict[str, Any]] = {name: {} for name in targets}
    if file is not None:
        for name, table in _read_toml(Path(file)).items():
            _check_target(name, targets, str(file))
            if not isinstance(table, dict):
                raise UsageError(f"{name} is no table", place=str(file), remedy=f"write [{name}]")
            values[name].update(table)
    for text in sets:
        key, equals, value = text.partition("=")
        name, dot, option = key.partition(".")
        if not equals or not dot:
            raise UsageError(f"--set {text} is not understood", remedy="write --set target.option=value")
        _check_target(name, targets, "--set")
        values[name][option] = _parse_value(value)
    return {name: _validate("target", name, targets[name].options, values[name]) for name in targets}


def parse_settings(options: type[BaseModel], sets: Sequence[str], *, what: str, name: str) -> BaseModel:
    """Build one set of options from "option=value" texts; `what` and `name` say whose they are.

    Raises
    ------
    UsageError : an unknown option (with the nearest name), or a value that does not fit.
    """
    values = {}
    for text in sets:
        option, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text} is not understood", remedy="write --set option=value")
        values[option] = _parse_value(value)
    return _validate(what, name, options, values)


def describe_options(options: type[BaseModel]) -> list[dict[str, Any]]:
    """Name, type, what can be typed, default and meaning of each option, for people and for ``--json``."""
    schema = options.model_json_schema()
    found = []
    for name, field in options.model_fields.items():
        entry = schema.get("properties", {}).get(name, {})
        kinds = [part.get("type") or part.get("const") for part in entry.get("anyOf", [])]
        choices = entry.get("enum")
        kind = " | ".join(map(str, choices)) if choices else entry.get("type") or " | ".join(map(str, kinds))
        default = (
            None
            if field.is_required()
            else json.loads(json.dumps(field.get_default(call_default_factory=True), default=str))
        )
        found.append(
            {
                "name": name,
                "type": kind,
                "takes": _spelling(entry),
                "default": default,
                "meaning": field.description or "",
            }
        )
    return found


def options_text(described: Sequence[Mapping[str, Any]], *, prefix: str = "", width: int = 100) -> str:
    """Options for people, what :func:`describe_options` gives: two lines or more each, none longer than `width`."""
    blocks = []
    for option in described:
        default = "" if option["default"] == "" else f"={_typed(option['default'])}"
        head = f"{prefix}{option['name']}{default}  ({option['takes']})"
        blocks.append(textwrap.fill(head, width, subsequent_indent="    ", break_on_hyphens=False))
        blocks.append(
            textwrap.fill(
                option["meaning"],
                width,
                initial_indent="    ",
                subsequent_indent="    ",
                break_on_hyphens=False,
            )
            if option["meaning"]
            else ""
        )
    return "\n".join(filter(None, blocks))


def _typed(value: Any) -> str:
    """A value as ``--set`` takes it."""
    return value if isinstance(value, str) else json.dumps(value)


_WORDS = {"string": "text", "boolean": "true | false"}


def _spelling(entry: Mapping[str, Any]) -> str:
    """What a user can type for one property of a JSON schema.

    >>> _spelling({"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]})
    '[integer, …] | null'
    """
    if "anyOf" in entry:
        return " | ".join(_spelling(part) for part in entry["anyOf"])
    if "enum" in entry or "const" in entry:
        return " | ".join(_typed(choice) for choice in entry.get("enum", [entry.get("const")]))
    if entry.get("type") == "array":
        parts = [_spelling(part) for part in entry.get("prefixItems", ())]
        return f"[{', '.join(parts or [_spelling(entry.get('items', {})), '…'])}]"
    kind = entry.get("type", "value")
    return _WORDS.get(kind, str(kind))


def _check_target(name: str, targets: Mapping[str, Target], place: str) -> None:
    if name not in targets:
        raise UsageError(
            f"options for {name!r}, which is no chosen target", place=place, remedy=nearest(name, targets)
        )


def _read_toml(path: Path) -> dict[str, Any]:
    text = read_text(path, error=UsageError)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # TOML errors, and numbers of thousands of digits
        raise UsageError(f"is no TOML: {error}", place=str(path)) from None


def _parse_value(text: str) -> Any:
    """Lists, tables and null come as JSON; everything else stays text, which pydantic converts."""
    if text[:1] in "[{" or text == "null":
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def _validate(what: str, name: str, options: type[BaseModel], values: dict[str, Any]) -> BaseModel:
    for option in values:
        if option not in options.model_fields:
            raise UsageError(
                f"{what} {name} has no option {option!r}", remedy=nearest(option, options.model_fields)
            )
    try:
        found = options.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "options"
        given = f" (given: {str(first['input'])[:80]!r})" if first["type"] != "missing" else ""
        remedy = "write a list in brackets, quoted for the shell: '[1,5]'" if first["type"] in _NO_LIST else ""
        raise UsageError(f"{first['msg']}{given}", place=f"{name}.{where}", remedy=remedy) from None
    for option in options.model_fields:
        _check_finite(getattr(found, option), f"{name}.{option}")
    return found


def _check_finite(value: Any, place: str) -> None:
    """No option means anything by an infinity or NaN, and no JSON holds one."""
    if isinstance(value, list | tuple):
        for part in value:
            _check_finite(part, place)
    elif isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{value} is not finite", place=place, remedy="give a number")
