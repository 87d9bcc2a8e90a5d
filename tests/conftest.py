"""Shared by all tests: the `--update-golden` switch, and config files to read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stallscope.workloads import Model, load_model

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/ anew instead of comparing")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with tests/golden/NAME, or write that file when asked to."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        wanted = path.read_text(encoding="utf-8") if path.exists() else ""
        assert text == wanted, f"{path.name} differs; if the new text is right: pytest --update-golden, and review it"

    return compare


@pytest.fixture
def config(tmp_path: Path) -> Callable[[Any], Model]:
    """Write a config.json in a folder called `mine` and read it."""
    path = tmp_path / "mine" / "config.json"
    path.parent.mkdir()

    def load(data: Any) -> Model:
        path.write_text(data if isinstance(data, str) else json.dumps(data, indent=2), encoding="utf-8")
        return load_model(path)

    return load
