"""Options of targets pass through the trunk, which knows none."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import copying_target
import pytest
from pydantic import BaseModel, Field

from deploy.errors import UsageError
from deploy.options import describe_options, options_text, parse_options, parse_settings

TARGETS = {"copy": copying_target.target}


def test_values_come_from_file_and_command_the_command_last(tmp_path: Path) -> None:
    file = tmp_path / "o.toml"
    file.write_text('[copy]\nshift = 1.5\nmode = "a"\n')
    found = parse_options(TARGETS, sets=["copy.shift=2.5", "copy.sizes=[1, 2]", "copy.refuse=true"], file=file)
    assert found["copy"].model_dump() == {"shift": 2.5, "mode": "a", "sizes": [1, 2], "refuse": True, "fail": False}
    assert parse_options(TARGETS)["copy"] == copying_target.Options()
    assert parse_options(TARGETS, sets=["copy.mode=a=b"])["copy"].model_dump()["mode"] == "a=b"


@pytest.mark.parametrize(
    ("sets", "match"),
    [
        (["copy.shfit=1"], r"target copy has no option 'shfit'; did you mean shift\?"),
        (["cpy.shift=1"], r"options for 'cpy', which is no chosen target; did you mean copy\?"),
        (["copy.shift=much"], r"copy.shift: Input should be a valid number.* \(given: 'much'\)"),
        (["copy.sizes=[1"], r"copy.sizes: Input should be a valid list"),
        (["copy.sizes=1,2"], r"write a list in brackets, quoted for the shell: '\[1,5\]'"),
        (["copy.shift=inf"], r"copy.shift: inf is not finite; give a number"),
        (["copy.shift=nan"], r"copy.shift: nan is not finite"),
        (["copy.sizes=" + "[" * 100_000], r"copy.sizes: Input should be a valid list"),
        (["copy.sizes=[" + "1" * 5000 + "]"], r"copy.sizes: "),
        (["copy.shift"], "--set copy.shift is not understood; write --set target.option=value"),
        (["shift=1"], "write --set target.option=value"),
    ],
)
def test_mistakes_are_named_with_the_nearest_name(sets: list[str], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        parse_options(TARGETS, sets=sets)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[copy", "is no TOML"),
        ("[other]\na=1", "options for 'other'"),
        ("[copy]\nsizes = " + "[" * 100_000, "is no TOML"),
        ("[copy]\nshift = " + "1" * 5000, "is no TOML"),
        ("[copy]\nshift = inf", "copy.shift: inf is not finite"),
        ("copy = 3", "copy is no table; write .copy."),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, match: str) -> None:
    file = tmp_path / "o.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=match) as caught:
        parse_options(TARGETS, file=file)
    assert "o.toml" in str(caught.value) or "copy.shift" in str(caught.value)
    with pytest.raises(UsageError, match=r"none\.toml: cannot be read: No such file"):
        parse_options(TARGETS, file=tmp_path / "none.toml")


def test_options_are_described_as_they_are_typed() -> None:
    shift, refuse, *_, sizes = describe_options(copying_target.Options)
    assert shift == {
        "name": "shift",
        "type": "number",
        "takes": "number",
        "default": 0.0,
        "meaning": "added to the first logit",
    }
    assert refuse["takes"] == "true | false"
    assert sizes["takes"] == "[integer, …]"


def test_what_people_read_fits_their_terminal_and_can_be_typed() -> None:
    class Wide(BaseModel):
        kind: Literal["this", "that", "a-third-one", "and-a-fourth", "fifth-with-a-long-name", "sixth"] = "this"
        box: tuple[float, float] | None = Field(None, description="many words " * 30)
        note: str = ""

    described = describe_options(Wide)
    found = options_text(described, prefix="--set wide.", width=60)
    assert max(map(len, found.splitlines())) <= 60
    assert "--set wide.kind=this  (this | that | a-third-one |" in found
    assert "--set wide.box=null  ([number, number] | null)" in found
    assert "--set wide.note  (text)" in found
    for option in described:
        if option["default"] != "":
            line = next(line for line in found.splitlines() if f"wide.{option['name']}=" in line)
            typed = line.split()[1].removeprefix("wide.")
            assert (
                getattr(parse_settings(Wide, [typed], what="x", name="wide"), option["name"]) == option["default"]
            )
