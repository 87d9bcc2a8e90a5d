"""Models and requests as graphs of operators and tensors."""

from .catalogue import load_model, model_names
from .cost import Cost, op_cost, op_dims, tensor_bytes
from .decoder import decode_graph
from .dtypes import DTYPE_BITS
from .foreign.load import graph_from_export
from .graph import add_op, add_tensor, check_graph, new_graph, op_nodes
from .graphfile import load_graph, save_graph
from .model import Model
from .ops import OPS
from .request import Request
from .spans import Span, spans_of

__all__ = [
    "DTYPE_BITS",
    "OPS",
    "Cost",
    "Model",
    "Request",
    "Span",
    "add_op",
    "add_tensor",
    "check_graph",
    "decode_graph",
    "graph_from_export",
    "load_graph",
    "load_model",
    "model_names",
    "new_graph",
    "op_cost",
    "op_dims",
    "op_nodes",
    "save_graph",
    "spans_of",
    "tensor_bytes",
]
