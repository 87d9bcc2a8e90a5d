"""docs/validation.md is what its generator writes: the words of the template, and tables with the same columns."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import pytest
from doc_blocks import ROOT

from stallscope import load_chip
from stallscope.arch import chip_names
from stallscope.compiler.pipeline import compile_graph
from stallscope.options import Split, Workload
from stallscope.validation.command import Sensitivity
from stallscope.validation.sensitivity import Moved

sys.path.insert(0, str(ROOT / "benchmarks"))
import page
import validate

PAGE = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")
WORDS = page.FIELD.split(page.TEMPLATE.read_text(encoding="utf-8"))[::2]
PUBLISHED = "chip,model,context,tokens_per_s_per_user,source_url,note\nsn40l,llama-3.2-1b,64,1000,https://a.b,none\n"


def skeleton(text: str) -> list[str]:
    """Headings and heads of tables, without the numbers in them."""
    lines = re.findall(r"^#.*$|^\|.*\|(?=\n\| ?---)", text, re.MULTILINE)
    return [re.sub(r"[\d.,]+", "N", line) for line in lines]


def test_the_page_has_the_words_of_the_template() -> None:
    at = 0
    for words in WORDS:
        assert (at := PAGE.find(words, at)) >= 0, f"python benchmarks/validate.py --page docs/validation.md: {words!r}"


def test_the_page_shows_the_assumed_numbers_of_every_chip() -> None:
    assert re.findall(r"^### ([\w-]+): \d+ assumed", PAGE, re.MULTILINE) == chip_names()


def test_a_small_run_writes_a_page_of_the_same_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def moved(*_: object) -> Sensitivity:
        numbers = [Moved(f"number{i}", "1 ns", "chosen", -0.1 / (i + 1), None if i else 0.2) for i in range(12)]
        return Sensitivity("sn40l", 1.0, numbers)

    monkeypatch.setattr(page, "run_sensitivity", moved)
    monkeypatch.setattr(page, "STEP", ("h100-sxm", "llama-3.2-1b", 2, "fp8", 1, 64))
    monkeypatch.setattr(page, "PUBLISHED", tmp_path / "published.csv")
    page.PUBLISHED.write_text(PUBLISHED, encoding="utf-8")
    asked = argparse.Namespace(page=tmp_path / "page.md", tables=None, sample=1, chip=chip_names())
    rows = [{"name": "one", "kind": "is", "ours": 11, "theirs": 10}]
    peers = [
        *(validate._dram_table(name, "", rows) for name in ("ramulator", "dramsim3")),
        validate.Table("systolic", "", ("dataflow", "rows", "equal", "worst difference"), [("is", 1, 0, "10 %")], rows),
    ]
    assert validate.write_page(asked, peers) == 0
    text = asked.page.read_text(encoding="utf-8")
    assert not page.FIELD.search(text)
    assert "| `number0` | 1 ns | -10.00 % | +20.00 % |" in text
    assert "2 more: 0.91 % at most." in text
    named = [re.sub(r"### [\w-]+:", "### CHIP:", line) for line in skeleton(text)]
    assert named == [re.sub(r"### [\w-]+:", "### CHIP:", line) for line in skeleton(PAGE)]
    assert "10.0 % on average, 10.0 % at worst" in text


def test_every_cause_of_the_step_belongs_to_a_mechanism() -> None:
    causes = compile_graph(Workload(model="llama-3.2-1b").load(), Split().system(page.STEP[0])).causes
    assert {page._mechanism(cause) for cause in causes} == set(page.MECHANISMS)


def test_the_numbers_behind_a_mechanism_stand_in_the_chip_file() -> None:
    known = {path for path, _ in load_chip(page.STEP[0]).facts()}
    for _, keys in page.MECHANISMS.values():
        for key in keys:
            pattern = re.escape(key).replace(r"\*", r"[\w.]+")
            assert any(re.fullmatch(pattern, path) for path in known), key
