"""Bad input through the commands: exit code 2, one message that helps, no traceback, nothing printed or written."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from test_chip_files import GOOD
from test_cli import Result, invoke, process

MODEL = ("--model", "llama-3.2-1b")
H100 = ("run", "--chip", "h100-sxm")
RUN = (*H100, *MODEL)
TINY = ("run", "--chip", "tiny.yaml", *MODEL)
OWN = ("run", "--chip", "h100-sxm", "--graph", "g.json")
CONFIG = ("run", "--chip", "h100-sxm", "--model", "config.json")
VALIDATE = ("validate", "--chip", "h100-sxm", "--table")
PRODUCTS = "gpu,dtype,m,n,k,latency_ms\n"

GOOD_CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}
GOOD_GRAPH: dict[str, Any] = {
    "directed": True,
    "multigraph": False,
    "graph": {
        "schema": "stallscope-graph/1",
        "name": "two",
        "phase": "decode",
        "batch": 1,
        "context": 0,
        "dtypes": {"weight": "bf16", "kv": "bf16", "activation": "bf16"},
    },
    "nodes": [
        {"id": "x", "kind": "tensor", "tensor": "activation", "shape": [1, 64], "dtype": "bf16"},
        {"id": "w", "kind": "tensor", "tensor": "weight", "shape": [32, 64], "dtype": "bf16"},
        {"id": "y", "kind": "tensor", "tensor": "activation", "shape": [1, 32], "dtype": "bf16"},
        {"id": "z", "kind": "tensor", "tensor": "activation", "shape": [1, 32], "dtype": "bf16"},
        {"id": "fc", "kind": "op", "op": "linear"},
        {"id": "act", "kind": "op", "op": "gelu"},
    ],
    "edges": [
        {"source": "x", "target": "fc", "role": "x"},
        {"source": "w", "target": "fc", "role": "weight"},
        {"source": "fc", "target": "y", "role": "out"},
        {"source": "y", "target": "act", "role": "x"},
        {"source": "act", "target": "z", "role": "out"},
    ],
}


def chip(old: str, new: str, base: str = GOOD) -> dict[str, str | bytes]:
    """tiny.yaml with one text replaced."""
    assert base.count(old) == 1, old
    return {"tiny.yaml": base.replace(old, new)}


def config(**changes: Any) -> dict[str, str | bytes]:
    """config.json with keys changed; None drops one."""
    data = {key: value for key, value in {**GOOD_CONFIG, **changes}.items() if value is not None}
    return {"config.json": json.dumps(data)}


def graph(change: Callable[[dict[str, Any]], Any]) -> dict[str, str | bytes]:
    """g.json with something done to it."""
    data = copy.deepcopy(GOOD_GRAPH)
    change(data)
    return {"g.json": json.dumps(data, indent=1)}


def node(name: str, **changes: Any) -> dict[str, str | bytes]:
    """g.json with attributes of one node changed; None drops one."""

    def change(data: dict[str, Any]) -> None:
        (found,) = (n for n in data["nodes"] if n["id"] == name)
        found.update(changes)
        for key in [key for key, value in changes.items() if value is None]:
            del found[key]

    return graph(change)


def edge(source: str, target: str, role: str) -> dict[str, str | bytes]:
    """g.json with an edge more."""
    return graph(lambda data: data["edges"].append({"source": source, "target": target, "role": role}))


def cycle(data: dict[str, Any]) -> None:
    """The result of the last op feeds the first."""
    data["edges"][0]["source"] = "z"
    data["nodes"] = [{**n, "shape": [32, 32]} if n["id"] == "w" else n for n in data["nodes"] if n["id"] != "x"]


def second_producer(data: dict[str, Any]) -> None:
    """Another op that writes z."""
    data["nodes"].append({"id": "again", "kind": "op", "op": "gelu"})
    data["edges"].append({"source": "y", "target": "again", "role": "x"})
    data["edges"].append({"source": "again", "target": "z", "role": "out"})


def square(n: int) -> Callable[[dict[str, Any]], None]:
    """A weight of n x n."""

    def change(data: dict[str, Any]) -> None:
        for i, shape in enumerate(([1, n], [n, n], [1, n], [1, n])):
            data["nodes"][i]["shape"] = shape

    return change


ALIAS_BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
SLOW = GOOD.replace("capacity: 4 GiB", "capacity: 400 GiB").replace("bandwidth: 100 GB/s", "bandwidth: 1 B/s")
BROKEN = '{"model_type": "llama",\n "hidden_size": 64,,\n}'


@dataclass(frozen=True)
class Bad:
    """A command line, words that its message must have (a pattern each), and files that it finds where it runs."""

    name: str
    words: tuple[str, ...]
    says: tuple[str, ...]
    files: dict[str, str | bytes] = field(default_factory=dict)


USAGE = (
    Bad("no chip", ("run", *MODEL), ("Missing option '--chip'",)),
    Bad("unknown command", ("rnu", *RUN[1:]), ("No such command 'rnu'",)),
    Bad("unknown option", (*RUN, "--contxt", "5"), ("No such option: --contxt",)),
    Bad("batch as a word", (*RUN, "--batch", "two"), ("--batch", "integer")),
    Bad("timing of another kind", (*RUN, "--timing", "slow"), ("--timing", "'fixed', 'dram'")),
    Bad("batch of a half", (*RUN, "--batch", "1.5"), ("--batch", "integer")),
    Bad("batch as a power", (*RUN, "--batch", "1e12"), ("--batch", "integer")),
    Bad("context without its number", (*RUN, "--context"), ("requires an argument",)),
    Bad("schema of nothing known", ("schema", "cat"), ("'cat' is not one of",)),
    Bad("check of nothing", ("check",), ("Missing argument 'FILE'",)),
    Bad("compare of nothing", ("compare", *MODEL), ("Missing argument",)),
)

OPTIONS = (
    Bad("context 0", (*RUN, "--context", "0"), ("request: context", "found 0", "from 1 to")),
    Bad("context -1", (*RUN, "--context", "-1"), ("request: context", "found -1", "from 1 to")),
    Bad("context of 30 digits", (*RUN, "--context", "9" * 30), ("request: context", "from 1 to")),
    Bad("batch 0", (*RUN, "--batch", "0"), ("request: batch", "found 0", "from 1 to")),
    Bad("batch -1", (*RUN, "--batch", "-1"), ("request: batch", "found -1", "from 1 to")),
    Bad("batch 1e12", (*RUN, "--batch", str(10**12)), ("request: batch", "found 1000000000000", "from 1 to")),
    Bad("batch too large to hold", (*RUN, "--batch", str(2**20), "--chips", "1"),
        ("does not fit on h100-sxm", r"activation 509\.00 GiB", "no number of these chips")),
    Bad("context too long to hold", (*RUN, "--context", str(2**31), "--chips", "1"), ("does not fit", "kv .*GiB")),
    Bad("neither model nor graph", H100, ("--model NAME", "--graph FILE")),
    Bad("model and graph", (*RUN, "--graph", "g.json"), ("leave out --model",), graph(lambda data: None)),
    Bad("graph with a context", (*OWN, "--context", "5"), ("leave out --context",), graph(lambda data: None)),
    Bad("graph with a format", (*OWN, "--dtype", "fp8"), ("leave out --dtype",), graph(lambda data: None)),
    Bad("unknown chip", ("run", "--chip", "h100-smx", *MODEL), ("unknown chip", "did you mean 'h100-sxm'")),
    Bad("chip without a name", ("run", "--chip", "", *MODEL), ("unknown chip or system ''",)),
    Bad("unknown model", (*H100, "--model", "llama-3.2-1x"), ("'llama-3.2-1x'", "Did you mean 'llama-3.2-1b'")),
    Bad("model without a name", (*H100, "--model", ""), ("model: found ''", "Known: ")),
    Bad("unknown format", (*RUN, "--dtype", "fp9"), ("found 'fp9'", "Did you mean 'fp8'")),
    Bad("W3A16", (*RUN, "--dtype", "W3A16"), ("W3A16", "4, 8, 16 bits", "W4A16")),
    Bad("half a word", (*RUN, "--dtype", "W4"), ("found 'W4'", "one of fp32")),
    Bad("token ids as a format", (*RUN, "--kv", "int32"), ("request: kv", "found 'int32'")),
    Bad("unknown format of activations", (*RUN, "--activation", "bf61"), ("activation", "Did you mean 'bf16'")),
    Bad("tp 0", (*RUN, "--tp", "0"), ("tp: found 0", "from 1 to")),
    Bad("pp -1", (*RUN, "--pp", "-1"), ("pp: found -1", "from 1 to")),
    Bad("no chips", (*RUN, "--chips", "0"), ("chips: found 0", "from 1 to")),
    Bad("a million and one chips", (*RUN, "--chips", "1000001"), ("chips: found 1000001", "to 1,000,000")),
    Bad("tp does not divide the heads", (*RUN, "--tp", "3"), ("tp 3", "32 heads", "expected a tp of 1, 2, 4, 8")),
    Bad("tp of more than all heads", (*RUN, "--tp", "64"), ("tp 64", "32 heads", "change --tp")),
    Bad("tp x pp above chips", (*RUN, "--chips", "4", "--tp", "4", "--pp", "2"), ("tp 4 x pp 2 = 8", "there are 4")),
    Bad("pp above layers", (*RUN, "--pp", "17"), ("pp 17", "16 layers", "lower --pp")),
    Bad("chips above layers", (*RUN, "--chips", "1000000"), ("16 layers",)),
    Bad("too large for one chip", (*H100, "--model", "llama-3.1-70b", "--chips", "1"),
        ("does not fit on h100-sxm", r"needs 131\.\d+ GiB in hbm and has 80\.00 GiB", r"weight 129\.\d+ GiB",
         "smallest split that fits is tp 2")),
    Bad("too large for any node of one tp", (*H100, "--model", "llama-3.1-405b", "--tp", "2", "--pp", "1"),
        ("does not fit", "smallest split that fits is tp 8, pp 2")),
    Bad("JSON into a missing folder", (*RUN, "--json", "no/run.json"),
        ("--json no/run.json", "no folder no", "create it")),
    Bad("JSON to a folder", (*RUN, "--json", "."), (r"--json \.: this is a folder", "name of a file")),
    Bad("JSON to a file as a folder", (*RUN, "--json", "a.txt/run.json"), ("no folder a.txt",), {"a.txt": "x"}),
    Bad("JSON to no name", (*RUN, "--json", ""), ("--json ''", "found no name")),
    Bad("a fit of a time without a unit", ("validate", "--chip", "h100-sxm", "--fit", "execution.prologue=1:2"),
        ("--fit execution.prologue=1:2", "'1' has no unit", "write it like '1.3 us'$")),
    Bad("bound of a wrong chip", ("bound", "--chip", "h300", *MODEL), ("unknown chip or system 'h300'",)),
    Bad("compile with tp 5", ("compile", "--chip", "h100-sxm", *MODEL, "--tp", "5"), ("tp 5", "change --tp")),
    Bad("compare with one wrong chip", ("compare", "h100-sxm", "h300", *MODEL), ("unknown chip or system 'h300'",)),
    Bad("explain of no such word", ("run", "--explain", "bandwith"), ("did you mean 'bandwidth'",)),
)  # fmt: skip

CHIPS = (
    Bad("wrong unit", TINY, (r"tiny.yaml:36: tiers\[1\].bandwidth", "unknown unit 'GX/s'", "expected"),
        chip("100 GB/s", "100 GX/s")),
    Bad("wrong dimension", TINY, (r"tiers\[1\].bandwidth", "another dimension"), chip("100 GB/s", "100 GB")),
    Bad("no unit", TINY, (r"tiers\[1\].capacity", "no unit"), chip("4 GiB", "4")),
    Bad("negative latency", TINY, (r"tiers\[1\].latency", "negative"), chip("latency: 300 ns", "latency: -300 ns")),
    Bad("NaN bandwidth", TINY, (r"tiers\[0\].bandwidth", "not a finite number"), chip("1 TB/s", "nan TB/s")),
    Bad("no cores", TINY, (r"tiny.yaml:\d+: cores", "zero"), chip("cores: 4", "cores: 0")),
    Bad("unknown key", TINY, (r"tiers\[1\].lane:", "did you mean 'lanes'"), chip("    lanes: 2", "    lane: 2")),
    Bad("DRAM that is not known", TINY, (r"tiers\[1\].dram.preset", "did you mean 'hbm3'"),
        chip("    lanes: 2", "    lanes: 2\n    dram: {preset: hbm9, channels: 4, assumed: x}")),
    Bad("DRAM of another bandwidth", TINY, (r"tiers\[1\].dram.channels", "8 channels of ddr4 move", "within 5%"),
        chip("    lanes: 2", "    lanes: 2\n    dram: {preset: ddr4, channels: 8, assumed: x}")),
    Bad("DRAM of no mapping", TINY, (r"tiers\[1\].dram.mapping",),
        chip("    lanes: 2", "    lanes: 2\n    dram: {preset: ddr4, channels: 4, mapping: RoRo, assumed: x}")),
    Bad("DRAM timing without DRAM", TINY, (r"tiers\[1\].timing", "there is no 'dram:'"),
        chip("    lanes: 2", "    lanes: 2\n    timing: dram")),
    Bad("DRAM asked of a chip without", (*TINY, "--timing", "dram"), ("no tier of this chip has 'dram:'",),
        {"tiny.yaml": GOOD}),
    Bad("missing tier", TINY, ("tiers", "weight"),
        chip("holds: [weight, kv, embedding, activation]", "holds: [kv, activation]")),
    Bad("no tiers", TINY, ("tiers",), {"tiny.yaml": re.sub(r"tiers:\n(.*\n)*node:", "tiers: []\nnode:", GOOD)}),
    Bad("source that is not listed", TINY, ("clock.source", "unknown source 'yours'"),
        chip("1 GHz, source: mine", "1 GHz, source: yours")),
    Bad("key twice", TINY, ("a second key 'cores'",), chip("cores: 4", "cores: 4\ncores: 5")),
    Bad("tab", TINY, ("tab",), chip("  count: 1\n  macs", "\tcount: 1\n  macs")),
    Bad("no YAML", TINY, ("tiny.yaml:",), {"tiny.yaml": "name: [unclosed\nstyle: kernels\n"}),
    Bad("two documents", TINY, ("second document",), {"tiny.yaml": GOOD + "---\n" + GOOD}),
    Bad("alias bomb", TINY, ("tiny.yaml:", "aliases or nesting"), {"tiny.yaml": ALIAS_BOMB}),
    Bad("deep nesting", TINY, ("tiny.yaml",), {"tiny.yaml": "a: " + "[" * 5000 + "]" * 5000}),
    Bad("binary", TINY, ("tiny.yaml:1", "binary"), {"tiny.yaml": b"\x7fELF\0\0\1\2" * 40}),
    Bad("not UTF-8", TINY, ("tiny.yaml:", "UTF-8"), {"tiny.yaml": "name: caf\xe9\n".encode("latin-1")}),
    Bad("too large a file", TINY, ("larger than 1,000,000 bytes",), {"tiny.yaml": "# filler\n" * 120_000}),
    Bad("empty file", TINY, ("tiny.yaml:1", "empty|nothing"), {"tiny.yaml": ""}),
    Bad("a list", TINY, ("tiny.yaml:1", "a list"), {"tiny.yaml": "- name: x\n"}),
    Bad("no such file", TINY, ("tiny.yaml:1", "no such file")),
    Bad("a folder for a chip", ("run", "--chip", "./there", *MODEL), ("is a directory", "give the file inside it"),
        {"there/x": ""}),
    Bad("two chips without a link", (*TINY, "--chips", "2"), ("2 chips of tiny, which has no link", "add 'link:'"),
        {"tiny.yaml": GOOD}),
    Bad("tp without a link", (*TINY, "--tp", "2"), ("which has no link",), {"tiny.yaml": GOOD}),
    Bad("link to nowhere", ("run", "--chip", "s.yaml", *MODEL), (r"s.yaml:3: count", "which has no link"),
        {"tiny.yaml": GOOD, "s.yaml": "system: pair\nchip: ./tiny.yaml\ncount: 2\n"}),
    Bad("system of no chip", ("run", "--chip", "s.yaml", *MODEL), (r"s.yaml:2: chip", "no such file"),
        {"s.yaml": "system: pair\nchip: ./tiny.yaml\ncount: 2\n"}),
    Bad("system of itself", ("run", "--chip", "s.yaml", *MODEL), ("this is a system file",),
        {"s.yaml": "system: pair\nchip: ./s.yaml\ncount: 2\n"}),
    Bad("system with an unknown topology", ("run", "--chip", "s.yaml", *MODEL), ("s.yaml:3: topology", "'ring'"),
        {"s.yaml": "system: pair\nchip: h100-sxm\ntopology: rings\n"}),
    Bad("alone and too small", ("run", "--chip", "tiny.yaml", "--model", "llama-3.1-8b"),
        ("does not fit on tiny", r"has 4\.0\d GiB", "weight"), {"tiny.yaml": GOOD}),
    Bad("no room for activations", TINY, ("does not fit on tiny", "activation"),
        {"tiny.yaml": re.sub("capacity: [84] [MG]iB", "capacity: 1 KiB", GOOD)}),
    Bad("days per token", ("run", "--chip", "tiny.yaml", "--model", "llama-3.1-70b"),
        ("int64 femtoseconds", "check the units"), {"tiny.yaml": SLOW}),
    Bad("a window smaller than a chunk", TINY, ("window", "bytes_in_flight|chunk"),
        chip("bytes_in_flight: 16 KiB", "bytes_in_flight: 1 KiB")),
)  # fmt: skip

CONFIGS = (
    Bad("broken JSON", CONFIG, (r"config.json:2", "broken JSON at column"), {"config.json": BROKEN}),
    Bad("empty config", CONFIG, ("config.json", "an empty file"), {"config.json": ""}),
    Bad("config of blanks", CONFIG, ("config.json", "an empty file"), {"config.json": " \n"}),
    Bad("config of nothing", CONFIG, ("none of hidden_size",), {"config.json": "{}"}),
    Bad("config as a list", CONFIG, ("a JSON list", "a JSON object"), {"config.json": "[1, 2]"}),
    Bad("config in binary", CONFIG, ("binary data", "not the weights"), {"config.json": b"\x80\0\1" * 9}),
    Bad("config with NaN", CONFIG, ("the number NaN",), {"config.json": '{"hidden_size": NaN}'}),
    Bad("config with a key twice", CONFIG, ("'a' twice",), {"config.json": '{"a": 1, "a": 2}'}),
    Bad("mixture of experts", CONFIG, (r"config.json:1: num_local_experts", "MoE"), config(num_local_experts=8)),
    Bad("mamba", CONFIG, ("Mamba",), config(model_type="mamba", architectures=None, state_size=16)),
    Bad("vision", CONFIG, ("a vision encoder",), config(vocab_size=None, image_size=224, patch_size=14)),
    Bad("encoder", CONFIG, ("an encoder",), config(model_type="bert", architectures=["BertModel"])),
    Bad("encoder and decoder", CONFIG, ("encoder-decoder",), config(model_type="t5", is_encoder_decoder=True)),
    Bad("latent attention", CONFIG, ("MLA",), config(kv_lora_rank=512)),
    Bad("unknown family", CONFIG, ("model_type", "'frog'", "a known model_type"),
        config(model_type="frog", architectures=None)),
    Bad("no family", CONFIG, ("model_type",), config(model_type=None, architectures=None)),
    Bad("no hidden size", CONFIG, ("no 'hidden_size'",), config(hidden_size=None)),
    Bad("negative layers", CONFIG, ("num_hidden_layers", "found -2"), config(num_hidden_layers=-2)),
    Bad("half a layer", CONFIG, ("num_hidden_layers", "found 1.5"), config(num_hidden_layers=1.5)),
    Bad("layers as text", CONFIG, ("num_hidden_layers", "found '2'"), config(num_hidden_layers="2")),
    Bad("heads that do not share", CONFIG, ("num_key_value_heads", "3 for 4"), config(num_key_value_heads=3)),
    Bad("another activation", CONFIG, ("hidden_act", "'mish'"), config(hidden_act="mish")),
    Bad("folder without a config", (*H100, "--model", "./there"), ("no config.json in it",), {"there/x": ""}),
    Bad("tokenizer file", CONFIG, ("tokenizer",), {"config.json": '{"tokenizer_class": "x"}'}),
    Bad("no such config", CONFIG, ("config.json", "no such file")),
    Bad("chip file as a model", (*H100, "--model", "./tiny.yaml"), ("tiny.yaml", "broken JSON"), {"tiny.yaml": GOOD}),
)  # fmt: skip

GRAPHS = (
    Bad("cycle", OWN, ("a cycle: ", "Cut one of its edges"), graph(cycle)),
    Bad("unknown op", OWN, (r"g.json:\d+", "'lineer'", "Did you mean 'linear'"), node("fc", op="lineer")),
    Bad("op without a name", OWN, ("op None",), node("fc", op=None)),
    Bad("shapes that disagree", OWN, (r"g.json:\d+", "'fc'", r"must be 64, not 65", "Correct a shape"),
        node("w", shape=[32, 65])),
    Bad("result of a wrong shape", OWN, ("'act'", r"\(1, 33\)"), node("z", shape=[1, 33])),
    Bad("size 0", OWN, ("shape", "positive whole numbers"), node("x", shape=[0, 64])),
    Bad("negative size", OWN, ("shape", "positive whole numbers"), node("x", shape=[-1, 64])),
    Bad("size with a point", OWN, ("shape", "positive whole numbers"), node("x", shape=[1.0, 64])),
    Bad("no shape", OWN, ("shape", "null"), node("x", shape=None)),
    Bad("unknown dtype", OWN, ("'bf17'", "Did you mean 'bf16'"), node("w", dtype="bf17")),
    Bad("unknown kind of tensor", OWN, ("'weights'", "Did you mean 'weight'"), node("w", tensor="weights")),
    Bad("node of no kind", OWN, ("kind", "'op' or 'tensor'"), node("w", kind=None)),
    Bad("role twice", OWN, ("both as input 'x'",), edge("z", "fc", "x")),
    Bad("unknown role", OWN, ("role 'wait'", "Did you mean 'weight'"), edge("z", "fc", "wait")),
    Bad("no weight", OWN, ("no input tensor with role 'weight'",), graph(lambda data: data["edges"].pop(1))),
    Bad("edge to nowhere", OWN, (r"edges\[5\]: target", "'nobody'"), edge("x", "nobody", "x")),
    Bad("two results in one role", OWN, ("'y' and 'z' both as output 'out'",), edge("fc", "z", "out")),
    Bad("two producers", OWN, ("tensor 'z'", "2 producers"), graph(second_producer)),
    Bad("edge between ops", OWN, ("an edge between two op nodes",), edge("fc", "act", "x")),
    Bad("node twice", OWN, ("a second time", "Rename"), graph(lambda data: data["nodes"].append(data["nodes"][0]))),
    Bad("node without a name", OWN, ("nodes\\[6\\]",), graph(lambda data: data["nodes"].append({"kind": "op"}))),
    Bad("alone", OWN, ("no op at either end",),
        graph(lambda data: data["nodes"].append({**data["nodes"][0], "id": "lost"}))),
    Bad("no nodes", OWN, ("no nodes",), graph(lambda data: data.update(nodes=[], edges=[]))),
    Bad("nodes as a number", OWN, ("nodes", "a list of objects"), graph(lambda data: data.update(nodes=3))),
    Bad("tensors only", OWN, ("tensors only",), graph(lambda data: data.update(nodes=data["nodes"][:4], edges=[]))),
    Bad("no edges", OWN, ("no 'edges'",), graph(lambda data: data.pop("edges"))),
    Bad("undirected", OWN, ("directed", "Export a DiGraph"), graph(lambda data: data.update(directed=False))),
    Bad("other schema", OWN, ("schema", "stallscope-graph/1"), graph(lambda data: data["graph"].update(schema="onnx"))),
    Bad("no batch", OWN, ("no graph attribute 'batch'",), graph(lambda data: data["graph"].pop("batch"))),
    Bad("batch of 0 in a graph", OWN, ("batch", "found 0"), graph(lambda data: data["graph"].update(batch=0))),
    Bad("context of -1 in a graph", OWN, ("context", "found -1"), graph(lambda data: data["graph"].update(context=-1))),
    Bad("a phase to come", OWN, ("phase", "'training'"), graph(lambda data: data["graph"].update(phase="training"))),
    Bad("exabytes", OWN, ("bytes of tensors", "less than"), graph(square(2**39))),
    Bad("too large a product", OWN, ("does not fit on h100-sxm", "weight"), graph(square(2**20))),
    Bad("model file as a graph", OWN, ("config.json: give it to --model",), {"g.json": json.dumps(GOOD_CONFIG)}),
    Bad("broken graph", OWN, (r"g.json:1", "broken JSON"), {"g.json": '{"nodes": ['}),
    Bad("no such graph", OWN, ("g.json", "no such file")),
    Bad("folder as a graph", (*H100, "--graph", "."), ("a directory",)),
)  # fmt: skip

TABLES = (
    Bad("no such table", (*VALIDATE, "t.csv"), ("t.csv: cannot be read: No such file", "check the path")),
    Bad("folder as a table", (*VALIDATE, "."), ("cannot be read: Is a directory",)),
    Bad("empty table", (*VALIDATE, "t.csv"), (r"t.csv:1: found no header",), {"t.csv": ""}),
    Bad("table of other columns", (*VALIDATE, "t.csv"), ("t.csv:1: found columns a, b", "gemm: dtype"),
        {"t.csv": "a,b\n1,2\n"}),
    Bad("table without rows", (*VALIDATE, "t.csv"), ("found no rows", "add them"), {"t.csv": PRODUCTS}),
    Bad("table with a short row", (*VALIDATE, "t.csv"), ("t.csv:2: found 3 fields; expected 6",),
        {"t.csv": PRODUCTS + "h100-sxm,bfloat16,1\n"}),
    Bad("table with a time below zero", (*VALIDATE, "t.csv"), ("t.csv:2: latency_ms: found -3",),
        {"t.csv": PRODUCTS + "h100-sxm,bfloat16,1,2,3,-3\n"}),
    Bad("table of other chips", (*VALIDATE, "t.csv"), ("no row to compare", "1 for chip mine"),
        {"t.csv": PRODUCTS + "mine,bfloat16,1,2,3,4\n"}),
)  # fmt: skip

CHECKS = (
    Bad("check of nonsense", ("check", "x.json"), ("neither a model's config.json", "'apples'"),
        {"x.json": '{"apples": 3}'}),
    Bad("check of text", ("check", "x.txt"), (r"x.txt:1", "expected"), {"x.txt": "to be or not to be\n"}),
    Bad("check of binary", ("check", "x.bin"), (r"x.bin:1", "binary"), {"x.bin": b"\0\1\2\3"}),
    Bad("check of an empty file", ("check", "x.yaml"), (r"x.yaml:1",), {"x.yaml": ""}),
    Bad("check of nothing there", ("check", "x.yaml"), ("no such file",)),
    Bad("check of a folder", ("check", "."), ("config.json",)),
    Bad("check of a chip with a slip", ("check", "tiny.yaml"), ("did you mean 'cores'",), chip("cores: 4", "coers: 4")),
    Bad("check of a DRAM preset with a slip", ("check", "d.yaml"), (r"d.yaml:2: standrad: unknown key", "'standard'"),
        {"d.yaml": "name: mine\nstandrad: HBM3\nrate_mbps: 6400\n"}),
    Bad("check of a cycle", ("check", "g.json"), ("'lineer'",), node("fc", op="lineer")),
)  # fmt: skip

ALL = (*USAGE, *OPTIONS, *CHIPS, *CONFIGS, *GRAPHS, *TABLES, *CHECKS)


def lay_out(folder: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(result: Result, bad: Bad) -> None:
    """Exit code 2, nothing on stdout, one message on stderr that says all that it must."""
    assert result.exit_code == 2, result
    assert result.stdout == ""
    said = "".join(line for line in result.stderr.splitlines(keepends=True) if not line.startswith("warning: "))
    assert len(re.findall(r"^(?:error: |Error: )", said, re.MULTILINE)) == 1, said
    assert said.startswith(("Usage: ", "Error: ") if bad in USAGE else "error: ")
    for pattern in bad.says:
        assert re.search(pattern, said), f"{pattern!r} is not in: {said}"
    assert not re.search(r"Traceback|File \"|\.py\"?[:,]|Error\(|<class|0x[0-9a-f]{6}", said), said
    assert len(said) < 1200, "a message is read by people"


def test_there_are_fifty_and_their_names_differ() -> None:
    assert len(ALL) >= 50
    assert len({bad.name for bad in ALL}) == len(ALL)


@pytest.mark.parametrize("bad", ALL, ids=[bad.name for bad in ALL])
def test_bad_input(bad: Bad, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out(tmp_path, bad.files)
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    refused(invoke(*bad.words), bad)
    assert contents(tmp_path) == before, "something was written"


IN_A_PROCESS = ("batch as a word", "W3A16", "too large for one chip", "alias bomb", "binary", "days per token", "cycle")


@pytest.mark.parametrize("bad", [b for b in ALL if b.name in IN_A_PROCESS], ids=lambda bad: bad.name)
def test_bad_input_in_a_process_of_its_own(bad: Bad, tmp_path: Path) -> None:
    lay_out(tmp_path, bad.files)
    found = process(*bad.words, cwd=tmp_path, env={**os.environ, "NO_COLOR": "1"})
    refused(Result(found.returncode, found.stdout, found.stderr), bad)


@pytest.mark.parametrize(
    "files", [chip("cores: 4", "cores: 4"), config(), graph(lambda data: None)], ids=lambda f: next(iter(f))
)
def test_the_files_are_good_before_they_are_broken(
    files: dict[str, str | bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(tmp_path, files)
    monkeypatch.chdir(tmp_path)
    assert invoke("check", next(iter(files))).exit_code == 0


def test_a_comparison_in_which_no_chip_can_says_why_in_each_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("compare", "h100-sxm", "h200-sxm", "--model", "llama-3.1-70b", "--chips", "1", "--batch", "200")
    assert (result.exit_code, result.stderr) == (2, "error: none of these chips can do it; each column says why\n")
    assert "does not fit on" in " ".join(result.stdout.split())
    assert contents(tmp_path) == {}


def test_an_old_result_survives_a_run_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.json").write_text("precious")
    monkeypatch.chdir(tmp_path)
    assert invoke(*RUN, "--tp", "3", "--json", "run.json").exit_code == 2
    assert contents(tmp_path) == {str(tmp_path / "run.json"): b"precious"}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_chip_from_a_pipe_is_refused_as_what_it_is(tmp_path: Path) -> None:
    """Files are read twice, and a pipe would wait for ever for its second writer."""
    os.mkfifo(tmp_path / "tiny.yaml")
    result = invoke("run", "--chip", str(tmp_path / "tiny.yaml"), *MODEL)
    assert result.exit_code == 2
    assert "is a pipe or a device; expected a YAML file" in result.stderr
