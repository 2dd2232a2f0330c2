"""The course, lesson by lesson; and of every exercise its level, how long it takes, and what is learned in it."""

from dataclasses import dataclass

from mha.learn.exercise import Exercise

LESSONS: dict[str, tuple[str, ...]] = {
    "kernel": ("weighted-sum",),
    "angle": ("dot-products",),
    "scaling": ("scores",),
    "softmax": ("softmax", "weights-by-angle"),
    "masks": ("lengths", "causal", "masked-softmax", "empty-row"),
    "projections": ("project",),
    "heads": ("split", "merge", "output"),
    "layer": ("plain-function",),
    "positions": ("causal-offsets",),
    "block": (),
    "own": ("cut-heads", "head-importance"),
}
"""Lesson, by its folder in `lessons` -> its exercises; both in the order of the course.

An exercise asks for nothing that is taught only after it.
"""

CLASSES: dict[str, tuple[str, ...]] = {
    "layer": ("class-in-torch", "class-in-tf", "class-in-jax", "class-in-mxnet"),
}
"""Lesson -> its class as an exercise, in each framework: the goal of the course, and one of them is enough."""

EXTRA: dict[str, tuple[str, ...]] = {
    "scaling": ("deviation-of-scores",),
    "layer": ("groups", "module-with-state"),
    "positions": ("window", "turn-halves", "turn-pairs", "turned-scores"),
    "block": ("rms-norm", "norm-and-turn"),
}
"""Lesson -> the exercises that its page makes possible, and no later lesson needs."""

COURSE = "course"
"""The name of the exercises of all lessons, where a track may be chosen."""


WORDS = {
    r"Channels of queries, keys and values are split as \(d, h\) instead of \(h, d\)": "Channels are split as "
    "reshape(B, L, d, H) does, and not as reshape(B, L, H, d)",
    r"\(d, h\) instead of \(h, d\)": "(d, H) instead of (H, d)",
    r"Padded (keys and )?values are projected as they are: a NaN there reaches the output as 0 \* NaN": "A NaN in "
    r"padded \1values reaches the output: 0 * NaN is NaN",
    r"Before the projection, put 0 into padded rows of the key and value inputs, which a function is told as "
    r"`padding`: 0 \* NaN is NaN": "Choose, "
    "np.where(padding[..., None], 0, keys), and so the values, before the projection: keys * ~padding[..., None] "
    "leaves a NaN",
    r", also those of a past,": "",
    r"head_dim": "d",
    r"The query offset": "The offset",
    r"the query offset": "the offset",
    r" of its batch item, for causal and for window": "",
    r"batch item": "item",
    r"valid_len of its item \(or of its item and query\)": "the length of its item, or of its query",
    r"makes the row underflow": "makes the row 0 / 0",
    r"rows of very negative scores underflow": "rows of very negative scores become 0 / 0",
    r"the embedding's width, not of one head's": "H * d, not of d",
    r"Excluded scores": "Masked scores",
    r"[Ee]xclude keys exactly: -inf": "Mask with -inf",
    r"the (\w+) tensor": r"the \1 array",
    r"[qkv]_proj\.weight|out_proj\.weight": "weight",
}
"""What the zoo says of a mistake -> what the lessons say; regular expressions, one after the other."""

RULES_IN_WORDS = {
    "excluded-keys": "Rule: a masked key has weight 0, however large its score.",
    "lone-key": "Rule: a key that is the only allowed one has weight 1.",
    "empty-row": "Rule: a query that may attend to no key has weights of 0. Ask the mask for it.",
    "non-finite": "Rule: a NaN is not hidden. Where the score of an allowed key is NaN, every allowed key of that row "
    "has weight NaN, and the masked ones have 0.",
    "inputs": "Rule: queries, keys, values and the output may each have a width of their own.",
    "padding": "Rule: padding has no influence. Its rows of keys and values, NaN too, become 0 before they are used.",
    "past": "Rule: keys and values of the past stand before the new ones, and every mask counts both.",
    "head-order": "Rule: the first d channels belong to head 0, the next d to head 1, and so on.",
}
"""Rule of the definition -> what it says in the words of the lessons."""


@dataclass(frozen=True)
class Row:
    """A row of the table of exercises.

    Attributes:
        level: how hard the exercise is. 1: a line; 2: a few lines and a trap; 3: several traps.
        minutes: about how long the exercise takes.
        learned: a sentence on what the exercise teaches.
    """

    level: int
    minutes: int
    learned: str


ROWS = {
    # write
    "project": Row(1, 2, "A projection is one matrix for all positions: here positions do not meet yet."),
    "split": Row(1, 4, "Heads are stretches of channels: reshape first, then exchange axes."),
    "merge": Row(1, 3, "Merging undoes splitting: the axes go back before the channels are joined."),
    "dot-products": Row(1, 2, "Every query meets every key in one matrix product: queries times keys transposed."),
    "scores": Row(
        1, 3, "The scale undoes that products grow with the width; a scale of 0 is a number, and None is none."
    ),
    "softcap": Row(1, 2, "tanh bounds scores smoothly: small ones stay nearly as they are, none passes the cap."),
    "lengths": Row(2, 5, "Lengths exclude the last keys, for each batch item or for each query by itself."),
    "causal": Row(1, 3, "A causal mask compares two numbers, a query's and a key's; its own key is allowed."),
    "causal-offsets": Row(2, 5, "A causal mask compares positions; a row's number is its position only at offset 0."),
    "window": Row(2, 8, "A width of 0 is a bound and None is none; `if left:` takes the one for the other."),
    "softmax": Row(1, 4, "Only differences of scores count, so that the row's own maximum keeps exp from overflowing."),
    "masked-softmax": Row(2, 6, "Keys are excluded before the softmax, so that those that stay share the whole."),
    "empty-row": Row(3, 10, "A row without a key is a choice: 0 here, while other layers give NaN or an average."),
    "weighted-sum": Row(1, 1, "The output is an average of values, by the query's weights: one matrix product."),
    "output": Row(2, 4, "The output projection is where the heads meet; it reads them in the order of merging."),
    "groups": Row(2, 5, "Key heads are repeated as 0 0 1 1, not as 0 1 0 1: neighbours share one."),
    "past": Row(3, 6, "Past keys stand before new ones, and their padding becomes 0: a NaN there times 0 is a NaN."),
    "turn-halves": Row(2, 8, "A position is an angle: the further a pair is down the channels, the slower it turns."),
    "turn-pairs": Row(2, 5, "Two layouts of pairs give other numbers from the same weights, and no error."),
    "turned-scores": Row(
        2, 6, "Where both have turned, a score hangs on the difference of the positions: moving all changes nothing."
    ),
    "rms-norm": Row(1, 3, "eps under the root counts where x is small; no mean is taken away."),
    "norm-and-turn": Row(
        3, 8, "A turn keeps the mean square: the two orders differ because the weight is another for each channel."
    ),
    # translate
    "split-heads": Row(1, 3, "Reshape, then exchange axes: two steps, of which frameworks share all but the names."),
    "merge-heads": Row(1, 3, "An exchange of axes has three names: swapaxes, transpose, permute."),
    "dot-score": Row(
        2, 6, "Heads are repeated by repeat in NumPy, by repeat_interleave in PyTorch; tile is another thing."
    ),
    "cap": Row(1, 2, "Elementwise functions keep their names: what differs is where they live."),
    "softmax-of": Row(1, 2, "A framework's softmax takes the maximum itself: what is left to you is the axis."),
    "masked-softmax-of": Row(2, 4, "A mask is -inf before the softmax: where, or masked_fill, puts it there."),
    "empty-row-of": Row(
        3, 8, "The softmax of a row of -inf alone is NaN: the row without a key needs a case of its own."
    ),
    "weighted-sum-of": Row(1, 1, "The matrix product of the last two axes is @ everywhere."),
    # catch
    "catch-1": Row(1, 3, "Keys that are all equal get equal weights, whatever the scale: no such input tests it."),
    "catch-2": Row(1, 3, "A mask shows only where the excluded values differ from those that stay."),
    "catch-3": Row(1, 3, "Keys and values need different numbers; self-attention on one array hides an exchange."),
    "catch-4": Row(2, 5, "Lengths for each query are another shape, and another path: ask for it."),
    "catch-5": Row(2, 5, "Two alignments of a causal mask agree while there are as many queries as keys."),
    "catch-6": Row(2, 5, "Repeating and tiling agree for one key head, and for as many as query heads."),
    "catch-7": Row(3, 8, "A finite fill is as good as -inf until a row has no key, or scores fall below it."),
    "catch-8": Row(3, 8, "What overflows or underflows shows at the sizes of real models, not at those of tests."),
    # backwards
    "gradient-of-softmax": Row(2, 10, "A weight's gradient counts as far as it is above the row's weighted average."),
    "gradient-of-scores": Row(1, 5, "The gradient of a product is a product with the other factor; the scale stays."),
    "gradient-of-groups": Row(2, 6, "What is shared forward is summed backward, over the heads that read it."),
    "gradient-of-projection": Row(1, 5, "A parameter's gradient sums over every position and batch item that used it."),
    # layer
    "plain-function": Row(2, 15, "A whole layer is twenty lines; what is hard is padding, and rows without a key."),
    "module-with-state": Row(3, 20, "A layer is called with many shapes: nothing of one call may stay for the next."),
    "decoding-step": Row(
        3, 20, "With a cache, a step is the layer on one query; the positions go on where the past ends."
    ),
    "class": Row(2, 15, "A class makes its matrices at the first call (in Flax, `init` makes them)."),
    # experiment
    "weights-by-angle": Row(
        1,
        5,
        "Attention prefers keys in the query's direction, and softly: such a key has exp(2 / sqrt(2)) = 4.1 times the "
        "weight of the opposite one.",
    ),
    "deviation-of-scores": Row(1, 4, "Products of width d deviate by sqrt(d): the scale brings them back to 1."),
    "head-importance": Row(3, 20, "What a head adds to the output says more of its importance than its parameters."),
    "cut-heads": Row(2, 10, "A head is rows of three projections and columns of the last: cut them, and it is gone."),
}
"""Exercise -> its row; translations by the function to write, "-of" added where another exercise has the name."""

LEVELS = max(row.level for row in ROWS.values())


def row_of(exercise: Exercise) -> Row:
    """Return the Row of an exercise: its level, how long it takes, what it teaches.

    >>> from mha.learn.exercises import exercise
    >>> row_of(exercise("weighted-sum")).minutes, row_of(exercise("weighted-sum-in-jax")).level
    (1, 1)
    """
    if exercise.track == "translate":
        name = exercise.function.replace("_", "-")
        return ROWS.get(f"{name}-of") or ROWS[name]
    return ROWS[exercise.name.removesuffix(f"-in-{exercise.dialect}")]
