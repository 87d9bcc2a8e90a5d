"""The golden file's own words: its configurations, and its request streams (golden/README.md)."""

from __future__ import annotations

import csv
import math
import os
from pathlib import Path

import numpy as np
from dram_rules import DramLane
from numpy.typing import NDArray

GOLDEN = Path(os.environ.get("STALLSCOPE_GOLDEN", Path(__file__).parents[1] / "../shared/golden"))


def _ck(text: str) -> dict[str, int]:
    return {name: int(ck) for name, ck in (word.split("=") for word in text.split())}


HBM3 = _ck(
    """
    CL=20 CWL=10 RCDRD=31 RCDWR=15 RP=26 RAS=45 RC=72 WR=33 RTP=9 CCDS=2 CCDL=4 CCDR=3 RRDS=4 RRDL=5 FAW=24
    WTRS=7 WTRL=10 RTW=20 PPD=2 RFC=416 RFCpb=320 RREFD=8 REFI=6240 REFIpb=390 BL=2
    """
)
HBM2 = _ck(
    """
    CL=14 CWL=5 RCDRD=14 RCDWR=12 RP=14 RAS=34 RC=48 WR=16 RTP=5 CCDS=2 CCDL=4 RRDS=4 RRDL=4 FAW=15 WTRS=6
    WTRL=8 RFC=260 REFI=3900 RFCpb=160 REFIpb=244 BL=2 RREFD=8
    """
)
DDR4 = _ck(
    """
    CL=22 CWL=16 RCD=22 RP=22 RAS=52 RC=74 WR=24 RTP=12 CCDS=4 CCDL=8 RRDS=4 RRDL=8 FAW=34 WTRS=4 WTRL=12
    RFC=576 REFI=12480 BL=4 CS=2
    """
)
DDR5 = _ck(
    """
    BL=8 CL=34 RCD=34 RP=34 RAS=77 RC=111 WR=72 RTP=18 CWL=32 PPD=2 CCDS=8 CCDL=12 CCDS_WR=8 CCDL_WR=48 WTRS=6
    WTRL=24 CS=2 RRDS=8 RRDL=12 FAW=48 RFC=710 REFI=9375
    """
)
LPDDR5 = _ck(
    """
    BL_min=2 BL_max=4 CL=17 RCD=15 RP=15 RPab=17 RAS=34 RC=49 WR=28 RTP=8 CWL=9 PPD=2 CCDS=2 CCDL=4 CCDS_WR=2
    CCDL_WR=4 WTRS=5 WTRL=10 WCKPST=1 CAS=0 AAD=8 CS=2 RRDS=4 RRDL=4 FAW=16 RFC=168 RFCpb=96 REFI=3125
    REFIpb=391 PBR2PBR=72 PBR2ACT=6
    """
)
GDDR6 = _ck(
    """
    BL=2 CL=24 RCDRD=27 RCDWR=16 RP=27 RAS=53 RC=79 WR=27 RTP=4 CWL=6 CCDS=2 CCDL=4 RRDS=8 RRDL=8 WTRS=9
    WTRL=11 FAW=29 RFCpb=106 RREFD=15 REFI=3333 RFCab=211 PPD=1
    """
)
HBM4 = _ck(
    """
    BL=2 CL=20 CWL=10 RC=90 RAS=57 RP=33 RCDRD=39 RCDWR=19 RRDL=7 RRDS=5 FAW=30 RTP=12 WR=42 CCDL=4 CCDS=2
    CCDR=2 WTRL=13 WTRS=9 RTW=25 PPD=2 RFCpb=560 RREFD=16 RFC=900 REFI=7800 REFIpb=244
    """
)
_SID2 = {**HBM3, "RFC": 560, "REFIpb": 195}
# standard, tick fs, timings, groups, banks, rows, columns, burst bytes, ranks, sids
_CONFIGS = {
    "hbm3": ("HBM3", 312500, HBM3, 4, 4, 16384, 32, 32, 1, 1),
    "hbm3sid2": ("HBM3", 312500, _SID2, 4, 4, 16384, 32, 32, 1, 2),
    "hbm3pc2": ("HBM3", 312500, _SID2, 4, 4, 16384, 32, 32, 2, 2),
    "hbm2": ("HBM2", 1000000, HBM2, 4, 4, 32768, 32, 32, 1, 1),
    "ddr4": ("DDR4", 625000, DDR4, 4, 4, 65536, 128, 64, 1, 1),
    "ddr5": ("DDR5", 416000, DDR5, 8, 4, 65536, 64, 64, 1, 1),
    "lpddr5": ("LPDDR5", 1250000, LPDDR5, 4, 4, 32768, 64, 32, 1, 1),
    "gddr6": ("GDDR6", 570000, GDDR6, 4, 4, 16384, 64, 32, 1, 1),
    "hbm4": ("HBM4", 250000, HBM4, 2, 8, 16384, 32, 32, 1, 2),
}


def lane(config: str, mapping: str, queue: int = 32) -> DramLane:
    """A configuration of the golden file, its suffixes included."""
    base, *suffixes = config.split("_")
    standard, tick, timings, groups, banks, rows, columns, burst, ranks, sids = _CONFIGS[base]
    refresh = "none" if "noref" in suffixes else "per-bank" if "refpb" in suffixes else "all-bank"
    for s in suffixes:
        if s[0] == "q" and s[1:].isdigit():
            queue = int(s[1:])
    return DramLane(
        config, standard, tick, timings, groups, banks, rows, columns, burst, ranks, sids, mapping, refresh, queue
    )


def golden_rows(simulator: str = "ramulator") -> list[dict[str, str]]:
    """The rows of dram.csv of one simulator; none if the file is not there."""
    path = GOLDEN / "dram.csv"
    if not path.exists():
        return []
    with path.open() as file:
        return [r for r in csv.DictReader(file) if r["simulator"].startswith(simulator)]


def _hash(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (x + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def stream(lane: DramLane, pattern: str, params: str, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Burst numbers and write flags of a stream of n bursts."""
    tx = lane.burst_bytes
    row_bytes = tx * lane.columns
    capacity = row_bytes * lane.rows * lane.banks * lane.groups * lane.sids * lane.ranks
    p = dict(x.split("=") for x in params.split(";") if x)
    i = np.arange(n, dtype=np.int64)
    writes = np.zeros(n, np.int64)
    if pattern in ("seq", "burst"):
        address = i * tx
    elif pattern == "streams":
        s, c = int(p["S"]), int(p["C"])
        base = np.arange(s) * (capacity // 32)
        if p["off"] == "stag":
            base = base + np.arange(s) * (lane.groups + 1) * row_bytes
        k = i // (c // tx)
        address = base[k % s] + k // s * c + i % (c // tx) * tx
    elif pattern == "stride":
        g = tx if p.get("g") == "TX" or int(p.get("g", 64)) == tx else 64
        r = i // (g // tx)
        address = r * int(p["stride"]) + i % (g // tx) * tx
    elif pattern in ("rand", "rwrand"):
        g = int(p.get("g", 64))
        r = i // (g // tx)
        address = g * (_hash(r.astype(np.uint64)) % np.uint64(capacity // g)).astype(np.int64) + i % (g // tx) * tx
    elif pattern in ("rwseq1", "rwseq2"):
        address = i * tx
    else:
        raise ValueError(pattern)
    if pattern.startswith("rw"):
        g = max(64, tx)
        r = i // (g // tx)
        read = _hash(r.astype(np.uint64) ^ np.uint64(0xABCDEF)) % np.uint64(100) < np.uint64(int(p["pr"]))
        writes = (~read).astype(np.int64)
        if pattern == "rwseq2":
            rr = r[:: g // tx]
            isread = read[:: g // tx]
            nth = np.where(isread, np.cumsum(isread) - 1, np.cumsum(~isread) - 1)
            base = np.where(isread, 0, capacity // 2 + 2 * (lane.groups + 1) * row_bytes)
            address = (base + nth * g)[r] + i % (g // tx) * tx
            assert len(rr) == len(nth)
    return address % capacity // tx, writes


def arrivals(row: dict[str, str], lane: DramLane, n: int) -> NDArray[np.int64]:
    """Tick at which each burst becomes available (0 when saturated)."""
    load = row["offered_load"]
    if load == "sat":
        return np.zeros(n, np.int64)
    g = lane.burst_bytes if row["pattern"] in ("seq", "streams") else max(64, lane.burst_bytes)
    bursts = g // lane.burst_bytes
    r = np.arange(n) // bursts
    gap = g / (float(load) * float(row["peak_bytes_per_cycle"]))
    assert row["arrivals"] == "det"
    return np.array([math.floor(x * gap) for x in r], np.int64)
