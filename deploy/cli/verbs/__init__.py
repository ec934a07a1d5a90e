"""The verbs of the command, one module each.

A verb is a module here that holds ``command``, a :class:`deploy.target.Command`: a function annotated the way typer
reads it, which returns the JSON document of ``--json``, and another that draws this document for people. To add a
verb, write its module and name it in :data:`VERBS`. A module is imported whenever help is shown, so numpy and
everything heavier is imported inside the function that needs it. Verbs of targets come from the registry.
"""

from __future__ import annotations

__all__ = ["VERBS"]

VERBS = {
    "inspect": "deploy.cli.verbs.inspect",
    "convert": "deploy.cli.verbs.convert",
    "evaluate": "deploy.cli.verbs.evaluate",
    "predict": "deploy.cli.verbs.predict",
    "serve": "deploy.cli.verbs.serve",
    "keygen": "deploy.cli.verbs.keygen",
    "encrypt": "deploy.cli.verbs.encrypt",
    "decrypt": "deploy.cli.verbs.decrypt",
    "simulate": "deploy.cli.verbs.simulate",
    "report": "deploy.cli.verbs.report",
    "compare": "deploy.cli.verbs.compare",
    "demo": "deploy.cli.verbs.demo",
    "targets": "deploy.cli.verbs.targets",
    "doctor": "deploy.cli.verbs.doctor",
}
"""Verb -> module, in the order of ``--help``."""
