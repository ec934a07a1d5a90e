"""The same service with its roles on a Ray cluster: replicas by Ray Serve, routes and key store as ever."""

from deploy.service.cluster.backend import RayBackend

__all__ = ["RayBackend"]
