"""Whole decode graphs against the model's own numbers, and every way in which a graph can be wrong."""

import contextlib
import itertools
import json

import networkx as nx
import pytest
from laws import SIMULATED

from stallscope.errors import StallscopeError
from stallscope.workloads import (
    Model,
    Request,
    add_op,
    add_tensor,
    check_graph,
    decode_graph,
    load_graph,
    load_model,
    new_graph,
    op_cost,
    op_nodes,
    save_graph,
    tensor_bytes,
)
from stallscope.workloads.checks import GraphError
from stallscope.workloads.layers import Attention, Layer, Mlp

BITS = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "int4": 4}
TINY = Model("tiny", 16, 100, (Layer(Attention(4, 2, 4), Mlp(24)),) * 2)
BIASED_LAYER = Layer(Attention(6, 3, 8, window=7, qkv_bias=True, out_bias=True), Mlp(24, bias=True))
BIASED = Model("biased", 16, 100, (BIASED_LAYER,) * 3, max_position_embeddings=64, tie_word_embeddings=True)


def elements(graph, *kinds, tied=True):
    total = 0
    for _, data in graph.nodes(data=True):
        if data["kind"] == "tensor" and data["tensor"] in kinds and (tied or "tied_to" not in data):
            count = 1
            for size in data["shape"]:
                count *= size
            total += count
    return total


def sums(graph):
    """Bytes read and written by tensor kind, and macs by operator, over all ops."""
    read, written, macs = {}, {}, {}
    for node in op_nodes(graph):
        cost, op = op_cost(graph, node), graph.nodes[node]["op"]
        for into, moved in ((read, cost.reads), (written, cost.writes)):
            for tensor, size in moved.items():
                kind = graph.nodes[tensor]["tensor"]
                into[kind] = into.get(kind, 0) + size
        macs[op] = macs.get(op, 0) + cost.macs
    return read, written, macs


@pytest.mark.parametrize("name", SIMULATED)
def test_a_graphs_tensors_add_up_to_the_model(name):
    model = load_model(name)
    graph = decode_graph(model, Request(batch=1, context=4608, weight="bf16", kv="bf16"))
    check_graph(graph)
    kept = model.prediction_params
    assert elements(graph, "weight", "expert", "embedding", tied=False) == model.params + kept
    tables = [w for w in model.first_weights if w.used == 1]
    assert elements(graph, "embedding") == sum(w.elements for w in tables)
    read, _, _ = sums(graph)
    assert read["weight"] + read.get("expert", 0) == model.params_read_per_token * 2
    assert read["embedding"] == 2 * sum(w.used_elements for w in tables)
    if model.name != "deepseek-v3.2":  # its indexer picks what is read
        assert read["kv"] == model.kv_bytes(4608)


@pytest.mark.parametrize(
    ("model", "batch", "context", "weight", "kv"),
    [
        (load_model("llama-3.1-8b"), 1, 1024, "bf16", "bf16"),
        (load_model("llama-3.2-1b"), 8, 333, "int4", "fp8"),
        (load_model("qwen2.5-0.5b"), 3, 1, "fp8", "fp32"),
        (TINY, 5, 10, "fp16", "int8"),
        (BIASED, 2, 50, "int8", "int4"),
    ],
)
def test_sums_over_the_graph_by_formula(model, batch, context, weight, kv):
    graph = decode_graph(model, Request(batch, context, weight, kv, "bf16"))
    check_graph(graph)
    read, written, macs = sums(graph)
    (layer,) = model.layer_kinds
    layers, heads, dim = len(model.layers), layer.attention.kv_heads, layer.attention.head_dim
    kept = layer.attention_tokens(context)
    assert read["weight"] == sum(
        tensor_bytes(data) for _, data in graph.nodes(data=True) if data.get("tensor") == "weight"
    )
    if model.params_read_per_token * BITS[weight] % 8 == 0 and weight != "int4":
        assert read["weight"] == model.params_read_per_token * BITS[weight] // 8
    assert read["kv"] == 2 * layers * heads * dim * kept * BITS[kv] // 8 * batch
    assert written["kv"] == 2 * layers * heads * dim * BITS[kv] // 8 * batch
    assert read["embedding"] == batch * model.hidden_size * BITS[weight] // 8
    matrices = sum(
        data["shape"][0] * data["shape"][1]
        for _, data in graph.nodes(data=True)
        if data.get("tensor") == "weight" and len(data["shape"]) == 2
    )
    assert macs["linear"] == batch * matrices
    assert macs["attention"] == 2 * layers * batch * layer.attention.heads * dim * (kept + 1)


def test_the_h100_example_by_hand():
    graph = decode_graph(load_model("llama-3.1-8b"), Request(batch=1, context=1024))
    read, _, _ = sums(graph)
    assert read["weight"] == 7_504_924_672 * 2
    assert read["kv"] == 2 * 32 * 8 * 128 * 1024 * 2


def test_a_layer_reads_like_hugging_faces():
    graph = decode_graph(TINY, Request(batch=2, context=10, kv="fp8"))
    layer = [n.removeprefix("model.layers.1.") for n in op_nodes(graph) if graph.nodes[n].get("layer") == 1]
    assert layer == [
        "input_layernorm",
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.q_rope",
        "self_attn.k_rope",
        "self_attn.kv_append",
        "self_attn.attention",
        "self_attn.o_proj",
        "attn_residual",
        "post_attention_layernorm",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.swiglu",
        "mlp.down_proj",
        "mlp_residual",
    ]
    cache = graph.nodes["model.layers.1.self_attn.k_cache"]
    assert cache == {"kind": "tensor", "tensor": "kv", "shape": (2, 2, 10, 4), "dtype": "fp8", "layer": 1}
    assert graph.edges["model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.up_proj"] == {"role": "weight"}
    assert op_nodes(graph)[0] == "model.embed_tokens"
    assert op_nodes(graph)[-3:] == ["model.norm", "lm_head", "sample"]


def test_nodes_are_added_in_the_order_of_execution():
    graph = decode_graph(BIASED, Request())
    assert op_nodes(graph) == [n for n, data in graph.nodes(data=True) if data["kind"] == "op"]


def test_layers_are_alike():
    graph = decode_graph(BIASED, Request(batch=2, context=10))

    def shape_of(layer):
        prefix = f"model.layers.{layer}."
        return [
            (n.removeprefix(prefix), {k: v for k, v in data.items() if k != "layer"})
            for n, data in graph.nodes(data=True)
            if n.startswith(prefix)
        ]

    assert shape_of(0) == shape_of(1) == shape_of(2)


def test_a_tied_head_is_its_own_node_stored_once():
    graph = decode_graph(load_model("llama-3.2-1b"), Request())
    assert graph.nodes["lm_head.weight"]["tied_to"] == "model.embed_tokens.weight"
    assert "tied_to" not in decode_graph(TINY, Request()).nodes["lm_head.weight"]


def test_a_window_cuts_the_cache_and_a_long_request_warns():
    graph = decode_graph(BIASED, Request(context=50))
    assert graph.nodes["model.layers.0.self_attn.v_cache"]["shape"] == (1, 3, 7, 8)
    assert graph.graph["warnings"] == ()
    assert decode_graph(BIASED, Request(context=64)).graph["warnings"] == ()
    (warning,) = decode_graph(BIASED, Request(context=65)).graph["warnings"]
    assert "65" in warning
    assert "64" in warning
    assert decode_graph(TINY, Request(context=10**9)).graph["warnings"] == ()


def block():
    """Ten lines of networkx: a gated block of a user's own."""
    graph = new_graph("block", batch=2)
    add_tensor(graph, "x", "activation", (2, 8))
    add_tensor(graph, "w1", "weight", (12, 8))
    add_tensor(graph, "w2", "weight", (8, 12))
    add_op(graph, "up", "linear", {"x": "x", "weight": "w1"}, {"out": (2, 12)})
    add_op(graph, "act", "gelu", {"x": "up.out"}, {"out": (2, 12)})
    add_op(graph, "down", "linear", {"x": "act.out", "weight": "w2"}, {"out": (2, 8)})
    add_op(graph, "sum", "add", {"a": "x", "b": "down.out"}, {"out": (2, 8)})
    return graph


def test_plain_networkx_builds_the_same_graph():
    dtypes = {"weight": "bf16", "kv": "bf16", "activation": "bf16"}
    graph = nx.DiGraph(schema="stallscope-graph/1", name="n", phase="decode", batch=2, context=0, dtypes=dtypes)
    graph.add_node("x", kind="tensor", tensor="activation", shape=(2, 8), dtype="bf16")
    graph.add_node("y", kind="tensor", tensor="activation", shape=(2, 8), dtype="bf16", colour="a user's own")
    graph.add_node("act", kind="op", op="silu")
    graph.add_edge("x", "act", role="x")
    graph.add_edge("act", "y", role="out")
    check_graph(graph)
    assert op_cost(graph, "act").vector_ops == 32


def test_saved_and_loaded_it_is_the_same(tmp_path):
    for i, graph in enumerate((block(), decode_graph(BIASED, Request(batch=3, context=99, weight="int4")))):
        path = tmp_path / f"{i}.json"
        save_graph(graph, path)
        again = load_graph(path)
        assert again.graph == graph.graph
        assert list(again.nodes(data=True)) == list(graph.nodes(data=True))
        assert sorted(again.edges(data=True), key=str) == sorted(graph.edges(data=True), key=str)
    assert len(list(tmp_path.iterdir())) == 2


def test_what_networkx_writes_is_read(tmp_path):
    path = tmp_path / "g.json"
    path.write_text(json.dumps(nx.node_link_data(block())))
    assert set(load_graph(str(path))) == set(block())


def test_a_graph_that_cannot_be_written_leaves_nothing(tmp_path):
    graph = block()
    graph.nodes["x"]["colour"] = float("nan")
    with pytest.raises(StallscopeError, match="cannot be written"):
        save_graph(graph, tmp_path / "g.json")
    with pytest.raises(StallscopeError, match="cannot be written"):
        save_graph(block(), tmp_path / "none" / "g.json")
    assert list(tmp_path.iterdir()) == []


def cycle(graph):
    graph.remove_edge("x", "up")
    graph.add_edge("sum.out", "up", role="x")


def spare(graph):
    add_tensor(graph, "spare", "weight", (1,))


def two_producers(graph):
    graph.remove_edge("act", "act.out")
    graph.add_edge("act", "down.out", role="out")


def written_weight(graph):
    graph.nodes["up.out"]["tensor"] = "weight"


def node(name, **attributes):
    return lambda graph: graph.nodes[name].update(attributes)


def unset(name, key):
    return lambda graph: graph.nodes[name].pop(key)


def whole(**attributes):
    return lambda graph: graph.graph.update(attributes)


# fault: (what is done to `block()`, words that the message must have)
FAULTS = {
    "cycle": (cycle, ["cycle", "up -> up.out -> act"]),
    "unknown op": (node("act", op="gelo"), ["'act'", "'gelo'", "Did you mean 'gelu'"]),
    "op missing": (unset("act", "op"), ["'act'", "op None", "Set op=NAME"]),
    "op is a list": (node("act", op=["gelu"]), ["'act'", "Set op=NAME"]),
    "missing input": (lambda g: g.remove_edge("w1", "up"), ["'up' (linear)", "role 'weight'", "[N K]"]),
    "missing output": (lambda g: g.remove_node("sum.out"), ["'sum' (add)", "no output", "'out'"]),
    "unknown role": (lambda g: g.edges["x", "up"].update(role="xx"), ["'xx'", "x, weight, bias", "Did you mean 'x'"]),
    "no role": (lambda g: g.edges["x", "up"].clear(), ["role None", "Set role=NAME"]),
    "role twice": (lambda g: g.edges["x", "sum"].update(role="b"), ["'x'", "'down.out'", "both as input 'b'"]),
    "shapes disagree": (node("w1", shape=(12, 9)), ["weight has shape (12, 9)", "K = 8 from x", "weight='w1'"]),
    "wrong rank": (node("w1", shape=(96,)), ["weight has shape (96,)", "[N K]"]),
    "elementwise disagree": (node("sum.out", shape=(1, 8)), ["'sum' (add)", "out has shape (1, 8)"]),
    "two producers": (two_producers, ["'down.out'", "2 producers"]),
    "unknown dtype": (node("w1", dtype="bf61"), ["'w1'", "dtype", "Did you mean 'bf16'"]),
    "dtype missing": (unset("w1", "dtype"), ["'w1'", "dtype", "null"]),
    "dangling tensor": (spare, ["'spare'", "no op at either end"]),
    "dangling op": (lambda g: g.add_node("lost", kind="op", op="add"), ["'lost' (add)", "role 'a'"]),
    "zero dimension": (node("w1", shape=(12, 0)), ["'w1'", "shape", "(12, 0)"]),
    "negative dimension": (node("w1", shape=(-12, 8)), ["'w1'", "(-12, 8)"]),
    "float dimension": (node("w1", shape=(12.0, 8)), ["'w1'", "(12.0, 8)"]),
    "bool dimension": (node("w1", shape=(True, 8)), ["'w1'", "(True, 8)"]),
    "huge dimension": (node("w1", shape=(10**30, 8)), ["'w1'", "shape"]),
    "no dimensions": (node("w1", shape=()), ["'w1'", "()"]),
    "shape is a list": (node("w1", shape=[12, 8]), ["'w1'", "[12, 8]", "a tuple"]),
    "shape missing": (unset("w1", "shape"), ["'w1'", "shape", "null"]),
    "wrong node kind": (node("w1", kind="weight"), ["'w1'", "kind 'weight'", "'op' or 'tensor'"]),
    "wrong tensor kind": (node("w1", tensor="wieght"), ["'w1'", "Did you mean 'weight'"]),
    "kind that does not play the role": (node("w1", tensor="kv"), ["'up' (linear)", "'w1'", "weight or expert"]),
    "a weight that is written": (
        written_weight,
        ["'up' (linear): out", "kind 'weight'", "kind activation"],
    ),
    "tensor to tensor": (lambda g: g.add_edge("x", "w1"), ["'x' -> 'w1'", "two tensor nodes"]),
    "op to op": (lambda g: g.add_edge("up", "act"), ["'up' -> 'act'", "two op nodes"]),
    "number as a name": (lambda g: g.add_node(7, kind="op", op="add"), ["node 7", "a string"]),
    "no kind": (lambda g: g.add_node("odd"), ["'odd'", "kind null"]),
    "misspelt attribute": (node("up", paralel="row"), ["'up'", "'paralel'", "'parallel'"]),
    "bad parallel": (node("up", parallel="rows"), ["'up'", "'rows'", "'column'"]),
    "bad layer": (node("up", layer=-1), ["'up'", "layer", "-1"]),
    "tied to nothing": (node("w1", tied_to="nothing"), ["'w1'", "tied_to", "'nothing'"]),
    "tied to a weight": (node("w1", tied_to="w2"), ["'w1'", "tied_to", "embedding"]),
    "no schema": (lambda g: g.graph.pop("schema"), ["'schema'", "new_graph"]),
    "other schema": (whole(schema="stallscope-graph/9"), ["schema", "stallscope-graph/1"]),
    "other phase": (whole(phase="dream"), ["phase", "'dream'", "decode"]),
    "batch 0": (whole(batch=0), ["batch", "found 0"]),
    "batch true": (whole(batch=True), ["batch", "True"]),
    "context negative": (whole(context=-1), ["context", "-1"]),
    "dtypes of one": (whole(dtypes={"weight": "bf16"}), ["dtypes"]),
    "dtypes unknown": (whole(dtypes={"weight": "bf16", "kv": "x", "activation": "bf16"}), ["dtypes.kv", "'x'"]),
    "name of a graph": (whole(name=3), ["name", "a string"]),
    "warnings": (whole(warnings="oh"), ["warnings", "'oh'"]),
    "nothing": (lambda g: g.clear_edges() or g.remove_nodes_from(list(g)), ["no nodes"]),
    "tensors only": (lambda g: g.remove_nodes_from(["up", "act", "down", "sum"]), ["tensors only"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_one_clear_message(fault):
    graph = block()
    change, words = FAULTS[fault]
    change(graph)
    with pytest.raises(GraphError) as caught:
        check_graph(graph)
    message = str(caught.value)
    assert [word for word in words if word not in message] == [], message
    assert "found" in message
    assert "expected" in message
    assert "\n" not in message


@pytest.mark.parametrize("fault", ["cycle", "unknown op", "shapes disagree", "two producers", "zero dimension"])
def test_faults_in_a_file_name_the_line(fault, tmp_path):
    graph = block()
    path = tmp_path / "g.json"
    FAULTS[fault][0](graph)
    path.write_text(json.dumps(nx.node_link_data(graph), indent=1))
    with pytest.raises(GraphError) as caught:
        load_graph(path)
    start = f"{path}:"
    message = str(caught.value)
    assert message.startswith(start)
    line = path.read_text().splitlines()[int(message.removeprefix(start).split(":")[0]) - 1]
    assert json.dumps(caught.value.node) in line


ODD = (None, True, 0, -1, 2.5, 10**40, "", "x", [], [0], [2, 8], [[1]], [None], {}, {"a": 1}, (), (2, 8), (1,), "add")


def test_odd_values_in_any_place_are_refused_or_fit():
    places = [("graph", key) for key in block().graph]
    places += [(name, key) for name, data in block().nodes(data=True) for key in (*data, "layer", "tied_to", "rows")]
    for name, key in places:
        for value in ODD:
            graph = block()
            data = graph.graph if name == "graph" else graph.nodes[name]
            data[key] = value
            with contextlib.suppress(GraphError):
                check_graph(graph)
                assert sums(graph)[2]["linear"] > 0


@pytest.mark.parametrize("kind", [nx.Graph, nx.MultiDiGraph, dict])
def test_only_a_digraph_is_a_graph(kind):
    with pytest.raises(GraphError, match=f"found a {kind.__name__}; expected a networkx.DiGraph"):
        check_graph(kind())


def test_more_bytes_than_the_clock_can_count():
    graph = new_graph("big")
    for name in ("a", "b"):
        add_tensor(graph, name, "activation", (2**40, 2**21))
    add_op(graph, "sum", "add", {"a": "a", "b": "b"}, {"out": (2**40, 2**21)})
    with pytest.raises(GraphError, match="bytes of tensors"):
        check_graph(graph)


def test_attention_attributes_are_checked():
    for key, value in itertools.product(("heads", "kv_heads", "head_dim"), (None, 0, True, 2.0, 3)):
        graph = decode_graph(TINY, Request())
        graph.nodes["model.layers.0.self_attn.attention"][key] = value
        with pytest.raises(GraphError, match=r"model\.layers\.0\.self_attn\.attention"):
            check_graph(graph)


def test_building_blocks_refuse_early():
    graph = block()
    with pytest.raises(GraphError, match="Did you mean 'linear'"):
        add_op(graph, "more", "linaer", {}, {})
    with pytest.raises(GraphError, match="'nowhere', which is not in the graph"):
        add_op(graph, "more", "silu", {"x": "nowhere"}, {"out": (2, 8)})
    with pytest.raises(GraphError, match="'x', which is in another role too"):
        add_op(graph, "square", "mul", {"a": "x", "b": "x"}, {"out": (2, 8)})


NODES = '"graph": {}, "nodes": [{"id": "a"}, {"id": "b"}]'

# what a file holds: words that the message must have
FILES = {
    "": ["empty file"],
    " \n": ["empty file"],
    "\0\1\2": ["binary"],
    "[1, 2]": ["a JSON list", "a JSON object"],
    "null": ["a JSON null"],
    '{"a": ': ["g.json:1", "broken JSON"],
    '{}\n{"a": 1}': ["g.json:2", "more text"],
    '{"a": NaN}': ["NaN", "finite"],
    '{"a": 1e999}': ["1e999", "finite"],
    '{"a": -Infinity}': ["-Infinity"],
    '{"a": 1, "a": 2}': ["'a' twice"],
    '{"a": ' + "9" * 5000 + "}": ["thousands of digits"],
    '{"a": ' + "[" * 100_000 + "}": ["nesting too deep"],
    "{}": ["no 'graph'", "load_model()"],
    '{"graph": {}}': ["no 'nodes'"],
    '{"graph": {}, "nodes": []}': ["no 'edges'"],
    '{"graph": {}, "nodes": [], "edges": []}': ["no graph attribute 'schema'"],
    '{"graph": [], "nodes": [], "edges": []}': ["g.json:1: graph", "an object"],
    '{"graph": {}, "nodes": {}, "edges": []}': ["nodes", "a list of objects"],
    '{"graph": {}, "nodes": [1], "edges": []}': ["nodes", "a list of objects"],
    '{"graph": {}, "nodes": [], "edges": [], "egdes": 1}': ["egdes", "Did you mean 'edges'"],
    '{"graph": {}, "nodes": [], "edges": [], "directed": false}': ["directed", "true"],
    '{"graph": {}, "nodes": [], "edges": [], "multigraph": true}': ["multigraph", "false"],
    '{"graph": {}, "nodes": [{"id": 3}], "edges": []}': ["nodes[0]", "id 3"],
    '{"graph": {}, "nodes": [{"id": "a"}, {"id": "a"}], "edges": []}': ["nodes[1]", "'a' a second time"],
    "{" + NODES + ', "edges": [{"source": "a", "target": "c"}]}': ["edges[0]: target", "'c'"],
    "{" + NODES + ', "links": [{"source": ["a"], "target": "b"}]}': ["links[0]: source"],
    "{" + NODES + ', "edges": [{"target": "b"}]}': ["edges[0]: source", "null"],
    "{" + NODES + ', "edges": [{"source": "a", "target": "b"}, {"source": "a", "target": "b"}]}': [
        "edges[1]",
        "a second time",
    ],
    '{"graph": {"incoming_graph_data": 1}, "nodes": [{"id": "a", "node_for_adding": 1}], "edges": []}': ["'schema'"],
}


@pytest.mark.parametrize("text", FILES, ids=[text[:40].replace("\0", "0") for text in FILES])
def test_bad_files(text, tmp_path):
    path = tmp_path / "g.json"
    path.write_text(text)
    with pytest.raises(StallscopeError) as caught:
        load_graph(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert [word for word in FILES[text] if word not in message] == [], message
    assert "\n" not in message


def test_paths_that_are_no_file(tmp_path):
    for path, words in ((tmp_path, "a directory"), (tmp_path / "no.json", "no such file"), ("a\0b", "no such file")):
        with pytest.raises(StallscopeError, match=words):
            load_graph(path)
    with pytest.raises(StallscopeError, match="found"):
        load_graph("x" * 5000)
    with pytest.raises(StallscopeError, match="not a regular file"):
        load_graph("/dev/null")
