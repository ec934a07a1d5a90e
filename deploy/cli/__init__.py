"""The command ``relu-deploy``: verbs in :mod:`deploy.cli.verbs`, the boundary in :mod:`deploy.cli.main`."""
