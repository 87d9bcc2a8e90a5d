"""What every number and cause means: one row per word, as docs/model.md (section 8) and the reports use it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Definition:
    """A word of the reports, what it means, and the other words (JSON keys among them) that ask for the same."""

    word: str
    text: str
    also: tuple[str, ...] = ()


RESULT = (
    Definition(
        "time per token",
        "From the start of one step to the completion of its last instruction, counted in whole "
        "femtoseconds. In a decode step every user of the batch gets one token; it is the time between tokens (TBT, "
        "ITL, TPOT) of a user. The steps of a prefill add up to the time to first token (TTFT). It includes "
        "the first fill: nothing is assumed to be loaded before the step "
        "starts, except what its tiers hold.",
        ("time of the step", "time_fs", "time_s", "ttft", "tbt", "itl", "tpot", "time", "makespan"),
    ),
    Definition(
        "cycles",
        "Time in periods of the chip's core clock, rounded up. Cycles of causes are rounded so that they add "
        "up to the total.",
        ("cycle",),
    ),
    Definition("clock", "The core clock of the chip file, by which cycles are counted.", ("clock_hz",)),
    Definition(
        "tokens/s per user",
        "1 / time per token: how fast one user's answer grows. Of a prefill or verify step: the new tokens of one "
        "sequence / its time.",
        ("tokens_per_s_per_user", "tokens per second per user"),
    ),
    Definition(
        "tokens/s",
        "Batch / interval: the tokens of all users together; of other steps than decode, their new tokens. "
        "With pipeline stages (pp > 1) all stages are "
        "taken to be full, so it is more than batch x tokens/s per user.",
        ("tokens_per_s", "tokens/s in all", "throughput", "tokens per second"),
    ),
    Definition(
        "interval",
        "The time of the slowest pipeline stage: with all stages full, a step leaves the pipeline once per "
        "interval. Equal to the time per token when pp is 1.",
        ("interval_fs",),
    ),
    Definition(
        "chips",
        "How many chips (sockets, packages) hold the model and run it: tp x pp. When none is asked for, the "
        "smallest number that holds weights, KV cache and activations; the lines below it show the "
        "arithmetic.",
    ),
    Definition("fit", "The arithmetic behind the number of chips: what must be held, and where it fits."),
    Definition("chip", "The name of the accelerator package, as in its chip file: `stallscope chips` lists them."),
    Definition("tp", "Tensor parallel: the chips over which every layer's matrices are split.", ("tensor parallel",)),
    Definition(
        "pp", "Pipeline parallel: the stages in which the layers are laid one after the other.", ("pipeline parallel",)
    ),
    Definition(
        "ep",
        "Expert parallel: groups of tp x pp chips over which the experts are spread whole. Each group has its share of "
        "the batch, and all that is not an expert. The one whose experts get most tokens is simulated, since all wait "
        "for it; counts of bytes and engines are its own times the number of groups.",
        ("expert parallel",),
    ),
    Definition(
        "phase",
        "Which step of inference is run. decode: one token per user from a KV cache that is already there. prefill: a "
        "prompt, whole or a chunk at a time. mixed: a prefill's chunk beside decodes. verify: drafted tokens of each "
        "user.",
        ("decode", "prefill", "mixed", "verify"),
    ),
    Definition(
        "spans",
        "Whose tokens a step works on where it is not one per user and all contexts equal: for each kind of "
        "sequence, how "
        "many, new tokens of each, cached tokens of each, and how many of these are a prefix that all share.",
        ("new tokens",),
    ),
    Definition("batch", "Users (sequences) whose tokens one step makes together; it is the M of every GEMM."),
    Definition("context", "Tokens of each user that are in the KV cache, all of which the step reads."),
    Definition(
        "model", "The model or graph that was run, by its catalogue name, its config file or the graph's own name."
    ),
    Definition("schema", "Name and version of the JSON layout; `stallscope schema run` prints it."),
    Definition("dtypes", "Number formats: of the weights, of the KV cache, and of activations.", ("dtype",)),
)

LIMITS = (
    Definition(
        "bound",
        "The analytic limit that no run may beat: the largest of several terms, each what one resource alone "
        "would need, such as bytes that must be read / bandwidth of the tier that holds them, or operations /"
        " peak rate.",
        ("terms_fs", "bound_s", "bound_fs"),
    ),
    Definition(
        "limiter", "The resource whose term is the largest, and so is the bound.", ("limited by", "bound limited by")
    ),
    Definition(
        "distance",
        "Time per token / bound: 1.00x would be the limit itself. The causes on the critical path say where "
        "the rest went.",
        ("/bound",),
    ),
)

PLACES = (
    Definition(
        "critical path",
        "The chain of instructions, transfers and waits that ends at the last completion, walked back to the "
        "start along what each really waited for last. It covers every femtosecond of the run once, so its "
        "causes add up to the time per token.",
        ("critical_path_fs", "causes_fs", "path", "main cause"),
    ),
    Definition(
        "cause", "The one reason to which a femtosecond of the critical path, or of a stall, is charged.", ("causes",)
    ),
    Definition("share", "A part as a percentage of its total; rounded so that a column adds up to 100.0 %."),
    Definition(
        "engine",
        "Whatever works through its own in-order queue of tile instructions: a load or store engine, a matrix"
        " or vector unit, a network port, a launcher. Engines of a kind are counted and their times summed "
        "over all chips.",
        ("engines", "count"),
    ),
    Definition("busy", "Engine time in which it computes, or its port carries bytes.", ("busy_fs",)),
    Definition(
        "stall",
        "Engine time that is not busy, with exactly one cause per femtosecond. Busy and stalls of an engine "
        "add up to the time per token, of a kind of engine to that times their number.",
        ("stalls", "stalls_fs"),
    ),
)

CAUSES = (
    Definition("matrix", "A matrix unit computes, and that is what everything waits for."),
    Definition("vector", "A vector unit computes, and that is what everything waits for."),
    Definition(
        "bandwidth",
        "bandwidth:TIER: bytes queue for that tier's lanes or are served by them (or pass the port into the "
        "tier): the tier gives no more.",
    ),
    Definition(
        "latency",
        "latency:TIER: the tier's fixed latency is in sight, because too few bytes are in flight or an access"
        " stands alone.",
    ),
    Definition(
        "refresh",
        "refresh:TIER: bursts wait for a refresh of the tier's DRAM (--timing dram; with fixed it is in the rate).",
    ),
    Definition(
        "row-miss",
        "row-miss:TIER: bursts wait for a row to be opened in a bank that is closed.",
        ("row misses", "row miss"),
    ),
    Definition(
        "bank-conflict",
        "bank-conflict:TIER: bursts wait for another row of their bank to be closed, and their own to be opened.",
        ("bank conflicts", "bank conflict"),
    ),
    Definition(
        "turnaround",
        "turnaround:TIER: bursts wait while the data bus turns from reads to writes or back.",
        ("read/write turnaround",),
    ),
    Definition("link", "Chip-to-chip bandwidth or latency: all-reduce, all-gather and sends between stages."),
    Definition(
        "kernel",
        "What a kernel itself takes beside its work: from its launch to its first loads, and from the last product of "
        "a tile to its results.",
    ),
    Definition("host", "The host between two steps: the token comes back, the next step is put together and started."),
    Definition("launch", "Launch latency of kernels, and the barrier between one kernel and the next."),
    Definition(
        "buffer", "On engines only: no buffer slot is free, since what is in it is still being used (a WAR edge)."
    ),
    Definition(
        "imbalance", "On engines only: this engine's share is done, and others of the same kernel or kind still work."
    ),
    Definition("idle", "On engines only: no engine of its kind has any work left in this step."),
)

DRAM = (
    Definition(
        "dram",
        "Of tiers whose DRAM is simulated command by command (--timing dram): what their data buses did. Data, lost "
        "time, too few bytes in flight and nothing asked add up to time x data buses.",
        ("buses", "data_fs", "data", "lost_fs"),
    ),
    Definition(
        "bus",
        "Data buses idle while bursts wait, for the distance that bank groups and command buses ask between commands.",
        ("bank groups and command buses",),
    ),
    Definition(
        "too few bytes in flight",
        "A data bus had nothing to carry while the tier had chunks to bring: they are at other channels, or on the "
        "way, and more bytes in flight would have filled it.",
        ("too_few_fs",),
    ),
    Definition(
        "nothing asked of it",
        "No chunk was asked of the tier at all: the chip launched, computed or waited.",
        ("unasked_fs",),
    ),
    Definition(
        "achieved bandwidth",
        "Bytes moved at the tier over the whole step, and over the time in which anything was asked of it; the peak is "
        "that of the chip file.",
        ("bytes_per_s", "bytes_per_s_asked", "peak_bytes_per_s", "gb/s"),
    ),
)

BYTES = (
    Definition("tier", "A memory that holds tensors: registers, SRAM, L2, HBM, DDR, host.", ("tiers",)),
    Definition(
        "bytes",
        "Bytes that a step moved out of a tier (read) or into it (write), by the kind of tensor, over all "
        "chips. kB, MB, GB, TB are powers of 1000; KiB, MiB, GiB of 1024.",
        ("read", "write", "moved", "bytes moved"),
    ),
    Definition(
        "must bytes",
        "The bytes that an op has to move however it is done: its weights and KV once, and inputs and outputs"
        " that live in memory. Moved / must of 1.00 means that nothing was read twice.",
        ("must_bytes", "/must", "must", "bytes that must move"),
    ),
    Definition("weight", "Tensor kind: parameters that every token needs.", ("weights",)),
    Definition(
        "expert", "Tensor kind: parameters of the experts of a mixture, of which a token wakes a few.", ("experts",)
    ),
    Definition("kv", "Tensor kind: keys and values of the tokens so far, of every layer and user.", ("kv cache",)),
    Definition("activation", "Tensor kind: what ops hand to each other within a step.", ("activations",)),
    Definition(
        "embedding", "Tensor kind: the table of token vectors, of which a step reads one row per user.", ("embeddings",)
    ),
    Definition(
        "copied_bytes",
        "Bytes that the chips of a tensor-parallel group read beyond one copy: norm weights on every chip, KV heads "
        "where there are more chips than KV heads, padding. By tensor kind, over all chips.",
    ),
    Definition("placement", "Bytes that each tier of one chip holds, by tensor kind."),
)

REST = (
    Definition(
        "op",
        "A row of the op table: an operator of the graph, or several that were fused; the same op of "
        "identical layers is one row, and xN says how often it ran. Its time is its part of the critical "
        "path, so ops add up to the time per token. /bound divides that by the op's own bound; below 1 its "
        "work was hidden behind other ops. Its cause is the largest on its part of the path.",
        ("ops",),
    ),
    Definition(
        "assumption", "Something the result rests on that no source states, and why it was chosen.", ("assumptions",)
    ),
    Definition("note", "A remark of the compiler on this job.", ("notes", "remark", "remarks")),
    Definition("block", "One run of a body of instructions, such as a layer: how many the program has.", ("blocks",)),
    Definition(
        "simulated blocks",
        "Blocks that were simulated one by one. The others repeat exactly (the whole state of the machine "
        "recurred) and were counted without being simulated; --no-skip simulates all, with the same result.",
        ("simulated_blocks", "skip", "no-skip"),
    ),
)

CHANNEL = (
    Definition(
        "efficiency",
        "Of one DRAM channel: bytes moved / (cycles x what its data buses can move in a cycle).",
    ),
    Definition(
        "read latency",
        "Of one DRAM channel: from the acceptance of a read into the controller's queue to its last beat. Of sorted "
        "latencies, p99 is the element number ceil(0.99 n).",
        ("mean_latency_cycles", "p50_latency_cycles", "p99_latency_cycles"),
    ),
    Definition(
        "gen latency",
        "As read latency, but from when the read was there: waiting for room in the queue is included.",
        ("gen_mean_latency_cycles", "gen_p99_latency_cycles"),
    ),
    Definition(
        "row hits",
        "Bursts that found their row open. Misses had to open it (ACT), conflicts had to close another first (PRE).",
        ("row_hits", "row_misses", "row_conflicts", "rows"),
    ),
    Definition(
        "lost",
        "Cycles in which the data bus of a DRAM channel carried nothing, by cause; docs/dram.md has the rule.",
        ("bank group", "no request"),
    ),
)

GROUPS: tuple[tuple[str, tuple[Definition, ...]], ...] = (
    ("The result", RESULT),
    ("Limits", LIMITS),
    ("Where time goes", PLACES),
    ("Causes", CAUSES),
    ("Bytes", BYTES),
    ("Simulated DRAM (--timing dram)", DRAM),
    ("One DRAM channel (stallscope memory)", CHANNEL),
    ("The rest", REST),
)
