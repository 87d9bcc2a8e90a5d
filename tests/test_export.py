"""torch.export programs: a plain llama in torch, its ONNX file and its config give one and the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import pytest

torch = pytest.importorskip("torch")
from laws import check_bytes, check_run
from plain_llama import Llama, Sizes
from torch import nn

from stallscope import (
    Request,
    StallscopeError,
    compile_graph,
    decode_graph,
    graph_from_export,
    load_graph,
    load_model,
    load_system,
    simulate,
)
from stallscope.workloads import op_cost, op_nodes
from stallscope.workloads.foreign.summary import counts

pytestmark = pytest.mark.slow  # torch takes its time
CONFIG = Path(__file__).parents[2] / "shared" / "configs" / "llama-9m.json"
ONNX = Path(__file__).parents[2] / "shared" / "graphs" / "made_llama9m_s64.onnx"
FP32 = {"weight": "fp32", "kv": "fp32", "activation": "fp32"}


def exported(module: nn.Module, *arguments: Any, **options: Any) -> Any:
    with torch.no_grad():
        return torch.export.export(module.eval(), arguments, **options)


def ids(tokens: int, batch: int = 1) -> Any:
    return torch.zeros(batch, tokens, dtype=torch.long)


def work(graph: nx.DiGraph, *left_out: str) -> dict[str, list[int]]:
    """Per operator: how often, and the sums of its multiply-adds, operations, and bytes of stored tensors."""
    out: dict[str, list[int]] = {}
    for node in op_nodes(graph):
        cost, op = op_cost(graph, node), graph.nodes[node]["op"]
        stored = sum(n for t, n in cost.reads.items() if graph.nodes[t]["tensor"] != "activation")
        row = out.setdefault(op, [0] * 5)
        for i, n in enumerate((1, cost.macs, cost.vector_ops, cost.special_ops, stored)):
            row[i] += n
    return {op: row for op, row in out.items() if op not in left_out}


@pytest.mark.skipif(not CONFIG.exists(), reason="no ../shared")
@pytest.mark.parametrize("written", [False, True])
def test_a_prefill_is_the_configs_prefill(written: bool) -> None:
    """All ops alike but two: a config's step picks the last token for the head, samples, and keeps K and V."""
    graph = graph_from_export(exported(Llama(Sizes(), written), ids(64)))
    own = decode_graph(load_model(CONFIG), Request(phase="prefill", prompt=64, **FP32))
    left = ("linear", "rmsnorm", "sample", "select", "kv_append")
    assert work(graph, *left) == work(own, *left)
    c = counts(graph)
    assert (c.weight_macs, c.attention_macs) == (313_524_224, 2_129_920)
    body = [sum(op_cost(g, n).macs for n in op_nodes(g) if g.nodes[n].get("layer") is not None) for g in (graph, own)]
    assert body[0] == body[1] == 64 * 802_816 + 2_129_920
    if ONNX.exists():
        pytest.importorskip("onnx")
        assert work(load_graph(ONNX, causal=True)) == work(graph)


@pytest.mark.skipif(not CONFIG.exists(), reason="no ../shared")
@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("decomposed", [False, True])
def test_a_decode_step_is_the_configs_decode_step(written: bool, decomposed: bool) -> None:
    past = tuple(tuple(torch.zeros(1, 4, 100, 32) for _ in "kv") for _ in range(4))
    program = exported(Llama(Sizes(), written), ids(1), past)
    program = program.run_decompositions() if decomposed else program
    graph = graph_from_export(program, in_place=True)
    own = decode_graph(load_model(CONFIG), Request(context=100, **FP32))
    assert work(graph) == work(own, "sample")
    assert counts(graph_from_export(program)).kv_written == 4 * 2 * 101 * 128


def test_shared_heads_and_a_batch() -> None:
    sizes = Sizes(num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2, head_dim=16, vocab_size=100)
    graph = graph_from_export(exported(Llama(sizes), ids(20, 3)))
    c = counts(graph)
    assert c.attention_macs == 2 * 2 * 3 * 8 * 16 * 210
    assert c.kv_read == 2 * 2 * 3 * 2 * 16 * 20
    assert {graph.nodes[n]["kv_heads"] for n in op_nodes(graph) if graph.nodes[n]["op"] == "attention"} == {2}


@pytest.mark.parametrize("chip", ["h100-sxm", "groq-3-lpu", "sn40l"])
def test_a_saved_program_runs(tmp_path: Path, chip: str) -> None:
    torch.export.save(exported(Llama(Sizes(num_hidden_layers=2, vocab_size=512)), ids(16)), tmp_path / "l.pt2")
    graph, system = load_graph(tmp_path / "l.pt2"), load_system(chip)
    run = simulate(compile_graph(graph, system))
    check_run(run)
    check_bytes(run, graph, system)


def test_symbolic_lengths_are_bound() -> None:
    dynamic = ({1: torch.export.Dim("tokens", min=2, max=512)},)
    program = exported(Llama(Sizes(num_hidden_layers=2, vocab_size=512)), ids(16), dynamic_shapes=dynamic)
    with pytest.raises(StallscopeError, match=r"lengths that are not known: '(\w+)' of input 'ids'") as error:
        graph_from_export(program)
    name = str(error.value).split("'")[3]
    whole = graph_from_export(exported(Llama(Sizes(num_hidden_layers=2, vocab_size=512)), ids(40)))
    assert work(graph_from_export(program, dims={name: 40})) == work(whole)


class Odd(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.linalg.inv(x)


def test_what_is_not_mapped_names_itself_and_its_place() -> None:
    with pytest.raises(StallscopeError, match=r"node 'linalg_inv\w*'.*'aten\.linalg_inv\w*\.\w+', which is not known"):
        graph_from_export(exported(Odd(), torch.eye(4)))
    with pytest.raises(StallscopeError, match="found a Odd; expected an ExportedProgram"):
        graph_from_export(Odd())


def test_a_file_that_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "x.pt2").write_bytes(b"PK\x03\x04 and so on")
    with pytest.raises(StallscopeError, match=r"torch\.export cannot load"):
        load_graph(tmp_path / "x.pt2")


class Parts(nn.Module):
    """Operators that llama does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32, bias=False)
        self.norm, self.conv = nn.LayerNorm(32), nn.Conv1d(32, 32, 4, padding=3, groups=32)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.norm(x)).split(32, dim=-1)
        scores = torch.einsum("bqd,bkd->bqk", q, k).masked_fill(torch.ones(6, 6).tril().eq(0), float("-inf"))
        y = torch.nn.functional.gelu(self.out(scores.softmax(-1) @ v), approximate="tanh")
        best = y.topk(4, dim=-1)[0].sum(-1, keepdim=True)
        z = self.conv(y.transpose(1, 2))[..., :6].transpose(1, 2)
        return torch.where(z > best, z.clamp(-1, 1), y.square() - 2 * z)


def test_other_operators() -> None:
    graph = graph_from_export(exported(Parts(), torch.zeros(2, 6, 32)))
    found = work(graph)
    assert found["linear"][:2] == [4, 12 * 32 * 128]
    assert {"layernorm", "gelu", "softmax", "matmul", "rearrange", "pointwise"} <= set(found)
    assert counts(graph).other_macs == 2 * 2 * 6 * 6 * 32
