"""Held-out pairs: layers with two of the faults at once, which act on different things."""

from tests.conformance.heldout.rows import Row, single_rows

TOGETHER = (
    ("scale-one-over-width", "value-norm"),
    ("scale-number-of-heads", "lengths-from-the-left"),
    ("scale-log-of-length", "groups-tiled"),
    ("temperature-per-head", "window-on-both-sides"),
    ("cosine-attention", "output-bias-in-each-shard"),
    ("softcap-rational", "merge-without-transpose"),
    ("softcap-after-bias", "value-bias-dropped"),
    ("bias-before-scale", "causal-sees-the-next"),
    ("softmax-plus-one", "causal-bottom-right"),
    ("sink-per-head", "window-counts-itself"),
    ("sigmoid-weights", "residual-inside"),
    ("entmax-one-and-a-half", "projections-clipped"),
    ("three-largest-scores", "head-scales"),
    ("empty-row-is-mean", "scale-fourth-root"),
    ("lengths-one-too-long", "dropout-then-normalised"),
    ("mask-items-and-heads-mixed", "heads-normalised"),
    ("causal-drops-given-mask", "cache-in-bfloat16"),
    ("rotary-half-split", "softmax-plus-one"),
    ("rotary-part-interleaved", "value-scale"),
    ("linear-biases", "groups-of-wrong-size"),
    ("query-key-norm", "merge-items-and-heads-mixed"),
    ("last-block-forgotten", "key-bias-dropped"),
    ("past-layout-mixed", "scalable-softmax"),
    ("decoding-forgets-bias", "padded-queries-zeroed"),
)
"""The ids of the two faults of each pair, in no order."""

STAGE_ORDER = ("queries", "keys", "values", "scores", "weights", "heads", "output")


def pairs():
    """The rows of TOGETHER. Its first wrong stage is the earlier of its two faults'."""
    singles = single_rows()
    return [_pair(singles[one], singles[other]) for one, other in TOGETHER]


def _pair(one, other):
    # Where either fault has several stages that are equally right, so has the pair: the earlier of any two.
    earliest = {min(a, b, key=STAGE_ORDER.index) for a in one.stages for b in other.stages}
    return Row(
        f"{one.id} + {other.id}",
        f"{one.wrong} {other.wrong}",
        f"{one.source}; {other.source}",
        tuple(sorted(earliest, key=STAGE_ORDER.index)),
        type(
            f"{one.layer.__name__}And{other.layer.__name__}", (one.layer, other.layer), {"supports": _both(one, other)}
        ),
    )


def _both(one, other):
    def supports(config, inputs):
        return one.layer.supports(config, inputs) or other.layer.supports(config, inputs)

    return staticmethod(supports)
