"""Models and requests as graphs of operators and tensors."""

from .catalogue import load_model, model_names
from .cost import Cost, op_cost, tensor_bytes
from .decoder import decode_graph
from .dtypes import DTYPE_BITS
from .graph import add_op, add_tensor, check_graph, new_graph, op_nodes
from .graphfile import load_graph, save_graph
from .model import Model
from .ops import OPS
from .request import Request

__all__ = [
    "DTYPE_BITS",
    "OPS",
    "Cost",
    "Model",
    "Request",
    "add_op",
    "add_tensor",
    "check_graph",
    "decode_graph",
    "load_graph",
    "load_model",
    "model_names",
    "new_graph",
    "op_cost",
    "op_nodes",
    "save_graph",
    "tensor_bytes",
]
