"""The caller's side of the service: keys, encryption, retries; no model and no weight.

Thin on purpose: of the optional packages it needs those of the extra ``client`` alone.
"""

from __future__ import annotations

from deploy.client.client import AsyncEncryptedClient, EncryptedClient
from deploy.client.keyfile import KeyFiles, read_key_files, write_key_files
from deploy.client.session import InputGuardWarning, Prediction

__all__ = [
    "AsyncEncryptedClient",
    "EncryptedClient",
    "InputGuardWarning",
    "KeyFiles",
    "Prediction",
    "read_key_files",
    "write_key_files",
]
