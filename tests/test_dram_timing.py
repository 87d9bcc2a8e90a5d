"""Whole runs on DRAM lanes: the laws hold, buses add up, and the two timings differ for reasons that are said."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest
from laws import check_run

from stallscope.arch import load_chip, load_system
from stallscope.compiler.pipeline import compile_graph
from stallscope.compiler.program import LOST, TileProgram
from stallscope.errors import StallscopeError
from stallscope.report.dram import dram_json
from stallscope.report.tables import stall_table
from stallscope.sim.layout import ProgramError, lay_out
from stallscope.sim.run import Run, simulate
from stallscope.workloads import Request, decode_graph
from stallscope.workloads.layers import Attention, Layer, Mlp
from stallscope.workloads.model import Model

CHIPS = ("h100-sxm", "h200-sxm", "b200-sxm", "sn40l")
SMALL = Model("small", 1024, 16000, (Layer(Attention(8, 4, 128), Mlp(4096)),) * 3)
"""Three layers with matrices of up to 8 MB, and a head of 32 MB."""


@cache
def program(chip: str, timing: str) -> TileProgram:
    system = load_system(chip, tp=1, pp=1).with_timing(timing)  # type: ignore[arg-type]
    return compile_graph(decode_graph(SMALL, Request(context=512)), system)


@cache
def run(chip: str, timing: str) -> Run:
    return simulate(program(chip, timing))


@pytest.mark.parametrize("chip", CHIPS)
def test_the_laws_hold_on_dram_lanes(chip: str) -> None:
    check_run(run(chip, "dram"))


@pytest.mark.parametrize("chip", CHIPS)
def test_every_femtosecond_of_every_data_bus_has_one_part(chip: str) -> None:
    result = run(chip, "dram")
    (account,) = result.drams.values()
    tier = load_chip(chip).tier("hbm")
    assert tier.dram is not None
    assert account.buses == tier.dram.controllers * tier.dram.device.together
    parts = [account.data_fs, *account.lost_fs.values(), account.too_few_fs, account.unasked_fs]
    assert min(parts) >= 0
    assert sum(parts) == result.time_fs * account.buses


@pytest.mark.parametrize("chip", CHIPS)
def test_the_buses_carry_each_byte_once(chip: str) -> None:
    """Data time is bytes over the bandwidth of the chip file: a little more for bursts that are used in part, a little
    less for reads that find their burst among the writes that wait."""
    result = run(chip, "dram")
    (account,) = result.drams.values()
    moved = sum(n for way in result.bytes["hbm"].values() for n in way.values())
    peak = float(load_chip(chip).tier("hbm").bandwidth.value)
    assert account.peak_bytes_per_s == pytest.approx(peak, rel=1e-5)
    carried = account.data_fs / account.buses / 1e15 * peak
    assert moved * (1 - 1e-4) <= carried <= moved * 1.01


def test_both_timings_move_the_same_bytes() -> None:
    assert run("h100-sxm", "dram").bytes == run("h100-sxm", "fixed").bytes


def test_a_stream_loses_refresh_and_little_else() -> None:
    """While a large matrix streams, what the buses don't carry is refresh."""
    (account,) = run("h100-sxm", "dram").drams.values()
    assert account.lost_fs["refresh"] > 3 * sum(fs for cause, fs in account.lost_fs.items() if cause != "refresh")
    without = load_system("h100-sxm", tp=1, pp=1)
    tiers = [
        t.model_copy(update={"dram": t.dram.model_copy(update={"refresh": "none"})}) if t.dram else t
        for t in without.chip.tiers
    ]
    chip = without.chip.model_copy(update={"tiers": tuple(tiers)}).with_timing("dram")
    faster = simulate(compile_graph(decode_graph(SMALL, Request(context=512)), dataclasses.replace(without, chip=chip)))
    assert faster.drams["hbm"].lost_fs["refresh"] == 0
    assert faster.time_fs < run("h100-sxm", "dram").time_fs


def test_causes_of_dram_are_on_the_path_only_where_it_is_simulated() -> None:
    names = {f"{why}:hbm" for why in LOST}
    assert names & set(run("h100-sxm", "dram").critical_path_fs)
    assert not names & set(program("h100-sxm", "fixed").causes)
    assert not run("h100-sxm", "fixed").drams


def test_the_report_says_what_the_dram_gave() -> None:
    text = stall_table(run("h100-sxm", "dram"))
    for words in ("160 data buses", "refresh", "row misses", "too few bytes in flight", "GB/s while asked"):
        assert words in text
    data = dram_json(run("h100-sxm", "dram"))["hbm"]
    assert data["bytes_per_s"] < data["bytes_per_s_asked"] < data["peak_bytes_per_s"]
    assert "What the DRAM gave" not in stall_table(run("h100-sxm", "fixed"))


def test_what_is_assumed_of_dram_is_said_where_it_counts() -> None:
    def said(timing: str) -> str:
        return " ".join(a.what for a in program("h100-sxm", timing).info.assumptions)

    assert "tiers.hbm.dram" in said("dram")
    assert "tiers.hbm.dram" not in said("fixed")
    assert "tiers.hbm.lanes" in said("fixed")
    assert "tiers.hbm.lanes" not in said("dram")


def test_chips_without_dram_say_so() -> None:
    with pytest.raises(StallscopeError, match="no tier of this chip has 'dram:'"):
        load_system("groq-3-lpu").with_timing("dram")
    assert load_system("groq-3-lpu").with_timing("fixed").chip == load_chip("groq-3-lpu")


def test_a_static_schedule_and_dram_lanes_exclude_each_other() -> None:
    p = program("h100-sxm", "dram")
    static = dataclasses.replace(p, segments=(dataclasses.replace(p.segments[0], static=True), *p.segments[1:]))
    with pytest.raises(ProgramError, match="static segments"):
        lay_out(static)


def test_something_must_lie_behind_a_dram_lane() -> None:
    p = program("h100-sxm", "dram")
    routes = dataclasses.replace(p.routes, latency_fs=p.routes.latency_fs * 0)
    with pytest.raises(ProgramError, match="expected one tick"):
        lay_out(dataclasses.replace(p, routes=routes))


def test_dram_lanes_are_in_the_text_of_a_program() -> None:
    text = program("h100-sxm", "dram").text()
    assert "dram=0:refresh:hbm" in text
    assert "\ndram 0 hbm3_5200 " in text
    assert "rule ACT x4 -> ACT" in text
