"""What the README shows works as it is shown."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.cli.app import find_command
from deploy.cli.verb import as_verb
from deploy.cli.verbs import VERBS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_example_runs(tmp_path: Path) -> None:
    [example] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(example.splitlines()) <= 11
    found = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert (tmp_path / "digits.bundle" / "manifest.json").is_file()
    for line in found.stdout.splitlines():
        assert float(line.split()[1]) > 0.9, line


def test_every_command_shown_has_its_options() -> None:
    lines = [line for line in README.splitlines() if line.startswith("relu-deploy ")]
    assert len(lines) >= 5
    for line in lines:
        verb, *arguments = shlex.split(line)[1:]
        command = find_command(verb)
        assert command is not None, verb
        known = {name for option in as_verb(verb, command).params for name in option.opts}
        assert {argument for argument in arguments if argument.startswith("-")} <= known, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_ours_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), target


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = [str(page.relative_to(ROOT / "docs")) for page in PAGES[1:] if page.name != "README.md"]
    assert [page for page in pages if f"({page})" not in index] == []


def test_the_reference_names_every_verb_and_option() -> None:
    page = (ROOT / "docs" / "reference" / "command.md").read_text(encoding="utf-8")
    for verb in VERBS:
        command = find_command(verb)
        assert command is not None
        section = page.partition(f"## `relu-deploy {verb}")[2].partition("\n## ")[0]
        for option in as_verb(verb, command).params:
            if option.param_type_name == "option" and option.name not in ("json", "quiet", "debug", "help"):
                assert f"`{option.opts[0]}`" in section, (
                    f"{verb} {option.opts[0]}: run python docs/make_reference.py"
                )
                assert f"`{option.envvar}`" in section, (
                    f"{verb} {option.opts[0]}: run python docs/make_reference.py"
                )
