"""Pages and comparisons, drawn from a bundle's manifest and its ``reports/fidelity.json`` alone."""

from deploy.report.comparison import compare_bundles
from deploy.report.page import render_comparison, render_report

__all__ = ["compare_bundles", "render_comparison", "render_report"]
