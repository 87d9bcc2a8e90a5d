"""README.md and docs/ say what is so: outputs as printed, links that lead somewhere, names and fields that exist."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest
from doc_blocks import PAGES, ROOT, Block, blocks, shown, write_files
from typer.main import get_command

import stallscope
from stallscope import cli
from stallscope.compiler import program, verify

README = (ROOT / "README.md").read_text(encoding="utf-8")
TEXTS = (*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md")
OUTPUTS = [(page, block) for page in PAGES for block in blocks(page) if block.role == "output"]


def page_id(value: object) -> str:
    return value.name if isinstance(value, Path) else value.said if isinstance(value, Block) else str(value)


@pytest.mark.parametrize(("page", "block"), OUTPUTS, ids=page_id)
def test_outputs_are_as_printed(
    page: Path, block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    text = shown(block.said)
    if request.config.getoption("--update-golden"):
        now = next(b for b in blocks(page) if b.role == "output" and b.said == block.said)
        whole = page.read_text(encoding="utf-8")
        page.write_text(whole[: now.begin] + text + whole[now.end :], encoding="utf-8")
        return
    assert text == block.text, f"{page.name}: if the new output is right: pytest --update-golden, and review it"


def test_the_example_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = [b for b in blocks(ROOT / "README.md") if b.language == "python"]
    exec(compile(example.text, "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("llama-3.1-8b on h100-sxm: decode")


def test_the_two_commands_stand_where_ci_looks_for_them() -> None:
    commands = re.findall(r"^pip install .*$", README, re.MULTILINE)
    assert commands == [
        "pip install . && stallscope compare h100-sxm groq-lpu-v1 sn40l --model llama-3.1-8b --context 2048",
        "pip install '.[test]' && pytest",
    ]


@pytest.mark.parametrize("page", TEXTS, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", TEXTS, ids=page_id)
def test_files_that_are_named_exist(page: Path) -> None:
    named = re.findall(
        r"`((?:arch|workloads|compiler|sim|stallscope|tests|docs|benchmarks)/[\w./*-]+)`", page.read_text()
    )
    assert [name for name in named if not list(ROOT.glob(name.rstrip("/")))] == []


@pytest.mark.parametrize("page", TEXTS, ids=page_id)
def test_commands_and_options_that_are_named_exist(page: Path) -> None:
    commands = get_command(cli.app).commands  # type: ignore[attr-defined]
    options = {o for c in commands.values() for p in c.params for o in p.opts} | {
        "--help",
        "--version",
        "--update-golden",
    }
    text = page.read_text(encoding="utf-8")
    calls = re.findall(r"(?:`|^ {4}|&& |: )stallscope ([a-z]+)\b(.*?)(?:`|$)", text, re.MULTILINE)
    assert [name for name, _ in calls if name not in commands] == []
    said = {o for _, rest in calls for o in re.findall(r"(--[a-z][a-z-]*)", rest)}
    assert sorted(said - options) == []


def test_ir_page_names_every_field_and_law() -> None:
    text = (ROOT / "docs" / "ir.md").read_text(encoding="utf-8")
    tables = (program.TileProgram, program.Engines, program.Stations, program.Routes, program.Body, program.Segment)
    names = {f.name for t in (*tables, program.OpInfo, program.Info, program.Bound) for f in dataclasses.fields(t)}
    names |= {name for name, _ in verify.LAWS}
    names |= {e.name.lower() for e in (*program.Opcode, *program.Form)} | {e.name for e in program.Dep}
    assert sorted(n for n in names if not re.search(rf"\b{re.escape(n)}\b", text)) == []


def test_extending_page_names_the_public_names() -> None:
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `(\w+)", text, re.MULTILINE)
    assert sorted(name for name in table if name in stallscope.__all__) == sorted(stallscope.__all__)
    assert len(stallscope.__all__) == 13


def test_licence_and_changelog_agree_with_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert project["license"] == "Apache-2.0"
    assert licence.lstrip().startswith("Apache License")
    assert "END OF TERMS AND CONDITIONS" in licence
    assert f"## {project['version']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
