"""The rules of the definition, each once: docs/definition.md prints them, and known deviations refer to them by id."""

from typing import NamedTuple


class Rule(NamedTuple):
    """A rule of this project's definition of multi-head attention.

    id: its name, in kebab-case. about: the question that it answers. text: what the definition says, in Markdown.
    """

    id: str
    about: str
    text: str

    @property
    def plain(self) -> str:
        """Return question and text without Markdown, as a terminal shows them."""
        whole = f"{self.about} {self.text}" if self.about.endswith("?") else f"{self.about}: {self.text}"
        return whole.replace("**", "").replace("`", "")


RULES: dict[str, Rule] = {
    rule.id: rule
    for rule in (
        Rule(
            "head-order",
            "Which channel is which head?",
            "Channel `h*d + i` of a projection is element `i` of head `h`.",
        ),
        Rule(
            "grouped-heads",
            "Which key head does a query head read?",
            "Query head `h` reads key/value head `h // (H // G)`: repeated, never tiled. G is any divisor of H, 1 too.",
        ),
        Rule(
            "inputs",
            "What are the inputs?",
            "They are (B, L, width), called with queries, keys, values in this order; their widths and the output's "
            "are independent.",
        ),
        Rule(
            "valid-lens",
            "`valid_lens`, integers (B,) or (B, Lq)",
            "Key j is allowed iff j < valid_len.",
        ),
        Rule(
            "allowed",
            "`allowed`, bool",
            "**True = may attend.** Broadcasts to (B, H, Lq, Lk) by NumPy's rules: three axes are (H, Lq, Lk). A "
            "mask of numbers is an additive bias, and is given as that.",
        ),
        Rule(
            "positions",
            "`query_offset`",
            "Query i stands at `query_offset + i`. 0, the default, aligns top-left; `Lk - Lq` bottom-right; with "
            "a cache it is the number of past keys.",
        ),
        Rule(
            "causal",
            "`causal`",
            "Key j is allowed iff j <= the query's position. It is a mask by itself; the caller says it, and no "
            "implementation decides it.",
        ),
        Rule(
            "window",
            "`window=(left, right)`",
            "position - left <= j <= position + right; None is unbounded; the position itself is not counted.",
        ),
        Rule(
            "bias",
            "`bias`, float",
            "Added to the scores after scaling and softcap. -inf excludes exactly as `allowed = False` does; a "
            "large finite number is only a number.",
        ),
        Rule(
            "sources",
            "What if several of them are given?",
            "Each source that is given counts: a key is allowed where all of them allow it. Each broadcasts.",
        ),
        Rule(
            "excluded-keys",
            "What weight does a masked key have?",
            "A masked key has weight 0, however large its score, and nothing flows through it, forward or backward: no "
            "fill constant is visible in any result, in any dtype.",
        ),
        Rule(
            "lone-key",
            "What weight does a single allowed key have?",
            "A single allowed key has weight 1, exactly.",
        ),
        Rule(
            "empty-row",
            "What does a query with no allowed key get?",
            "Its weights are 0, whichever source excludes its keys; its output is exactly the output bias, and it "
            "sends no gradient.",
        ),
        Rule(
            "padding",
            "What may padding do?",
            "Nothing. A key that `valid_lens` alone, or `allowed` alone, excludes for a whole batch item is "
            "replaced by 0 before the projection. It influences no output and no gradient but its own, which is 0: "
            "not even if it is NaN or infinite.",
        ),
        Rule(
            "non-finite",
            "Where do other NaN and infinities go?",
            "They propagate as in the equation. One in a query or a key makes the scores that it enters NaN: a row "
            "that may attend to it is NaN in all its allowed keys, and excluded keys keep the weight 0. One in the "
            "values of a key reaches every query of its item, even one that may not attend to that key, since 0 times "
            "NaN is NaN. Padding (above) reaches none.",
        ),
        Rule(
            "rotary",
            "`rotary`, settings",
            "The first `width` channels of each head, or its last, turn in pairs, queries and new keys alike: a pair "
            "(a, b) becomes (a cos - b sin, b cos + a sin). The other channels stay, and so do values and the past: a "
            "cache holds keys that are turned.",
        ),
        Rule(
            "rotary-pairs",
            "Which channels are a pair, and how fast does it turn?",
            "Pair k is channels (k, k + width / 2), or (2 k, 2 k + 1) if `interleaved`. At position p its angle is "
            "p * base^(-2 k / width), or what `rule` makes of that; the attention factor of a rule multiplies cosine "
            "and sine. `sections` say how many pairs turn with each axis of positions.",
        ),
        Rule(
            "rotary-positions",
            "`positions`, or `rotary=(cos, sin)`",
            "Query i stands at `query_offset + i`, new key j at Lp + j, unless `positions` (L,) or (B, L) say where; "
            "two of them if keys stand elsewhere. Tables (L, width / 2) or (B, L, width / 2) are taken in their place "
            "as they are: they need not be cosine and sine of one angle, and they get no gradient.",
        ),
        Rule(
            "query-key-norm",
            "`query_key_norm`, settings",
            "x becomes (offset + weight) * x / sqrt(mean(x^2) + eps) + bias, for queries and for new keys, each with "
            'weights of its own; "layer" first takes the mean of x away. The mean is over a head, or over all heads '
            'of a token with scope "all". eps is under the root. A cache holds keys that are normed.',
        ),
        Rule(
            "norm-order",
            "Norm and rotary positions?",
            'The norm comes "before" the rotation, or "after" it; its mean is over all channels of a head, those '
            "that do not turn too.",
        ),
        Rule(
            "scores",
            "What is a score?",
            "`scaled_dot` (q.k / sqrt(d), or times `scale`), `dot` (q.k), `additive` (w . tanh(A q + C k)).",
        ),
        Rule(
            "softcap",
            "`softcap`, c",
            "The scaled score becomes c * tanh(score / c), before bias and exclusion.",
        ),
        Rule(
            "past",
            "`past_keys`, `past_values`",
            "(B, G, Lp, d), (B, G, Lp, dv): a decoding cache. It stands before the new keys; Lk and every mask "
            "count both, and `query_offset` is Lp. `return_present=True` gives the next one.",
        ),
        Rule(
            "bare",
            "`projections=False`",
            "Bare attention: inputs are the heads, merged (B, L, H * d) or split (B, H, L, d), and the output is "
            "the heads merged.",
        ),
        Rule(
            "dropout",
            "What does dropout act on?",
            "Dropout acts on the weights, in training alone; it draws for each of (B, H, Lq, Lk), and scales kept "
            "ones by 1 / (1 - p). `dropout_keep`, a bool mask, makes a step the same in all frameworks.",
        ),
        Rule(
            "returned-weights",
            "Which weights are returned?",
            "Those of each head, (B, H, Lq, Lk), before dropout.",
        ),
        Rule(
            "dtypes",
            "Which dtypes are there?",
            "float64, float32, float16, bfloat16 (MXNet on a CPU: the first two). Nothing is cast in silence: a "
            "float64 layer computes in float64, and what is not supported is refused with a message, before any "
            "work is done.",
        ),
        Rule(
            "softmax-precision",
            "In which precision is the softmax?",
            "At least float32, and never less than the input's; scores stay within the dtype's range before they "
            "are scaled.",
        ),
        Rule(
            "matmul-precision",
            "In which precision are products?",
            "That of the dtype; one that is asked for holds for every product of the layer.",
        ),
        Rule(
            "initialisation",
            "How do new parameters begin?",
            "Glorot uniform, each projection by its own widths: +-sqrt(6 / (in + out)) (Glorot and Bengio 2010, "
            "equation 16). For parity they are given, not drawn.",
        ),
        Rule(
            "callers-arrays",
            "What happens to a caller's arrays?",
            "Nothing writes into a caller's arrays.",
        ),
        Rule(
            "compiled",
            "What does compiling change?",
            "Compiling a layer changes none of its results.",
        ),
    )
}
"""Every rule by id, in the order in which docs/definition.md has them."""
