"""The commands: what they print where, their exit codes, and what they do not load."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from fake_run import make_info, make_program, make_run

from stallscope import cli
from stallscope.errors import StallscopeError
from stallscope.options import dtype_word

RUN = ("run", "--chip", "h100-sxm", "--model", "llama-3.1-8b")
COMPARE = ("compare", "h100-sxm", "sn40l", "--model", "llama-3.1-8b", "--context", "2048")


@dataclass(frozen=True)
class Result:
    exit_code: int
    stdout: str
    stderr: str


def invoke(*words: str) -> Result:
    """The command in this process, as `main` would leave it. Unexpected exceptions come through."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["stallscope", *words]),
        pytest.raises(SystemExit) as left,
    ):
        cli.main()
    code = left.value.code
    assert code is None or isinstance(code, int)
    return Result(code or 0, out.getvalue(), err.getvalue())


def process(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "stallscope", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, **options)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The simulation is replaced by a made-up run; what was asked for is kept."""
    asked: list[Any] = []

    def simulate(graph: Any, system: Any, no_skip: bool, warm: int = 0) -> Any:
        asked.append((graph, system, no_skip))
        if system.chip.name == "sn40l":
            raise StallscopeError("ddr of sn40l is too small")
        return make_run(make_info(chip=system.chip.name))

    monkeypatch.setattr(cli, "_simulate", simulate)
    return asked


def one_error(result: Result, pattern: str) -> None:
    """Exit code 2, one message on stderr, nothing on stdout."""
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert re.search(pattern, result.stderr), result.stderr


def test_run_prints_the_report(fake: list[Any]) -> None:
    result = invoke(*RUN, "--batch", "4", "--context", "99", "--dtype", "fp8", "--tp", "2", "--no-skip")
    assert result.exit_code == 0
    assert result.stdout.startswith("llama-3.1-8b on h100-sxm")
    ((graph, system, no_skip),) = fake
    assert (graph.graph["batch"], graph.graph["context"]) == (4, 99)
    assert graph.graph["dtypes"] == {"weight": "fp8", "kv": "bf16", "activation": "bf16"}
    assert (system.tp, no_skip) == (2, True)


def test_json_to_stdout_is_all_there_is(fake: list[Any]) -> None:
    result = invoke(*RUN, "--json", "-")
    assert json.loads(result.stdout)["chip"] == "h100-sxm"
    assert result.stderr == ""


def test_json_to_a_file_comes_with_the_table(fake: list[Any], tmp_path: Path) -> None:
    result = invoke(*RUN, "--json", str(tmp_path / "run.json"))
    assert result.stdout.startswith("llama-3.1-8b on")
    assert json.loads((tmp_path / "run.json").read_text())["schema"] == "stallscope-run/1"


def test_a_bad_json_target_is_refused_before_the_run(fake: list[Any], tmp_path: Path) -> None:
    one_error(invoke(*RUN, "--json", str(tmp_path / "no" / "run.json")), "there is no folder")
    one_error(invoke(*RUN, "--json", str(tmp_path)), "this is a folder")
    assert fake == []


def test_compare_keeps_the_chips_that_can(fake: list[Any]) -> None:
    result = invoke(*COMPARE)
    assert result.exit_code == 0
    assert "ddr of sn40l is too small" in result.stdout
    assert "5.612 ms" in result.stdout
    assert [row.get("error") for row in json.loads(invoke(*COMPARE, "--json", "-").stdout)] == [
        None,
        "ddr of sn40l is too small",
    ]


def test_compare_fails_when_no_chip_can(fake: list[Any]) -> None:
    result = invoke("compare", "sn40l", "--model", "llama-3.1-8b")
    assert result.exit_code == 2
    assert "ddr of sn40l is too small" in result.stdout
    assert result.stderr == "error: none of these chips can do it; each column says why\n"


BAD: tuple[tuple[tuple[str, ...], str], ...] = (
    (("run", "--chip", "h100-sxm"), "nothing to run: give --model"),
    (("run", "--chip", "h100-sx", "--model", "llama-3.1-8b"), "did you mean 'h100-sxm'"),
    (("run", "--chip", "h100-sxm", "--model", "llama-3.1-8c"), "llama-3.1-8b"),
    ((*RUN, "--context", "0"), "context"),
    ((*RUN, "--batch", "-3"), "batch"),
    ((*RUN, "--dtype", "fp9"), "fp8"),
    ((*RUN, "--dtype", "W5A16"), "W4A16"),
    ((*RUN, "--kv", "float8"), "kv"),
    ((*RUN, "--tp", "0"), "tp"),
    ((*RUN, "--chips", "2", "--tp", "4"), "tp 4"),
    ((*RUN, "--graph", "g.json"), "leave out --model"),
    (("run", "--chip", "h100-sxm", "--graph", "no.json", "--batch", "2"), "leave out --batch"),
    (("run", "--chip", "h100-sxm", "--graph", "no.json"), "no.json"),
    (("run", "--chip", ".", "--model", "llama-3.1-8b"), "found|expected|unknown"),
    (("compare", "h100-sxm", "h200", "--model", "llama-3.1-8b"), "h200"),
    (("check", "no/such/file.yaml"), "no such file"),
    (("check", "bad\0name"), r"bad\\x00name: no such file"),
    (("run", "--explain", "bandwith"), "did you mean 'bandwidth'"),
)


@pytest.mark.parametrize(("words", "pattern"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_input_is_one_message(fake: list[Any], words: tuple[str, ...], pattern: str) -> None:
    one_error(invoke(*words), pattern)
    assert fake == []


@pytest.mark.parametrize(
    "words", [("run",), ("compare",), ("schema", "cat"), ("nonsense",), (*RUN, "--batch", "two"), (*RUN, "--nonsense")]
)
def test_wrong_usage_is_exit_code_2(words: tuple[str, ...]) -> None:
    result = invoke(*words)
    assert result.exit_code == 2
    assert "Usage:" in result.stderr
    assert result.stdout == ""


def test_unexpected_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(cli, "_simulate", broken)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        invoke(*RUN)


def test_ctrl_c_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_simulate", interrupted)
    result = invoke(*RUN)
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "")


def test_explain_needs_no_other_option() -> None:
    assert "critical path" in invoke("run", "--explain").stdout
    assert invoke("compare", "--explain", "bandwidth").stdout.startswith("bandwidth: ")
    assert invoke("--explain", "kv").exit_code == 0
    assert invoke("run", "--explain", "--chip", "x").exit_code == 0


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("fp8", {"weight": "fp8"}),
        ("fp16", {"weight": "fp16", "kv": "fp16", "activation": "fp16"}),
        ("W4A16", {"weight": "int4", "activation": "bf16"}),
        ("w8a8kv8", {"weight": "int8", "activation": "int8", "kv": "int8"}),
    ],
)
def test_dtype_words(word: str, wanted: dict[str, str]) -> None:
    assert dtype_word(word) == wanted


def test_compile_prints_a_summary_or_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    program = make_program(make_info())
    pipeline = SimpleNamespace(compile_graph=lambda graph, system: program)
    monkeypatch.setitem(sys.modules, "stallscope.compiler.pipeline", pipeline)
    words = ("compile", "--chip", "h100-sxm", "--model", "llama-3.1-8b")
    assert invoke(*words).stdout.startswith("llama-3.1-8b compiled for h100-sxm")
    assert invoke(*words, "--print").stdout == program.text()


def test_listings_name_what_is_shipped() -> None:
    assert "h100-sxm" in invoke("chips").stdout
    assert "llama-3.1-8b" in invoke("models").stdout
    for listing in ("chips", "models"):
        assert max(map(len, invoke(listing).stdout.splitlines())) <= 100


def test_models_by_name_and_file_with_all_their_numbers(tmp_path: Path) -> None:
    rows = json.loads(invoke("models", "--json", "-").stdout)
    assert len(rows) >= 60
    assert {"parameters", "active_parameters", "kv_bytes_per_token", "source"} <= set(rows[0])
    sizes = {"hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 12}
    (tmp_path / "mine.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 10, "frog_size": 1} | sizes))
    shown = invoke("models", "mixtral-8x7b", str(tmp_path / "mine.json"))
    assert re.search(r"mixtral-8x7b +46,702,792,704 +12,879,925,248 +131,072", shown.stdout)
    assert "mine: Keys that look like sizes and were not understood, so left aside: frog_size." in shown.stdout
    one_error(invoke("models", "mixtral-8x7"), "Did you mean 'mixtral-8x7b'")
    said = invoke("check", str(tmp_path / "mine.json")).stdout
    assert "1,848 parameters, 96 bytes of KV cache per token in bf16; fine" in said
    (tmp_path / "adapter.json").write_text('{"peft_type": "LORA", "r": 8}')
    one_error(invoke("check", str(tmp_path / "adapter.json")), "an adapter")


def test_check_says_what_a_file_is(tmp_path: Path) -> None:
    from stallscope import Request, decode_graph, load_model
    from stallscope.arch.load import CHIPS
    from stallscope.workloads.graphfile import save_graph

    assert ": a chip, h100-sxm" in invoke("check", str(CHIPS / "h100-sxm.yaml")).stdout
    save_graph(decode_graph(load_model("llama-3.2-1b"), Request()), tmp_path / "g.json")
    assert ": a graph, " in invoke("check", str(tmp_path / "g.json")).stdout
    (tmp_path / "s.yaml").write_text("system: pair\nchip: h100-sxm\ncount: 2\ntp: 2\n")
    assert ": a system of 2 x h100-sxm" in invoke("check", str(tmp_path / "s.yaml")).stdout
    (tmp_path / "odd.json").write_text('{"apples": 3}')
    one_error(invoke("check", str(tmp_path / "odd.json")), "its keys: 'apples'")
    (tmp_path / "empty").mkdir()
    one_error(invoke("check", str(tmp_path / "empty")), "config.json")


@pytest.mark.parametrize("what", ["chip", "system", "graph", "run"])
def test_schemas_are_json(what: str) -> None:
    schema = json.loads(invoke("schema", what).stdout)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert schema["type"] == "object"


def test_version() -> None:
    assert re.fullmatch(r"stallscope \d+\.\d+\.\d+\S*\n", invoke("--version").stdout)


def test_help_loads_nothing_heavy() -> None:
    heavy = "{'numba', 'numpy', 'pint', 'networkx', 'pydantic', 'ruamel.yaml'}"
    code = (
        "import sys\nsys.argv = ['stallscope', '--help']\nfrom stallscope.cli import main\n"
        f"try:\n    main()\nfinally:\n    print(*sorted({heavy} & set(sys.modules)), file=sys.stderr)"
    )
    found = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert "compare" in found.stdout
    assert found.stderr.split() == []


@pytest.mark.parametrize(
    ("option", "value", "lacks"),
    [("routing", "power:1.0", "experts"), ("expert", "fp8", "experts"), ("latent", "plain", "latent attention")],
)
def test_what_is_asked_of_parts_that_a_model_lacks_is_said(option: str, value: str, lacks: str) -> None:
    dense = invoke("bound", "--chip", "h100-sxm", "--model", "llama-3.2-1b", f"--{option}", value)
    assert dense.stderr == f"warning: {option} {value} has no effect: llama-3.2-1b has no {lacks}.\n"
    plain = invoke("bound", "--chip", "h100-sxm", "--model", "llama-3.2-1b")
    assert (dense.exit_code, plain.stderr) == (0, "")
    assert dense.stdout.partition("\n\n")[2] == plain.stdout.partition("\n\n")[2], "all but the formats in its title"
    assert invoke("bound", "--chip", "h100-sxm", "--model", "deepseek-v2-lite", f"--{option}", value).stderr == ""


def test_a_bound_says_of_what_and_a_capacity_of_what() -> None:
    text = invoke("bound", "--chip", "dgx-h100", "--model", "llama-3.2-1b", "--batch", "2").stdout
    assert text.startswith("Bound of one step of llama-3.2-1b on dgx-h100: decode, batch 2, context 1,024, all bf16\n")
    assert re.search(r"hbm of a chip +85.90 GB", text)


def test_a_dram_preset_is_checked_as_one() -> None:
    path = Path(cli.__file__).parents[1] / "arch" / "dram" / "hbm3_6400_8hi.yaml"
    if not path.is_file():
        path = Path(cli.__file__).parent / "arch" / "dram" / path.name
    assert invoke("check", str(path)).stdout == f"{path}: a DRAM preset, hbm3_6400_8hi (HBM3, 6,400 Mb/s); fine\n"


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -P -m stallscope schema graph | head -c 10"
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_message() -> None:
    with open("/dev/full", "w") as full:
        found = subprocess.run(
            [sys.executable, "-P", "-m", "stallscope", "schema", "run"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (found.returncode, "stdout cannot be written" in found.stderr) == (2, True)
    assert "Traceback" not in found.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="closes streams with a shell")
def test_a_closed_stdout_is_one_message_and_a_closed_stderr_puts_nothing_among_results() -> None:
    command = f"{sys.executable} -P -m stallscope schema run >&-"
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr.startswith("error: stdout is closed")) == (2, True), found.stderr
    command = f"{sys.executable} -P -m stallscope run --chip nobody 2>&-"
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (2, "")


def test_a_terminal_of_few_letters_still_gets_the_report() -> None:
    found = process("models", env={"PYTHONIOENCODING": "ascii", "PATH": ""})
    assert found.returncode == 0, found.stderr
