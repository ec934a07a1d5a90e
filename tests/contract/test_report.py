"""Pages: whole in themselves, the same twice, drawn from manifest and fidelity report alone."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from networks import random_mlp

import deploy
from deploy.bundle import Bundle
from deploy.cli.main import run
from deploy.evaluation import evaluate, merge_report
from deploy.fidelity import compare_paired
from deploy.report import compare_bundles, render_comparison, render_report
from deploy.report.figures import draw_panel


def make_bundle(folder: Path, name: str, *, offset: float, x: np.ndarray) -> Bundle:
    model = random_mlp(np.random.default_rng(1), (5, 7, 3))
    options = deploy.parse_options({"toy": deploy.targets()["toy"]}, sets=[f"toy.offset={offset}"])
    bundle = deploy.convert(model, deploy.Calibration(x[:100]), options).write(folder / name)
    found = evaluate(bundle, deploy.HeldOut(x[100:], first_row=100), real=5)
    bundle.write_report(merge_report(bundle.report(), found))
    return Bundle.read(folder / name)


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(2).normal(size=(200, 5))


@pytest.fixture
def bundle(tmp_path: Path, x: np.ndarray) -> Bundle:
    return make_bundle(tmp_path, "one", offset=0.3, x=x)


class Reader(HTMLParser):
    """Collects what a page refers to, its identifiers, tags, attributes and words."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.identifiers: list[str] = []
        self.words = ""
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("src", "href", "xlink:href"):
                self.references.append(value or "")
            if name == "id":
                self.identifiers.append(value or "")
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}
        assert tag not in ("script", "link", "iframe", "img")

    def handle_data(self, data: str) -> None:
        self.words += f" {data}"


def test_a_page_is_whole_in_itself(bundle: Bundle) -> None:
    page = render_report(bundle)
    reader = Reader(page)
    assert all(reference.startswith("#") for reference in reader.references)
    assert not re.search(r"url\((?!#)|@import", page)
    assert len(set(reader.identifiers)) == len(reader.identifiers)
    assert {reference.removeprefix("#") for reference in reader.references} <= set(reader.identifiers)


def test_a_page_says_what_the_report_says(bundle: Bundle) -> None:
    entry = bundle.report()["targets"]["toy"]
    words = " ".join(Reader(render_report(bundle)).words.split())
    assert f"{100 * entry['agreement']:.2f} %" in words
    assert deploy.targets()["toy"].non_guarantee in words
    assert "Logits of the copy" in words
    for worst in entry["worst_rows"]:
        assert worst["sha256"][:16] in words


def test_a_page_needs_the_manifest_and_the_report_alone(bundle: Bundle) -> None:
    assert render_report(replace(bundle, files={})) == render_report(bundle)


def test_tables_have_the_whole_width_and_labels_where_a_phone_stacks_them(bundle: Bundle) -> None:
    page = render_report(bundle)
    assert page.count('<figure class="wide">') == sum(
        panel["form"] == "table" for panel in bundle.report()["targets"]["toy"]["panels"]
    )
    stacks = re.findall(r'<table class="stack">(.*?)</table>', page, re.DOTALL)
    assert stacks
    for stack in stacks:
        head, *rows = stack.split("</tr>")[:-1]
        titles = re.findall(r"<th[^>]*>(.*?)</th>", head)[1:]
        for row in rows:
            assert re.findall('data-label="(.*?)"', row) == titles


def test_the_same_bundle_gives_the_same_page(bundle: Bundle) -> None:
    assert render_report(bundle) == render_report(Bundle.read(bundle.path))


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style></svg><iframe src=//a.b></iframe>",
    "{{ 7 * 7 }}{% include 'style.css' %}",
    "$\\frac{1$ & \x00 \x1b[31m " + "long" * 500,
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_stays_text(bundle: Bundle, name: str) -> None:
    """Of a layer, a class, a feature, a note, an option, a target, the bundle; in tables and in figures."""
    plain = Reader(render_report(bundle))
    report = bundle.report()
    entry = report["targets"]["toy"]
    for panel in entry["panels"]:
        panel.update(title=name, caption=name, x_label="", y_label="")
    forms = [
        {"form": "bar", "data": {"labels": [name, "b"], "series": {name: [1, 2], "other": [2, 1]}}},
        {"form": "table", "data": {"columns": [name], "rows": [[name]]}},
    ]
    entry["panels"] += [{"title": name, "caption": name, "x_label": "", "y_label": "", **form} for form in forms]
    entry["reference"] = entry["worst_rows"][0]["sha256"] = name
    named = bundle.manifest.model_copy(deep=True)
    named.model.names[0] = named.model.tail = name
    named.model.notes.append(name)
    named.targets["toy"].options = {name: name}
    named.targets["toy"].guarantee = name
    named.targets[name] = named.targets["toy"]
    report["targets"][name] = entry
    reports = {"reports/fidelity.json": json.dumps(report).encode()}
    hostile = replace(bundle, manifest=named, reports=reports, path=Path(name.replace("/", "").replace("\0", "")))
    page = render_report(hostile)
    read = Reader(page)
    assert read.tags <= plain.tags | {"ul", "li", "figcaption"}
    assert not any(attribute.startswith("on") for attribute in read.attributes)
    assert " ".join(name.replace("\0", "").split()) in " ".join(read.words.replace("\0", "").split())
    comparison = Reader(render_comparison(compare_bundles(hostile, bundle)))
    assert comparison.tags <= plain.tags | {"br"}


@pytest.mark.parametrize(
    ("form", "data"),
    [
        ("line", {"x": [1, 2, 3], "series": {"a": [1.0, None, 3.0], "b": [3, 2, 1]}}),
        ("scatter", {"x": [1, 2], "series": {"a": [1, 2]}}),
        ("bar", {"labels": [f"c{i}" for i in range(12)], "series": {"a": list(range(12)), "b": [1] * 12}}),
        ("histogram", {"edges": [0, 1, 2], "counts": [3, 4]}),
        ("image", {"values": [[0.0, 1.0], [None, 2.0]]}),
    ],
)
def test_every_form_of_figure_is_drawn(form: str, data: dict[str, object]) -> None:
    svg = draw_panel({"form": form, "data": data, "x_label": "where", "y_label": "what"})
    assert svg.startswith('<svg class="figure"')
    assert "where" in svg
    assert svg.count("<path") + svg.count("<image") >= 2


def test_a_comparison_is_paired_where_the_rows_are_the_same(tmp_path: Path, x: np.ndarray, bundle: Bundle) -> None:
    other = make_bundle(tmp_path, "two", offset=1.0, x=x)
    paired = compare_bundles(bundle, other)["targets"]["toy"]["paired"]
    model = bundle.model
    original = model.decide(x[100:])
    agrees = [np.argmax(model.logits(x[100:]) + [o, 0, 0], axis=1) == original for o in (0.3, 1.0)]
    expected = compare_paired(*agrees)
    assert expected.better > 0
    assert (paired["only_first_agrees"], paired["only_second_agrees"]) == (expected.better, expected.worse)
    assert paired["p_value"] == expected.p_value
    found = evaluate(other, deploy.HeldOut(x[120:]))
    other.write_report(merge_report(other.report(), found))
    document = compare_bundles(bundle, Bundle.read(other.path))
    assert document["targets"]["toy"]["paired"] is None
    assert "Not judged on the same rows" in render_comparison(document)


def test_a_page_is_not_overwritten(bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert run(["report", str(bundle.path), "-o", str(page)]) == 0
    before = page.read_bytes()
    assert run(["report", str(bundle.path), "-o", str(page)]) == 4
    assert "--force" in capsys.readouterr().err
    assert page.read_bytes() == before
    assert run(["compare", str(bundle.path), str(bundle.path), "-o", str(page), "--force"]) == 0
    assert page.read_bytes() != before
