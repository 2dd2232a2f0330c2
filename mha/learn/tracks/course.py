"""The course: of each exercise its level, how long it takes, and what is learned in it."""

from __future__ import annotations

from dataclasses import dataclass

from mha.learn.exercise import Exercise


@dataclass(frozen=True)
class Lesson:
    """One row of the course.

    Attributes:
        level: 1, a line; 2, a few lines and a trap; 3, several traps.
        minutes: about how long it takes.
        learned: what whoever has it right has learned, in a sentence.
    """

    level: int
    minutes: int
    learned: str


COURSE = {
    # write
    "project": Lesson(1, 2, "A projection is one matrix for all positions: here positions do not meet yet."),
    "split": Lesson(1, 4, "Heads are stretches of channels: reshape first, then exchange axes."),
    "merge": Lesson(1, 3, "Merging undoes splitting: the axes go back before the channels are joined."),
    "scores": Lesson(
        1, 3, "Every query meets every key in one product; the scale undoes that it grows with the width."
    ),
    "softcap": Lesson(1, 2, "tanh bounds scores smoothly: small ones stay nearly as they are, none passes the cap."),
    "lengths": Lesson(2, 5, "Lengths exclude the last keys, for each batch item or for each query by itself."),
    "causal": Lesson(2, 5, "A causal mask compares positions; a row's number is its position only at offset 0."),
    "window": Lesson(2, 8, "A width of 0 is a bound and None is none; `if left:` takes the one for the other."),
    "softmax": Lesson(2, 6, "Keys are excluded before the softmax, and the row's maximum keeps exp from overflowing."),
    "empty-row": Lesson(3, 10, "A row without a key is a choice: 0 here, while other layers give NaN or an average."),
    "weighted-sum": Lesson(1, 1, "A head is an average of values, by the query's weights: one matrix product."),
    "output": Lesson(2, 4, "The output projection is where the heads meet; it reads them in the order of merging."),
    "groups": Lesson(2, 5, "Key heads are repeated as 0 0 1 1, not as 0 1 0 1: neighbours share one."),
    "past": Lesson(3, 6, "Past keys stand before new ones, and their padding becomes 0: a NaN there times 0 is a NaN."),
    # translate
    "split-heads": Lesson(1, 3, "Reshape, then exchange axes: two steps, of which frameworks share all but the names."),
    "merge-heads": Lesson(1, 3, "An exchange of axes has three names: swapaxes, transpose, permute."),
    "dot-score": Lesson(
        2, 6, "Heads are repeated by repeat in NumPy, by repeat_interleave in PyTorch; tile is another thing."
    ),
    "cap": Lesson(1, 2, "Elementwise functions keep their names: what differs is where they live."),
    "softmax-of": Lesson(2, 5, "Where a framework has the softmax, it takes the maximum itself; the mask stays yours."),
    "masked-softmax": Lesson(
        3, 8, "The softmax of a row of -inf alone is NaN: the row without a key needs a case of its own."
    ),
    "weighted-sum-of": Lesson(1, 1, "The matrix product of the last two axes is @ everywhere."),
    # catch
    "catch-1": Lesson(1, 3, "Keys that are all equal get equal weights, whatever the scale: no such input tests it."),
    "catch-2": Lesson(1, 3, "A mask shows only where the excluded values differ from those that stay."),
    "catch-3": Lesson(1, 3, "Keys and values need different numbers; self-attention on one array hides an exchange."),
    "catch-4": Lesson(2, 5, "Lengths for each query are another shape, and another path: ask for it."),
    "catch-5": Lesson(2, 5, "Two alignments of a causal mask agree while there are as many queries as keys."),
    "catch-6": Lesson(2, 5, "Repeating and tiling agree for one key head, and for as many as query heads."),
    "catch-7": Lesson(3, 8, "A finite fill is as good as -inf until a row has no key, or scores fall below it."),
    "catch-8": Lesson(3, 8, "What overflows or underflows shows at the sizes of real models, not at those of tests."),
    # backwards
    "gradient-of-softmax": Lesson(
        2, 10, "A weight's gradient counts as far as it is above the row's weighted average."
    ),
    "gradient-of-scores": Lesson(
        1, 5, "The gradient of a product is a product with the other factor; the scale stays."
    ),
    "gradient-of-groups": Lesson(2, 6, "What is shared forward is summed backward, over the heads that read it."),
    "gradient-of-projection": Lesson(
        1, 5, "A parameter's gradient sums over every position and batch item that used it."
    ),
    # layer
    "plain-function": Lesson(2, 15, "A whole layer is twenty lines; what is hard is padding, and rows without a key."),
    "module-with-state": Lesson(
        3, 20, "A layer is called with many shapes: nothing of one call may stay for the next."
    ),
    "decoding-step": Lesson(
        3, 20, "With a cache, a step is the layer on one query; the positions go on where the past ends."
    ),
    # experiment
    "weights-by-angle": Lesson(
        1, 5, "Attention prefers keys in the query's direction, and softly: no key gets nothing."
    ),
    "deviation-of-scores": Lesson(1, 4, "Products of width d deviate by sqrt(d): the scale brings them back to 1."),
    "head-importance": Lesson(3, 20, "What a head adds to the output says more of its importance than its parameters."),
    "cut-heads": Lesson(
        2, 10, "A head is rows of three projections and columns of the last: cut them, and it is gone."
    ),
}
"""Exercise -> its row; translations by the function to write, "-of" added where another exercise has the name."""

LEVELS = max(lesson.level for lesson in COURSE.values())


def lesson(exercise: Exercise) -> Lesson:
    """The row of an exercise.

    >>> from mha.learn.exercises import exercise
    >>> lesson(exercise("weighted-sum")).minutes, lesson(exercise("weighted-sum-in-jax")).level
    (1, 1)
    """
    if exercise.track == "translate":
        name = exercise.function.replace("_", "-")
        return COURSE.get(f"{name}-of") or COURSE[name]
    return COURSE[exercise.name]
