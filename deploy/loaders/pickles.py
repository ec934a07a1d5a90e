"""Pickles are never opened: opening one runs whatever code it holds. The refusal says how to convert it."""

from __future__ import annotations

from deploy.errors import LoadError

__all__ = ["refuse_module_pickle", "refuse_pickle"]


def refuse_pickle() -> LoadError:
    """For joblib and pickle files, mostly of scikit-learn."""
    return LoadError(
        "a pickle can run any code when it is opened, so it is not",
        remedy="where you trust it, convert it once with skl2onnx: "
        "open('model.onnx', 'wb').write(skl2onnx.to_onnx(joblib.load('model.joblib'), X[:1], "
        "options={'zipmap': False}).SerializeToString()); or give the estimator to deploy.load from Python",
    )


def refuse_module_pickle(detail: str) -> LoadError:
    """For torch.save(module): the whole module is a pickle of code."""
    return LoadError(
        f"a pickle of a whole module can run any code when it is opened, so it is not ({detail})",
        remedy="where you trust it, convert it once:\n"
        "    module = torch.load('model.pt', weights_only=False).eval()\n"
        "    example = torch.zeros(1, N_IN)\n"
        "    torch.export.save(torch.export.export(module, (example,)), 'model.pt2')",
    )
