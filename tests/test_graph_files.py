"""Graph files by suffix and content, GraphML, the `graph` command, and pictures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import networkx as nx
import pytest
from typer.testing import CliRunner

from stallscope import (
    Request,
    StallscopeError,
    compile_graph,
    decode_graph,
    load_graph,
    load_model,
    load_system,
    simulate,
)
from stallscope.cli import app
from stallscope.picture import dot, once, svg
from stallscope.workloads import add_op, add_tensor, check_graph, new_graph, op_cost, save_graph
from stallscope.workloads.foreign.layers import longest_run
from stallscope.workloads.foreign.summary import counts

MODEL = "llama-3.2-1b"


def decode(**request: object) -> nx.DiGraph:
    return decode_graph(load_model(MODEL), Request(context=64, **request))  # type: ignore[arg-type]


def same(one: nx.DiGraph, two: nx.DiGraph) -> bool:
    """Equal in every attribute, nodes and edges in the same order."""
    return (
        one.graph == two.graph
        and list(one.nodes(data=True)) == list(two.nodes(data=True))
        and list(one.edges(data=True)) == list(two.edges(data=True))
    )


@pytest.mark.parametrize("suffix", [".json", ".graphml"])
@pytest.mark.parametrize("request_", [{}, {"phase": "prefill", "prompt": 32, "context": 0}])
def test_a_graph_comes_back_as_it_was(tmp_path: Path, suffix: str, request_: dict[str, object]) -> None:
    graph = decode_graph(load_model(MODEL), Request(**{"context": 64, **request_}))  # type: ignore[arg-type]
    save_graph(graph, tmp_path / f"g{suffix}")
    back = load_graph(tmp_path / f"g{suffix}")
    assert same(back, graph)
    system = load_system("h100-sxm")
    assert simulate(compile_graph(back, system)).time_fs == simulate(compile_graph(graph, system)).time_fs


def test_views_come_back_too(tmp_path: Path) -> None:
    graph = with_view((6, 4))
    for suffix in (".json", ".graphml"):
        save_graph(graph, tmp_path / f"g{suffix}")
        assert same(load_graph(tmp_path / f"g{suffix}"), graph)


def with_view(view: object) -> nx.DiGraph:
    """relu of a tensor that is seen in another shape."""
    graph = new_graph("v")
    add_tensor(graph, "x", "activation", (2, 12), "fp32")
    add_op(graph, "f", "relu", {"x": "x"}, {"out": (6, 4)})
    graph.edges["x", "f"]["view"] = view
    return graph


@pytest.mark.parametrize(("view", "read"), [((6, 4), 96), ((3, 4), 48), ((60, 4), 96)])
def test_a_view_reads_the_fewer_elements(view: tuple[int, int], read: int) -> None:
    graph = with_view(view)
    graph.nodes["f.out"]["shape"] = view
    check_graph(graph)
    assert op_cost(graph, "f").reads == {"x": read}


@pytest.mark.parametrize("view", [(6, 0), "6x4", (2.0, 12), ()])
def test_a_view_is_a_shape(view: object) -> None:
    with pytest.raises(StallscopeError, match="edge 'x' -> 'f': view: found"):
        check_graph(with_view(view) if view else _emptied())


def _emptied() -> nx.DiGraph:
    graph = with_view((6, 4))
    graph.edges["x", "f"]["view"] = ()
    return graph


def test_a_view_runs_on_every_chip_alike_under_tensor_parallelism() -> None:
    from laws import check_run

    graph = with_view((6, 4))
    check_run(simulate(compile_graph(graph, load_system("h100-sxm", tp=2))))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("g.json", "version https://git-lfs.github.com/spec/v1\n", "git-LFS pointer"),
        ("g.graphml", "version https://git-lfs.github.com/spec/v1\n", "git-LFS pointer"),
        ("g.json", '{"adjacency": [], "nodes": []}', "networkx's adjacency format"),
        ("g.json", '{"elements": {"nodes": []}}', "Cytoscape JSON"),
        ("g.json", '{"irVersion": 8, "graph": {"node": []}}', "ONNX model as JSON: give the .onnx file"),
        ("g.json", '{"model_type": "llama", "hidden_size": 8}', "config.json: give it to --model"),
        ("g.json", '{"nodes": [], "edges": []}', "no 'graph'"),
        ("g.graphml", "<graphml", "broken XML"),
        ("g.graphml", "", "an empty file"),
        ("g.xml", '<svg xmlns="http://www.w3.org/2000/svg"/>', "XML whose root is <svg>"),
        ("g.graphml", "<!DOCTYPE x [<!ENTITY a 'b'>]><graphml/>", "a document type or entities"),
        ("g.graphml", '<graphml><graph edgedefault="undirected"><node id="a"/></graph></graphml>', "undirected graph"),
        (
            "g.graphml",
            '<graphml><graph edgedefault="directed"><node id="a"/></graph></graphml>',
            "GraphML of another tool",
        ),
        (
            "g.graphml",
            '<graphml xmlns:y="http://www.yworks.com/xml/graphml"><graph edgedefault="directed"/></graphml>',
            "yEd",
        ),
        ("g.graphml", "<graphml/>", "GraphML"),
    ],
)
def test_what_is_no_graph_of_ours_is_refused_with_a_hint(tmp_path: Path, name: str, content: str, says: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(StallscopeError, match=re.escape(says)):
        load_graph(tmp_path / name)


def test_a_fault_in_graphml_names_the_file_and_the_node(tmp_path: Path) -> None:
    save_graph(with_view((6, 4)), tmp_path / "g.graphml")
    text = (tmp_path / "g.graphml").read_text()
    (tmp_path / "g.graphml").write_text(text.replace(">relu<", ">rleu<"))
    with pytest.raises(StallscopeError, match=r"g\.graphml: .*'f'.*'rleu'.*Did you mean 'relu'"):
        load_graph(tmp_path / "g.graphml")


@pytest.mark.parametrize("option", [{"dims": {"n": 1}}, {"causal": True}, {"in_place": True}])
def test_options_of_foreign_graphs_are_for_those(tmp_path: Path, option: dict[str, object]) -> None:
    save_graph(with_view((6, 4)), tmp_path / "g.json")
    with pytest.raises(StallscopeError, match="for a graph of our own"):
        load_graph(tmp_path / "g.json", **option)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("word", "says"),
    [("n", "no NAME=NUMBER"), ("n=", "no NAME=NUMBER"), ("n=x", "no NAME=NUMBER"), ("n=-1", "no NAME=NUMBER")],
)
def test_dim_is_a_name_and_a_number(word: str, says: str) -> None:
    result = CliRunner().invoke(app, ["graph", "x.onnx", "--dim", word])
    assert result.exit_code == 2
    assert says in result.output


def invoke(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_shows_writes_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = invoke("graph", MODEL, "--context", "64")
    c = counts(decode())
    assert f"{c.weight_macs:,} with weights" in text
    assert f"{c.parameters:,} stored elements" in text
    invoke("graph", MODEL, "--context", "64", "-o", "g.graphml")
    assert same(load_graph("g.graphml"), decode())
    assert invoke("graph", "g.graphml") == text
    invoke("graph", MODEL, "--context", "64", "--draw", "g.svg")
    assert ElementTree.parse("g.svg").getroot().tag.endswith("svg")
    invoke("graph", MODEL, "--draw", "g.dot")
    assert Path("g.dot").read_text().startswith("digraph {")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("graph",), "found no model and no file"),
        (("graph", MODEL, "--model", MODEL), "expected one"),
        (("graph", MODEL, "-o", "g.txt"), "expected .json or .graphml"),
        (("graph", MODEL, "--draw", "g.png"), "expected .svg, .dot, .gv"),
        (("graph", MODEL, "--dim", "n=1"), "found no --graph"),
        (("graph", MODEL, "--draw", "no/such/g.svg"), "--draw no/such/g.svg: cannot be written: No such file"),
        (("graph", MODEL, "-o", "no/such/g.json"), "no/such/g.json: found that it cannot be written (No such file or"),
    ],
)
def test_what_the_command_refuses(words: tuple[str, ...], says: str) -> None:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 2
    assert says in result.output.replace("\n", " ")


def test_a_picture_shows_one_layer_of_many() -> None:
    graph = decode()
    shown = once(graph)
    ops = [n for n, d in shown.nodes(data=True) if d["kind"] == "op"]
    one = [n for n, d in graph.nodes(data=True) if d["kind"] == "op" and d.get("layer") in (None, 0)]
    assert sorted(ops) == sorted(one)
    assert nx.is_weakly_connected(shown)
    assert svg(shown).count("<rect") == len(shown) + 1
    assert dot(shown).count(" -> ") == shown.number_of_edges()


@pytest.mark.parametrize(
    ("word", "start", "period", "times"),
    [("xababab", 1, 2, 3), ("abcabcabd", 0, 3, 2), ("abcd", 0, 0, 1), ("aaaa", 0, 2, 2), ("xyxyabcabcabcz", 4, 3, 3)],
)
def test_what_repeats(word: str, start: int, period: int, times: int) -> None:
    assert longest_run(word) == (start, period, times)


def test_json_is_what_networkx_writes(tmp_path: Path) -> None:
    save_graph(with_view((6, 4)), tmp_path / "g.json")
    data = json.loads((tmp_path / "g.json").read_text())
    assert nx.node_link_graph(data, edges="edges").number_of_nodes() == 3
