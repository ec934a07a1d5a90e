"""PyTorch: state_dicts, TorchScript, torch.export archives and modules; nothing is ever unpickled into code."""
