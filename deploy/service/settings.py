"""What an operator may set. Every field is also read from ``RELU_DEPLOY_<FIELD>``."""

from __future__ import annotations

import os
from ipaddress import ip_address
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from deploy.service.keystore import StoreLimits
from deploy.service.pool import PoolSettings

__all__ = ["ServiceSettings", "default_store"]


def default_store() -> Path:
    """Where keys are kept unless the operator says otherwise: below XDG_STATE_HOME."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "relu-deploy" / "keys"


class ServiceSettings(BaseSettings):
    """Address, files, bounds and times of one server."""

    model_config = SettingsConfigDict(env_prefix="RELU_DEPLOY_", extra="ignore")

    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=8080, ge=0, le=65535, description="port; 0 takes a free one")
    metrics_port: int = Field(
        default=8082, ge=-1, le=65535, description="port of /metrics; 0: a free one, -1: none"
    )
    metrics_host: str = Field(default="127.0.0.1", description="address of /metrics")
    store: Path = Field(default_factory=default_store, description="folder of evaluation keys")
    token_file: Path | None = Field(default=None, description="tenants and their tokens, one 'TENANT TOKEN' a line")
    insecure: bool = Field(default=False, description="allow another address than loopback without tokens")
    tls_certificate: Path | None = Field(default=None, description="PEM certificate chain")
    tls_key: Path | None = Field(default=None, description="PEM private key")
    workers: int = Field(default=0, ge=0, le=1024, description="worker processes; 0: one per core")
    queue: int = Field(default=64, ge=0, description="requests that may wait before the next is answered 429")
    request_timeout_s: float = Field(default=60.0, gt=0, description="deadline of one inference")
    worker_timeout_s: float = Field(default=300.0, gt=0, description="a worker busy for longer is replaced")
    idle_timeout_s: float = Field(
        default=30.0,
        gt=0,
        description="longest pause between requests, longest time for the head of one and for taking an answer",
    )
    body_timeout_s: float = Field(default=30.0, gt=0, description="longest pause while a body arrives")
    upload_timeout_s: float = Field(default=900.0, gt=0, description="longest time for one body as a whole")
    max_request_bytes: int = Field(default=64 << 20, gt=0, description="cap on inference bodies")
    max_key_bytes: int = Field(default=512 << 20, gt=0, description="cap on one set of evaluation keys")
    body_budget_bytes: int = Field(default=1 << 30, gt=0, description="bodies held in memory at once, all together")
    max_uploads: int = Field(default=8, gt=0, description="key uploads at once")
    store_bytes: int = Field(default=20 << 30, gt=0, description="keys of all tenants")
    tenant_keys: int = Field(default=16, gt=0, description="keys of one tenant")
    tenant_bytes: int = Field(default=4 << 30, gt=0, description="bytes of keys of one tenant")
    key_ttl_s: float = Field(default=30 * 86400.0, gt=0, description="a key unused for longer is erased")
    key_cache_bytes: int = Field(
        default=1 << 30, gt=0, description="parsed keys per worker, by size of their files"
    )
    worker_memory_bytes: int = Field(default=0, ge=0, description="address space of a worker; 0: no limit")
    worker_nice: int = Field(default=5, ge=0, le=19, description="added to the priority number of workers")
    cluster_replicas: int = Field(default=8, gt=0, description="with a cluster, the largest number of replicas")
    drain_s: float = Field(default=30.0, ge=0, description="time for running requests after SIGTERM")
    drain_delay_s: float = Field(default=0.0, ge=0, description="after SIGTERM, time as not ready before closing")

    @model_validator(mode="after")
    def _check_exposure(self) -> Self:
        if not self.token_file and not self.insecure and not _is_loopback(self.host):
            raise ValueError(f"{self.host} can be reached by others: give --token-file FILE, or --insecure")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("TLS needs both a certificate and a key")
        return self

    @property
    def worker_count(self) -> int:
        """Workers to start: as set, or one per core that this process may use."""
        return self.workers or len(os.sched_getaffinity(0))

    @property
    def pool(self) -> PoolSettings:
        """The worker pool's part."""
        return PoolSettings(
            workers=self.worker_count,
            queue_limit=self.queue,
            worker_timeout_s=self.worker_timeout_s,
            key_cache_bytes=self.key_cache_bytes,
            memory_bytes=self.worker_memory_bytes,
            nice=self.worker_nice,
        )

    @property
    def store_limits(self) -> StoreLimits:
        """The key store's part."""
        return StoreLimits(
            total_bytes=self.store_bytes,
            tenant_keys=self.tenant_keys,
            tenant_bytes=self.tenant_bytes,
            ttl_s=self.key_ttl_s,
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
