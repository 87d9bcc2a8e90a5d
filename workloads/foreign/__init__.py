"""Graphs from outside: ONNX files and torch.export programs become workload graphs (docs/graphs.md).

    file or program ─► Program (reader) ─► patterns ─► lower ─► graph with its mapping list

A reader (onnx.py, export.py) gives calls in one vocabulary, that of ONNX; all else is shared.
"""
