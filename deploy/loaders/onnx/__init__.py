"""ONNX: file, graph, constant folding, operators and lowering; :func:`load_onnx` is the way in."""
