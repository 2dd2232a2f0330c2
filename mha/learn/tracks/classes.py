"""The class of lesson 8 in each framework, judged as a layer."""

from collections.abc import Callable
from typing import Any

from conformance.cases.case import Case
from conformance.cases.parts import case, fixed
from mha.learn.exercise import NUMPY, LayerExercise, Value
from mha.learn.running.classes import PARAMETERS
from mha.learn.tracks.table import NUM_HEADS, tiny
from mha_core import AttentionConfig
from mha_core.reference.state import State

BEGINNINGS = {
    "torch": '''class MultiHeadAttention(torch.nn.Module):
    def __init__(self, num_hiddens, num_heads, dropout=0.0):
        super().__init__()
        raise NotImplementedError

    def forward(self, queries, keys, values, valid_lens):
        """Give the output, (B, Lq, num_hiddens)."""
        raise NotImplementedError
''',
    "tf": '''class MultiHeadAttention(tf.keras.layers.Layer):
    def __init__(self, num_hiddens, num_heads, dropout=0.0):
        super().__init__()
        raise NotImplementedError

    def call(self, queries, keys, values, valid_lens, training=False):
        """Give the output, (B, Lq, num_hiddens)."""
        raise NotImplementedError
''',
    "jax": '''class MultiHeadAttention(nn.Module):
    num_hiddens: int
    num_heads: int
    dropout: float = 0.0

    @nn.compact
    def __call__(self, queries, keys, values, valid_lens, training=False):
        """Give the output, (B, Lq, num_hiddens)."""
        raise NotImplementedError
''',
    "mxnet": '''class MultiHeadAttention(gluon.nn.Block):
    def __init__(self, num_hiddens, num_heads, dropout=0.0):
        super().__init__()
        raise NotImplementedError

    def forward(self, queries, keys, values, valid_lens):
        """Give the output, (B, Lq, num_hiddens)."""
        raise NotImplementedError
''',
}
"""Framework -> the code to begin with."""

ENDING = """

# What is below stays as it is: by it the judge makes and calls your class.


class Subject(ClassSubject):
    made, dialect = MultiHeadAttention, "{}"
"""


WIDTHS = {**dict.fromkeys(BEGINNINGS, "the first call"), "jax": "the arrays that `init` gets"}
"""Framework -> from what a layer learns the width of its inputs."""

WHY = "the sizes that d2l.ai's class has"


def _case(id: str, catches: str, width: int, num_heads: int, **settings: object) -> Case:
    return case(id, catches, AttentionConfig(width, num_heads), same_sizes=WHY, trivial_mask=WHY, **settings)


def _with_widths(id: str, catches: str, widths: tuple[int, int, int], **settings: object) -> Case:
    """A case whose queries, keys and values have widths of their own."""
    names = ("query_dim", "key_dim", "value_dim")
    return _case(id, catches, 12, 3, query_len=5, key_len=7, **dict(zip(names, widths, strict=True)), **settings)


OWN = (
    _case("class-of-the-chapter", "a wrong shape", 100, 5, query_len=4, key_len=6, valid_lens=[3, 2]),
    _case("class-without-padding", "lengths that reach the end", 12, 3, query_len=5, key_len=7, valid_lens=[7, 7]),
    _case("class-of-one-head", "heads where there is one", 8, 1, query_len=3, key_len=5, valid_lens=[5, 1]),
    _with_widths("class-of-wider-inputs", "widths that are no num_hiddens", (13, 17, 19), valid_lens=[7, 2]),
    _with_widths("class-of-narrower-inputs", "scores scaled by the width of the inputs", (11, 7, 5), valid_lens=[3, 6]),
    _case(
        "class-of-three-items",
        "lengths that are tiled",
        24,
        4,
        batch=3,
        query_len=7,
        key_len=5,
        valid_lens=[1, 5, 3],
    ),
)


def _matrix(key: str) -> Callable[[State], Any]:
    """A function that reads a matrix of the layer."""
    return lambda state: state.parameters[key]


def into(framework: str) -> tuple[LayerExercise, ...]:
    """Return the exercises on writing a layer class in a framework; () for NumPy (see exercise "module-with-state").

    >>> [one.name for one in into("torch")], into("numpy")
    (['class-in-torch'], ())
    """
    if framework == NUMPY:
        return ()
    return (
        LayerExercise(
            name=f"class-in-{framework}",
            track="layer",
            dialect=framework,
            task="Write the class of lesson 8: MultiHeadAttention(num_hiddens, num_heads, dropout) makes a layer, and "
            "calling it (in Flax, by `apply`) with (queries, keys, values, valid_lens) gives the output. Its four "
            "layers, w_q, w_k, w_v and w_o, are num_hiddens wide, have no bias, and learn the width of their inputs "
            f"from {WIDTHS[framework]}. Dropout acts on the attention weights, in training alone. The judge puts its "
            "own matrices into the layers.",
            rules=("excluded-keys",),
            subject="Subject",
            first=("square-no-bias",),
            alone=True,
            arguments=(
                Value("num_hiddens", "int: H * d", lambda state: state.config.num_heads * state.config.head_dim),
                NUM_HEADS,
                Value("queries", "float32 (B, Lq, Dq)", lambda state: state.inputs.queries),
                Value("keys", "float32 (B, Lk, Dk)", lambda state: state.inputs.keys),
                Value("values", "float32 (B, Lk, Dv)", lambda state: state.inputs.values),
                Value("valid_lens", "int32 (B,): keys of each item, 1 or more", lambda s: s.inputs.mask.valid_lens),
                *(Value(f"{name}.weight", "float32 (out, in)", _matrix(key)) for name, key in PARAMETERS.items()),
            ),
            tiny=tiny(AttentionConfig(2, 2), mask=fixed(valid_lens=[2]))[1],
            returned=(Value("output", "float32 (B, Lq, num_hiddens)", "output"),),
            own=OWN,
            code=BEGINNINGS[framework] + ENDING.format(framework),
        ),
    )
