"""Studies of a deployment, run case by case through joblib, on this machine or on a Ray cluster, resumable."""

from deploy.simulation.runner import run_study
from deploy.simulation.table import read_table, write_table

__all__ = ["read_table", "run_study", "write_table"]
