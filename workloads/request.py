"""What is asked of a model: which tokens of how many sequences, in which order, and in which element types."""

from __future__ import annotations

from dataclasses import dataclass

from .checks import nearest, positive_int, problem, shown
from .contexts import context_list
from .dtypes import BLOCK_FORMATS, VALUE_DTYPES, check_dtype
from .routing import check_routing
from .spans import Span

PHASES = ("decode", "prefill", "mixed", "verify")
BATCH_LIMIT = 2**20
CONTEXT_LIMIT = 2**31
STEPS_LIMIT = 4096
DECODE_CONTEXT = 1024
LATENT_FORMS = ("auto", "absorbed", "plain")


@dataclass(frozen=True)
class Request:
    """What is run: a decode step, a prefill, a prefill beside decodes, or the verification of drafted tokens.

    Raises StallscopeError for a value that makes no sense.
    """

    batch: int = 1
    """Sequences that are worked on together; in a mixed step, those that decode."""
    context: int | None = None
    """Tokens in the KV cache of each sequence when the first step begins. The new ones come on top. None: 1024; of a
    prefill, its prefix."""
    weight: str | None = None
    """Element type of weights and embedding tables. None: as the model's file says, else bf16."""
    kv: str | None = None
    """Element type of the KV cache. None: as the file says, else bf16."""
    activation: str | None = None
    """Element type of activations, logits included. None: bf16."""
    phase: str = "decode"
    """One of PHASES."""
    prompt: int | None = None
    """New tokens of each sequence of a prefill; in a mixed run, of the one sequence that is prefilled."""
    chunk: int | None = None
    """New tokens of a prefill's step at most. None: the whole prompt in one."""
    steps: int = 1
    """Decode or verify steps, one after the other, the cache growing."""
    verify: int = 1
    """New tokens of each sequence in a verify step: the drafted ones and the one before them."""
    prefix: int = 0
    """Leading tokens of every context that all sequences share: their KV is stored and read once."""
    contexts: tuple[int, ...] | str | None = None
    """A context for each sequence: a list that the batch takes in turn, or a distribution (contexts.py)."""
    seed: int = 0
    """Of all that is drawn at random: contexts, and what tokens are sent to which experts."""
    routing: str = "uniform"
    """How tokens choose experts: "uniform", "power:ALPHA", or a trace file (routing.py)."""
    ep: int = 1
    """Expert parallelism: chips over which the experts are spread whole; each has its share of the batch's sequences
    and all that is not an expert."""
    latent: str = "auto"
    """Form of latent attention (attention.py): "absorbed", "plain", or "auto": plain in a prefill, else absorbed."""
    attention: str | None = None
    """Element type of attention's matrices, where it is not `weight`."""
    expert: str | None = None
    """Of the experts."""
    embedding: str | None = None
    """Of the tables of embeddings."""
    head: str | None = None
    """Of the head."""
    cast: str | None = None
    """Element type that activations are cast to before a product with quantised weights; "none": they are not, whatever
    the file says. None: as it says."""

    def __post_init__(self) -> None:
        """Fill in the default context, and refuse values that make no sense."""
        positive_int(self.batch, "request: batch", BATCH_LIMIT)
        if self.phase not in PHASES:
            todo = nearest(str(self.phase), PHASES)
            raise problem("request: phase", shown(self.phase), f"one of {', '.join(PHASES)}", todo)
        positive_int(self.prefix, "request: prefix", CONTEXT_LIMIT, least=0)
        if self.context is None:
            default = self.prefix if self.phase == "prefill" else max(DECODE_CONTEXT, self.prefix)
            object.__setattr__(self, "context", default)
        positive_int(self.context, "request: context", CONTEXT_LIMIT, least=int(self.phase != "prefill"))
        for field in ("weight", "kv", "activation", "attention", "expert", "embedding", "head", "cast"):
            value = getattr(self, field)
            if value is not None and (field, value) != ("cast", "none"):
                check_dtype(value, f"request: {field}", (*VALUE_DTYPES, *BLOCK_FORMATS))
        check_routing(self.routing)
        self._check_spread()
        if self.latent not in LATENT_FORMS:
            todo = nearest(str(self.latent), LATENT_FORMS)
            raise problem("request: latent", shown(self.latent), f"one of {', '.join(LATENT_FORMS)}", todo)
        self._check_phase()
        shortest = min(self.sequence_contexts)
        if self.prefix > shortest:
            found = f"{self.prefix} tokens, of contexts from {shortest}"
            raise problem("request: prefix", found, "no more than the shortest context", "Lower it.")

    def _check_spread(self) -> None:
        """Sequences are shared out evenly over the chips that share the experts."""
        positive_int(self.ep, "request: ep", BATCH_LIMIT)
        if self.batch % self.ep:
            found = f"{self.ep} chips for a batch of {self.batch}"
            raise problem("request: ep", found, "a divisor of the batch", "Every chip has as many sequences.")
        if self.ep > 1 and self.phase == "mixed":
            raise problem("request: ep", str(self.ep), "1 in phase mixed", "One prompt can't be shared out.")

    def _check_phase(self) -> None:
        """What belongs to one phase alone is given with it, and not with others."""
        prefills = self.phase in ("prefill", "mixed")
        positive_int(self.steps, "request: steps", STEPS_LIMIT)
        positive_int(self.verify, "request: verify", CONTEXT_LIMIT)
        positive_int(self.seed, "request: seed", 2**63 - 1, least=0)
        for name in ("prompt", "chunk"):
            value = getattr(self, name)
            if value is not None:
                positive_int(value, f"request: {name}", CONTEXT_LIMIT)
            if value is not None and not prefills:
                raise problem(f"request: {name}", str(value), "none in a phase without a prefill", "Set phase=prefill.")
        if prefills and self.prompt is None:
            raise problem("request: prompt", "none", f"the new tokens of a {self.phase}", "Give prompt.")
        for name in ("steps", "verify"):
            fits = self.phase == "verify" or (self.phase == "decode" and name == "steps")
            if getattr(self, name) != 1 and not fits:
                todo = "A prefill's steps come from prompt and chunk." if name == "steps" else "Set phase=verify."
                raise problem(f"request: {name}", str(getattr(self, name)), f"none in phase {self.phase}", todo)

    @property
    def sequence_contexts(self) -> tuple[int, ...]:
        """Cached tokens of each sequence of the batch, as the first step finds them."""
        assert self.context is not None
        if self.contexts is None:
            return (self.context,) if self.batch == 1 else (self.context,) * self.batch
        return context_list(self.contexts, self.batch, self.seed)

    @property
    def plan(self) -> tuple[tuple[Span, ...], ...]:
        """The spans of each step, one step after the other."""
        if self.phase in ("decode", "verify"):
            return tuple(self._spans(self.verify, i * self.verify) for i in range(self.steps))
        assert self.prompt is not None
        size = min(self.chunk or self.prompt, self.prompt)
        starts = range(0, self.prompt, size)
        chunks = [(at, min(size, self.prompt - at)) for at in starts]
        if self.phase == "prefill":
            return tuple(self._spans(new, at) for at, new in chunks)
        return tuple((Span(1, new, at), *self._spans(1, i)) for i, (at, new) in enumerate(chunks))

    def _spans(self, new: int, grown: int) -> tuple[Span, ...]:
        """Every sequence of the batch with `new` tokens, its cache grown by `grown`; equal neighbours are one span."""
        spans: list[Span] = []
        for context in sorted(self.sequence_contexts)[:: self.ep]:
            span = Span(1, new, context + grown, self.prefix)
            if spans and spans[-1][1:] == span[1:]:
                spans[-1] = span._replace(sequences=spans[-1].sequences + 1)
            else:
                spans.append(span)
        return tuple(spans)
