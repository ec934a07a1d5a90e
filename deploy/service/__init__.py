"""The inference service: KServe V2 over HTTP, evaluation keys by content, cryptography in worker processes.

The service moves opaque bytes between clients and the roles of :mod:`deploy.target`; it knows no target.
docs/service-wire.md describes what it speaks, docs/service.md how to run it.
"""
