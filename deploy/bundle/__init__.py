"""Bundles and the archives derived from them: written whole, read with suspicion."""

from deploy.bundle.archive import Archive, read_archive, write_archive
from deploy.bundle.bundle import TOP_NAMES, Bundle, TargetEntry, bundle_files, is_bundle, write_bundle
from deploy.bundle.manifest import SCHEMA

__all__ = [
    "SCHEMA",
    "TOP_NAMES",
    "Archive",
    "Bundle",
    "TargetEntry",
    "bundle_files",
    "is_bundle",
    "read_archive",
    "write_archive",
    "write_bundle",
]
