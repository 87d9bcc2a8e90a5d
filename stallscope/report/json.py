"""The report of one run as JSON. Femtoseconds are the simulator's own integers, so sums are exact."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import StallscopeError
from .dram import NAMES, dram_json
from .units import FS_PER_S

if TYPE_CHECKING:
    from ..sim.run import OpAccount, Run

SCHEMA = "stallscope-run/1"


def run_json(run: Run) -> dict[str, Any]:
    """The run as plain dicts, lists, strings and numbers; `run_schema` describes each key."""
    info = run.program.info
    return {
        "schema": SCHEMA,
        "chip": info.chip,
        "chips": info.chips,
        "tp": info.tp,
        "pp": info.pp,
        "ep": info.replicas,
        "model": info.model,
        "phase": info.phase,
        "batch": info.batch,
        "context": info.context,
        "spans": [list(span) for span in info.spans],
        "dtypes": dict(info.dtypes),
        "time_s": run.time_s,
        "time_fs": run.time_fs,
        "cycles": run.cycles,
        "clock_hz": info.clock_hz,
        "tokens_per_s_per_user": run.tokens_per_s_per_user,
        "tokens_per_s": run.tokens_per_s,
        "interval_fs": run.interval_fs,
        "bound": {
            "time_s": info.bound.time_fs / FS_PER_S,
            "time_fs": info.bound.time_fs,
            "limiter": info.bound.limiter,
            "terms_fs": dict(info.bound.terms_fs),
        },
        "critical_path_fs": dict(run.critical_path_fs),
        "engines": [
            {"name": e.name, "count": e.count, "busy_fs": e.busy_fs, "stalls_fs": dict(e.stalls_fs)}
            for e in run.engines
        ],
        "bytes": {
            tier: {way: dict(ways.get(way, {})) for way in ("read", "write")} for tier, ways in run.bytes.items()
        },
        "dram": dram_json(run),
        "ops": [_op_json(op) for op in run.ops],
        "assumptions": [{"what": a.what, "why": a.why} for a in info.assumptions],
        "fit": list(info.fit),
        "notes": list(info.notes),
        "placement": {tier: dict(kinds) for tier, kinds in info.placement.items()},
        "copied_bytes": dict(info.copied_bytes),
        "blocks": run.blocks,
        "simulated_blocks": run.simulated_blocks,
    }


def _op_json(op: OpAccount) -> dict[str, Any]:
    return {
        "name": op.name,
        "kind": op.kind,
        "count": op.count,
        "time_s": op.time_fs / FS_PER_S,
        "time_fs": op.time_fs,
        "bytes": op.bytes,
        "must_bytes": op.must_bytes,
        "bound_s": op.bound_fs / FS_PER_S,
        "cause": op.cause,
        "causes_fs": dict(op.causes_fs),
    }


def run_schema() -> dict[str, Any]:
    """The JSON Schema of `run_json`, with the definition of every number."""
    from .explain import define

    described = {key: {**shape, "description": define(key).text} for key, shape in KEYS.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA,
        "title": "A run of stallscope",
        **_object(described),
    }


def _object(keys: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {"type": "object", "properties": keys, "required": list(keys), "additionalProperties": False}


def _list(keys: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {"type": "array", "items": _object(keys)}


TEXT: dict[str, Any] = {"type": "string"}
NUMBER: dict[str, Any] = {"type": "number"}
COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
TEXTS: dict[str, Any] = {"type": "array", "items": TEXT}
COUNTS: dict[str, Any] = {"type": "object", "additionalProperties": COUNT}

BOUND_KEYS = {"time_s": NUMBER, "time_fs": COUNT, "limiter": TEXT, "terms_fs": COUNTS}
ENGINE_KEYS = {"name": TEXT, "count": COUNT, "busy_fs": COUNT, "stalls_fs": COUNTS}
OP_KEYS = {
    "name": TEXT,
    "kind": TEXT,
    "count": COUNT,
    "time_s": NUMBER,
    "time_fs": COUNT,
    "bytes": COUNT,
    "must_bytes": COUNT,
    "bound_s": NUMBER,
    "cause": TEXT,
    "causes_fs": COUNTS,
}
DRAM_KEYS = {
    "buses": COUNT,
    "data_fs": COUNT,
    "lost_fs": _object(dict.fromkeys(NAMES, COUNT)),
    "too_few_fs": COUNT,
    "unasked_fs": COUNT,
    "bytes_per_s": NUMBER,
    "bytes_per_s_asked": NUMBER,
    "peak_bytes_per_s": NUMBER,
}
KEYS: dict[str, dict[str, Any]] = {
    "schema": {"const": SCHEMA},
    "chip": TEXT,
    "chips": COUNT,
    "tp": COUNT,
    "pp": COUNT,
    "ep": COUNT,
    "model": TEXT,
    "phase": TEXT,
    "batch": COUNT,
    "context": COUNT,
    "spans": {"type": "array", "items": {"type": "array", "items": COUNT, "minItems": 4, "maxItems": 4}},
    "dtypes": {"type": "object", "additionalProperties": TEXT},
    "time_s": NUMBER,
    "time_fs": COUNT,
    "cycles": COUNT,
    "clock_hz": NUMBER,
    "tokens_per_s_per_user": NUMBER,
    "tokens_per_s": NUMBER,
    "interval_fs": COUNT,
    "bound": _object(BOUND_KEYS),
    "critical_path_fs": COUNTS,
    "engines": _list(ENGINE_KEYS),
    "bytes": {"type": "object", "additionalProperties": _object({"read": COUNTS, "write": COUNTS})},
    "dram": {"type": "object", "additionalProperties": _object(DRAM_KEYS)},
    "ops": _list(OP_KEYS),
    "assumptions": _list({"what": TEXT, "why": TEXT}),
    "fit": TEXTS,
    "notes": TEXTS,
    "placement": {"type": "object", "additionalProperties": COUNTS},
    "copied_bytes": COUNTS,
    "blocks": COUNT,
    "simulated_blocks": COUNT,
}


def json_text(data: Any) -> str:
    """The data as indented JSON; refuses NaN and infinities."""
    return json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def check_target(target: str, option: str = "--json") -> None:
    """Raise StallscopeError when `target` cannot be written: called before anything is simulated."""
    path = Path(target)
    if not target.strip():
        raise StallscopeError(f"{option} {target!r}: found no name; expected that of a file; give one")
    if path.is_dir():
        raise StallscopeError(f"{option} {target}: this is a folder; give the name of a file in it")
    if not path.parent.is_dir():
        raise StallscopeError(f"{option} {target}: there is no folder {path.parent}; create it or choose another")
    if not os.access(path.parent if not path.exists() else path, os.W_OK):
        raise StallscopeError(f"{option} {target}: writing there is not permitted; choose another place")


def write_json(target: str, data: Any) -> None:
    """Write the whole file or nothing. Raises StallscopeError."""
    write_whole(target, json_text(data).encode(), "--json")


def write_whole(target: str, content: bytes, option: str) -> None:
    """Write the whole file or nothing: a temporary file beside it is renamed onto it at the end.

    Raises StallscopeError that names the option that asked for it.
    """
    path = Path(os.path.realpath(target))
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)  # a device or a pipe: it can only be written to
            return
        _replace(path, content)
    except OSError as error:
        raise StallscopeError(
            f"{option} {target}: cannot be written: {error.strerror or error}; choose another place"
        ) from error


def _replace(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
