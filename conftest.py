"""What doctest leaves out: modules that import an optional dependency which `make test` does not install."""

collect_ignore = ["deploy/service/cluster/replica.py"]
