"""The JSON Schemas that `stallscope schema` prints: of chip, system and graph files, and of the JSON of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schema_of(what: str) -> dict[str, Any]:
    """The schema of one of the names of `SCHEMAS`."""
    return SCHEMAS[what]()


def _chip() -> dict[str, Any]:
    from .arch import chip_schema

    return chip_schema()


def _system() -> dict[str, Any]:
    from .arch.system import SystemFile

    return {"$schema": DRAFT, **SystemFile.model_json_schema(by_alias=True, mode="validation")}


def _run() -> dict[str, Any]:
    from .report.json import run_schema

    return run_schema()


def _graph() -> dict[str, Any]:
    """Node-link JSON as load_graph reads it; whether shapes agree, only `stallscope check` can say."""
    from .workloads.graph import GRAPH_KEYS, SCHEMA
    from .workloads.request import PHASES

    text, size = {"type": "string"}, {"type": "integer", "minimum": 1}
    head = {"schema": {"const": SCHEMA}, "name": text, "phase": {"enum": list(PHASES)}, "batch": size}
    head |= {"context": {"type": "integer", "minimum": 0}, "dtypes": _dtypes()}
    ends = {"source": text, "target": text, "role": text}
    seen = "The shape in which the op sees it."
    view = {"view": {"type": "array", "minItems": 1, "items": size, "description": seen}}
    edges = {"type": "array", "items": {"type": "object", "properties": ends | view, "required": list(ends)}}
    return {
        "$schema": DRAFT,
        "$id": SCHEMA,
        "title": "A workload graph of stallscope, as node-link JSON",
        "type": "object",
        "properties": {
            "directed": {"const": True},
            "multigraph": {"const": False},
            "graph": {"type": "object", "properties": head, "required": list(GRAPH_KEYS)},
            "nodes": {"type": "array", "minItems": 1, "items": {"anyOf": [_tensor_node(), *_op_nodes()]}},
            "edges": edges,
            "links": edges,
        },
        "required": ["graph", "nodes"],
        "anyOf": [{"required": ["edges"]}, {"required": ["links"]}],
        "additionalProperties": False,
    }


def _dtypes() -> dict[str, Any]:
    from .workloads.graph import DTYPE_KEYS

    return {
        "type": "object",
        "properties": dict.fromkeys(DTYPE_KEYS, _DTYPE),
        "required": ["weight", "kv", "activation"],
        "additionalProperties": False,
    }


def _tensor_node() -> dict[str, Any]:
    from .workloads.graph import TENSOR_KINDS

    return {
        "type": "object",
        "title": "tensor",
        "properties": {
            "id": {"type": "string"},
            "kind": {"const": "tensor"},
            "tensor": {"enum": list(TENSOR_KINDS)},
            "shape": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 1}},
            "dtype": _DTYPE,
            "layer": _LAYER,
            "tied_to": {"type": "string", "description": "The embedding table that this weight is."},
        },
        "required": ["id", "kind", "tensor", "shape", "dtype"],
    }


def _op_nodes() -> list[dict[str, Any]]:
    from .workloads.ops import OPS

    return [
        {
            "type": "object",
            "title": name,
            "description": f"{op.doc} Roles: {op.signature}",
            "properties": {
                "id": {"type": "string"},
                "kind": {"const": "op"},
                "op": {"const": name},
                "layer": _LAYER,
                **{key: {"type": "integer", "minimum": 1} for key in op.attributes},
                **{key: {} for key in (*op.optional, *op.structured)},
            },
            "required": ["id", "kind", "op", *op.attributes],
        }
        for name, op in OPS.items()
    ]


_DTYPE = {"type": "string", "description": "A plain type, or a block format such as nvfp4 or fp8/128x128s32."}
_LAYER = {"type": ["integer", "null"], "minimum": 0, "description": "The decoder layer that it belongs to, from 0."}

SCHEMAS: dict[str, Callable[[], dict[str, Any]]] = {"chip": _chip, "system": _system, "graph": _graph, "run": _run}
