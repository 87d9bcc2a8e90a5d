"""What ONNX's messages hold, as plain Python: files, element types, attributes, the numbers of a tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...errors import StallscopeError
from ..checks import problem
from .program import Array, Value

FILE_LIMIT = 2**31
ELEMENT_LIMIT = 2**22

DTYPES: dict[int, str] = {
    1: "fp32", 2: "uint8", 3: "int8", 4: "int16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "fp16",
    11: "fp64", 12: "int32", 13: "int64", 16: "bf16", 17: "fp8", 18: "fp8", 19: "fp8", 20: "fp8",
    21: "int4", 22: "int4", 23: "fp4",
}  # fmt: skip
"""ONNX's element types in our words; unsigned ones weigh what signed ones do."""
CODES = {"fp32": 1, "uint8": 2, "int8": 3, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "fp16": 10, "fp64": 11,
         "bf16": 16, "fp8": 17, "int4": 22, "fp4": 23}  # fmt: skip
NUMBERS: dict[str, type] = {"fp32": np.float32, "fp16": np.float16, "fp64": np.float64, "bf16": np.float32,
                            "int64": np.int64, "int32": np.int32, "bool": np.bool_, "int8": np.int8,
                            "uint8": np.uint8, "int16": np.int16}  # fmt: skip


def parse_file(path: Path) -> Any:
    """The onnx.ModelProto of a file, its external data left where it is.

    Raises StallscopeError if the onnx package is missing, or for a file that is no ONNX model.
    """
    expected = "an ONNX model"
    try:
        if not path.is_file():
            found = "a directory" if path.is_dir() else "no such file"
            raise problem(str(path), found, expected, "Give the path of the .onnx file.")
        head = path.open("rb").read(64)
        size = path.stat().st_size
    except OSError as error:
        raise problem(str(path), f"that it cannot be read ({error.strerror})", expected, "Check the path.") from None
    if not size:
        raise problem(str(path), "an empty file", expected, "Download or export it again.")
    if head.startswith(b"version https://git-lfs"):
        todo = "Fetch the file itself: git lfs pull."
        raise problem(str(path), "a git-LFS pointer, three lines of text in place of the file", expected, todo)
    if size > FILE_LIMIT:
        raise problem(str(path), f"{size:,} bytes", "at most 2 GiB", "Save it with its weights as external data.")
    onnx = need_onnx(str(path))
    try:
        model = onnx.load_model(str(path), format="protobuf", load_external_data=False)
    except Exception as error:
        if isinstance(error, StallscopeError | KeyboardInterrupt | MemoryError):
            raise
        found = "bytes that are no ONNX model" + (" (JSON or text)" if head.lstrip()[:1] in (b"{", b"<", b"[") else "")
        todo = "Give the .onnx file; graphs of our own end in .json or .graphml."
        raise problem(str(path), found, expected, todo) from None
    if not model.HasField("graph"):
        raise problem(str(path), "bytes that are no ONNX model (no graph in it)", expected, "Check the file.")
    return model


def need_onnx(where: str) -> Any:
    """The onnx package. Raises StallscopeError that says how to get it."""
    try:
        import onnx
        import onnx.checker
        import onnx.inliner
        import onnx.numpy_helper
        import onnx.shape_inference
    except ImportError:
        found = "an ONNX file, and no onnx package to read it"
        raise problem(where, found, "the onnx package", "pip install 'stallscope[onnx]'") from None
    return onnx


def elements(tensor: Any) -> Array | None:
    """The numbers of a tensor in the file; None for external, large or odd ones."""
    from onnx import numpy_helper

    if tensor.data_location == 1 or int(np.prod(tensor.dims, dtype=np.int64)) > ELEMENT_LIMIT:
        return None
    try:
        array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError):
        return None
    if array.dtype.kind in "iub":
        return array if array.dtype.kind == "b" else array.astype(np.int64)
    try:
        return array.astype(np.float64)
    except (ValueError, TypeError):
        return None


def attributes(node: Any) -> dict[str, Any]:
    """Attributes as numbers, strings, lists and arrays; bodies are left out, types of casts in our words."""
    from onnx import helper

    out: dict[str, Any] = {}
    for attribute in node.attribute:
        if attribute.type in (5, 10):  # a graph, graphs
            continue
        if attribute.type == 4:  # a tensor
            out[attribute.name] = elements(attribute.t)
            continue
        value = helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            value = value.decode("utf-8", errors="replace")
        out[attribute.name] = value
    if node.op_type == "Cast" and "to" in out:
        out["to"] = DTYPES.get(out["to"], "")
    return out


def tensor_type(value: Value) -> Any:
    """A value's type as onnx's inference takes it."""
    from onnx import helper

    return helper.make_tensor_type_proto(CODES.get(value.dtype, 1), value.shape)
