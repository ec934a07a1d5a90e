"""One self-contained page: no script, no font, no picture from outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.errors import BundleError
from deploy.report.figures import draw_agreement, draw_panel
from deploy.requirement import require
from deploy.text import bytes_text, number, share

if TYPE_CHECKING:
    from deploy.bundle import Bundle

__all__ = ["render_comparison", "render_report"]


def render_report(bundle: Bundle) -> str:
    """The page of one bundle; the same bundle gives the same bytes.

    Raises
    ------
    RequirementMissing : matplotlib or jinja2 is not installed.
    BundleError : manifest or fidelity report hold what cannot be drawn.
    """
    found = bundle.report()["targets"]
    evaluated = {name: found[name] for name in bundle.targets if name in found}
    with _bundle_errors(str(bundle.path)):
        return _render(
            "report.html.j2",
            name=bundle.path.name,
            identity=bundle.identity,
            manifest=bundle.manifest.model_dump(),
            layers=_layers(bundle.manifest.model.model_dump()),
            evaluated=evaluated,
            agreement_figure=draw_agreement(evaluated) if evaluated else "",
            targets=[
                _target(name, record.model_dump(), evaluated.get(name))
                for name, record in bundle.manifest.targets.items()
            ],
        )


@contextmanager
def _bundle_errors(place: str) -> Iterator[None]:
    """Whoever wrote manifest or report wrote it wrong; no template needs to foresee each way."""
    jinja2 = require("jinja2", extra="report")
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, jinja2.TemplateError) as error:
        cause = f"what it says cannot be drawn: {type(error).__name__}: {error}"
        raise BundleError(cause, place=place, remedy="evaluate again, or convert again") from error


def render_comparison(document: Mapping[str, Any]) -> str:
    """The page of :func:`deploy.report.compare_bundles`."""
    with _bundle_errors(" or ".join(side["bundle"] for side in document["bundles"])):
        return _render("comparison.html.j2", **document)


def _target(name: str, record: dict[str, Any], evaluation: Mapping[str, Any] | None) -> dict[str, Any]:
    panels = [
        {**panel, "svg": "" if panel["form"] == "table" else draw_panel(panel)}
        for panel in (evaluation or {}).get("panels", [])
    ]
    plain = {key: value for key, value in record["summary"].items() if isinstance(value, str | int | float | bool)}
    return {"name": name, **record, "summary": plain, "evaluation": evaluation, "panels": panels}


def _layers(model: Mapping[str, Any]) -> list[dict[str, Any]]:
    widths = model["widths"]
    activations = [*model["activations"], None] if model["kind"] == "mlp" else ["relu", None]
    names = [*model["names"], *[""] * len(widths)]
    return [
        {"name": name, "n_in": n_in, "n_out": n_out, "activation": activation}
        for name, n_in, n_out, activation in zip(names, widths, widths[1:], activations, strict=False)
    ]


@lru_cache
def _environment() -> Any:
    jinja2 = require("jinja2", extra="report")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(number=number, share=share, bytes=bytes_text, quantity=_quantity)
    return environment


def _render(template: str, **values: Any) -> str:
    page: str = _environment().get_template(template).render(**values)
    return page


def _quantity(item: Mapping[str, Any]) -> str:
    return bytes_text(item["value"]) if item["unit"] == "B" else f"{item['value']:.4g} {item['unit']}".strip()
