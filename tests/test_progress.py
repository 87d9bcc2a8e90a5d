"""The line that says how far a run has come, and Ctrl-C in a run on several cores."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_cli import invoke

from stallscope.progress import shown
from stallscope.validation.parallel import answers

TABLE = "gpu,dtype,m,n,k,latency_ms\nh100-sxm,bfloat16,1,64,64,0.003\nh100-sxm,bfloat16,2,64,64,0.003\n"
VALIDATE = ("validate", "--table", "t.csv", "--chip", "h100-sxm")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and what a terminal behind stderr was sent."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(contextlib, "redirect_stderr", lambda _: contextlib.nullcontext())
        patch.setattr(sys, "stderr", terminal)
        result = invoke(*words)
    return result.exit_code, result.stdout, terminal.getvalue()


def test_rows_done_and_in_all_stand_on_a_terminal_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.csv").write_text(TABLE)
    monkeypatch.chdir(tmp_path)
    code, out, err = on_a_terminal(monkeypatch, *VALIDATE)
    assert code == 0
    assert "rows predicted 0/2" in err
    assert "rows predicted 2/2" in err
    assert err.endswith("\x1b[1A\x1b[2K"), "the line is erased"
    assert invoke(*VALIDATE) == type(invoke("chips"))(0, out, ""), "elsewhere: the same on stdout, and nothing else"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("run", "--chip", "h100-sxm", "--model", "llama-3.2-1b"), "simulating llama-3.2-1b on h100-sxm"),
        (("run", "--chip", "h100-sxm", "--model", "llama-3.2-1b", "--steps", "2"), "steps simulated 0/2"),
        (("compare", "h100-sxm", "h200-sxm", "--model", "llama-3.2-1b"), "chips simulated 0/2"),
        (("memory", "--dram", "hbm3", "--requests", "1000"), "simulating 1,000 bursts on one channel of hbm3"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_simulates_says_so_on_a_terminal(
    words: tuple[str, ...], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = on_a_terminal(monkeypatch, *words)
    assert (code, line in err) == (0, True)
    again = invoke(*words)
    assert (again.stdout, again.stderr) == (out, "")


def test_an_error_stands_alone_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = on_a_terminal(
        monkeypatch, "run", "--chip", "h100-sxm", "--model", "llama-3.1-405b", "--chips", "1"
    )
    assert (code, out) == (2, "")
    assert err.rpartition("\x1b[2K")[2].startswith("error: llama-3.1-405b does not fit")


def test_no_stderr_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with shown("nothing", 2) as done:
        done()


def test_the_answers_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("stallscope.validation.parallel._cores", lambda: 2)
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        assert answers(abs, range(-40, 0), "numbers") == list(range(40, 0, -1))
    assert "numbers 40/40" in " ".join(terminal.getvalue().split())


INTERRUPTED = """
import os, signal, time
from stallscope.validation import parallel

def ask(n):
    if n == 1:
        os.kill(os.getppid(), signal.SIGINT)
    time.sleep(60 if n else 0)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in what it runs behind `&`
    parallel._cores = lambda: 2
    try:
        parallel.answers(ask, range(100), "rows")
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of a POSIX terminal")
def test_ctrl_c_waits_for_no_process(tmp_path: Path) -> None:
    """What the other processes have begun would take minutes; nothing but the answer to Ctrl-C is printed."""
    (tmp_path / "interrupted.py").write_text(INTERRUPTED)
    begun = time.monotonic()
    command = [sys.executable, str(tmp_path / "interrupted.py")]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert (found.returncode, found.stdout, found.stderr) == (0, "interrupted\n", "")
    assert time.monotonic() - begun < 45
