"""What `mha check` says of a user's own subject, on one screen: the answer, the causes, what was not judged."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from conformance.case_unit import NOT_ASKED
from conformance.cases.sequence import Asked, CallSequence
from conformance.diagnosis.apart import MAY_BE_KEPT
from conformance.diagnosis.brief import FIXES, MUST_BE, ONLY_EXTREME
from conformance.diagnosis.brief import shown as shown_place
from conformance.diagnosis.diagnose import ALL_NAN
from conformance.judging.compare import Mismatch
from conformance.judging.result import Result
from conformance.reports.brief import ROWS, Brief, Cause
from conformance.reports.looked_at import LookedAt
from conformance.reports.text import deviation_lines, float64_lines, gradient_lines
from conformance.subjects.answers import BY_ASSIGNMENT
from conformance.subjects.function import TO_BEGIN
from conformance.subjects.seen import form_of
from mha_core.errors import listed, shown, wrapped
from mha_core.features import FEATURES

SCREEN = 25
"""Most rows about one subject, of 80 columns."""

REASONS, NAMES = 2, 3
"""Most reasons of failures, or things that are kept, and most names of cases, that are said."""

UNDECLARED = (
    "It declares no `capabilities`, so it was asked all that the definition had at first: what it is not made for is "
    "no fault, once they leave it out. In the class of a plain layer, write "
    "`capabilities = Capabilities()`; above it, `from mha_parity.core.subject import Capabilities` (docs/subjects.md)."
)

FEW = 5
"""Where fewer than one in so many cases could be asked, a row says so."""

WHY_FEW = (
    "A module of one input answers few: have the method judged that it gives queries, keys and values to "
    "(docs/subjects.md), or record its calls with mha.capture and run `mha diagnose FILE` (docs/recordings.md)."
)

BELOW = 'What would have it asked the others stands below, at "Not judged" (docs/subjects.md).'

OF_WIDTH = "Its width is that of the output projection: heads @ out_proj.weight.T + out_proj.bias."

HEADS = "It does not take `num_heads`, so it was asked with one head: write def f(..., mask, *, num_heads)."

WROTE = "wrote into its inputs"

BIASES = r'key\(s\) in state_dict: "((?:q|k|v|out)_proj)\.bias"(?:, "(?:q|k|v|out)_proj\.bias")*\.'
"""A pattern of PyTorch's list of keys that are biases alone."""

SIZES, TURNED = r"size mismatch: \S+ is ", r"\((\d+), (\d+)\) in the layer, and is given \(\2, \1\)"

WHY_STATE = ": make it with bias=config.bias.{0}, or have `supports` leave these cases out (docs/subjects.md)."

HINTS = {
    rf"{WROTE}(?!.*, {BY_ASSIGNMENT})": "Write x = x * y, not x *= y: it is the array that was given, which its "
    "caller reads again.",
    rf"{WROTE}: (\w+).*, {BY_ASSIGNMENT}": "Copy it first: {0} = {0}.copy(). It is the array that was given, which its "
    "caller reads again.",
    r"\bprepare\(\) (takes|missing) ": "It is called as prepare(config, weights), and returns a function run(inputs).",
    r"\brun\(\) (takes|missing) ": "It is called as run(inputs), with inputs.queries, .keys, .values and .mask.",
    "zero-size array to reduction operation (fmin|min|max)|(max|min)\\(\\): Expected reduction dim": "A call may have "
    "no keys, and they no maximum: give it a start, as in x.max(axis=-1, initial=-np.inf), or return zeros then.",
    r"reshape.*(size 0\b|\b0 elements|empty tensor)": "Write every size, none as -1: an empty array does not tell it.",
    "mismatch in its core dimension|shapes cannot be multiplied|not aligned|contracting dimensions": "If one is a "
    "weight, it is (out, in): write x @ weight.T; a kernel is weight.T.",
    "'NoneType' object has no attribute '(numpy|detach|cpu|asnumpy)'": "If that is a .grad: nothing came back to its "
    "array. Is something detached? Give zeros there, and the outputs are judged too.",
    f"Unexpected {BIASES}": "The case has a bias at {0}, and the layer has none" + WHY_STATE,
    f"Missing {BIASES}": "The layer has a bias at {0}, and the case has none" + WHY_STATE,
    r'Missing key\(s\) in state_dict: .*"(?:\S+\.)?\w+\.weight"': "The layer has other names for them than what is "
    "loaded: rename them in the dict that it is given.",
    SIZES + TURNED: "A weight is (out, in) here, a kernel of Keras or Flax (in, out): is it turned once too often, or "
    "too seldom?",
    rf"{SIZES}(?!{TURNED})": "The case has other sizes than the layer: make it with those of the config, such as "
    "config.query_dim, or leave these cases out (docs/subjects.md).",
    "TracerArrayConversionError": "That is NumPy inside of jax.jit: write jnp there, not np.",
    "concrete values.*Tracer": "jax.jit traced a size: name its argument in static_argnames.",
}
"""Pattern of an error -> what it most often means, and what to write."""

WHY_NAN = (
    "Most often NaN begins at 0 / 0, or in a softmax over a row of -inf. NumPy names the line: begin the function with "
    "np.seterr(invalid='raise')."
)

OF_ONE_CALL = re.compile(r"(all \d+ cases|failing cases|cases(?= that fail))(?=[ ,.:])")
"""The cases of a diagnosis: those that ask a layer once, and no sequence of calls."""

LEAST = 6
"""Rows that the causes have in any case."""


def answers(results: Sequence[Result], width: int) -> list[tuple[str, bool]]:
    """Return (row of text, whether all judged cases are right) for each subject, dtype and device.

    Args:
        results: the results of users' own subjects.
        width: columns of a row.
    """
    rows: dict[tuple[str, str, str], list[Result]] = {}
    for one in results:
        rows.setdefault((one.subject, one.dtype, one.device), []).append(one)
    found = []
    for (name, dtype, device), group in rows.items():
        counts: Counter[str] = Counter(one.status for one in group)
        judged = len(group) - counts["unsupported"]
        right = counts["equal"] + counts["deviates"]
        words = {"different": "differ", "failed": "did not run", "equal": "equal", "deviates": "as listed"}
        said = [f"{counts[status]:,} {word}" for status, word in words.items() if counts[status]]
        said[:1] = [said[0].replace(" ", f" of {judged:,} ", 1)] if said else []
        text = f"equal in all {judged:,}" if counts["equal"] == judged else ", ".join(said)
        text = text if judged else "none judged"
        left_out = f"{counts['unsupported']:,} not judged" if counts["unsupported"] else ""
        where = f"{dtype}:" if device == "cpu" else f"{dtype} {device}:"
        tail = f" {where} {'; '.join(filter(None, [text, left_out]))}"
        found.append((shown(name, max(12, width - len(tail))) + tail, bool(judged) and right == judged))
    return found


def about(
    results: Sequence[Result],
    told: Brief | None,
    looked_at: LookedAt | None,
    width: int,
    catches: Mapping[str, str] | None = None,
    *,
    undeclared: bool = False,
    cases: Sequence[Asked] = (),
) -> list[str]:
    """Return the rows of text that explain one subject (a layer under test), below its row of `answers`.

    Args:
        results: the subject's results, in all dtypes.
        told: the diagnosis; None if there is none.
        looked_at: the features that the subject's calls covered; None if no call returned.
        width: columns of a row.
        catches: id of a case -> the mistakes that it detects; None if no case is to be shown.
        undeclared: whether the subject does not declare which features it supports.
        cases: all cases and sequences of calls that the subject was given.
    """
    asked = [one for one in results if one.status != "unsupported"]
    wrong = any(one.status in ("different", "failed") for one in asked)
    told, ordinary = _ordinary(told)
    if told is not None and any(one.case.startswith("sequence") for one in results):  # a case of the row above
        told = replace(told, sure=OF_ONE_CALL.sub(r"\1 of one call", told.sure))
    if told is not None and not any(one.label for one in told.causes):  # of a call that is not named
        told = replace(told, causes=tuple(one for one in told.causes if " has shape " not in one.what))
    shapes, known = _of_shapes(results, told), told is not None and any(one.label for one in told.causes)
    if shapes and not known and 2 * len(_misshapen(results)) >= sum(one.status == "different" for one in results):
        told = None  # nothing explains numbers that stand in another place
    of_calls = alone(results, cases)
    catches = {} if of_calls and catches is not None else catches  # they catch what is kept
    kept = _kept(results)
    before = [
        *ordinary,
        *([] if known else shapes),
        *([] if known else kept),
        *of_calls,
        *([UNDECLARED] if undeclared and wrong and any(one.status != "failed" for one in asked) else []),
        *_of_few(results),
    ]
    raised = _raised(results, width)
    if not any(one.status in ("different", "equal", "deviates") for one in results):  # that is the answer then
        before, raised = [*raised, *before], []
    is_nan = told is not None and any(one.what == ALL_NAN for one in told.causes)
    case = [] if catches is None else _of_one(results, catches)
    after = [
        *[WHY_NAN] * is_nan,
        *(kept if known else []),  # a cause of most cases comes first
        *(shapes if known else []),  # which follows from the cause
        *float64_lines(results),
        *raised,
        *(case[-1:] if case and _is_said(case[0], shapes) else case),
    ]
    after += [*gradient_lines(results), *deviation_lines(results)]
    rows = [row for line in before for row in wrapped(shown(line, 4 * width), width, "  ")]
    last = [row for line in after for row in _in_rows(line, width)]
    last += [*_not_judged(results, width), *_covered(looked_at, width), "Every case, with its numbers: add -v"]
    last += [] if known else of_other_shape(results)
    dtypes = len({(one.dtype, one.device) for one in results})
    taken = sum(-(-len(row) // width) for row in (*rows, *last))
    most = min(ROWS, max(LEAST, SCREEN - dtypes - taken))
    causes = [] if told is None else told.rows(width, most, head=False)
    return [*rows, *causes, *last]


def _ordinary(told: Brief | None) -> tuple[Brief | None, list[str]]:
    """Return a diagnosis without the line that all is right in ordinary cases, and this line, which stands first."""
    start = ONLY_EXTREME.partition(":")[0]
    found = [] if told is None else [line for line in told.seen if line.startswith(start)]
    if told is None or not found:
        return told, []
    return replace(told, seen=tuple(line for line in told.seen if line not in found)), found


def _in_rows(line: str, width: int) -> list[str]:
    """Three rows at most; a command, which is to be copied, is broken before its options."""
    if not line.startswith("  rerun: ") or len(line) <= width:
        return wrapped(shown(line, 3 * width - 20), width, "  ")
    rows = [""]
    for word in re.split(r" (?=--)", line):
        if rows[-1] and len(f"{rows[-1]} {word} \\") > width:
            rows[-1:] = [f"{rows[-1]} \\", f"    {word}"]
        else:
            rows[-1] = f"{rows[-1]} {word}" if rows[-1] else word
    return rows


def _kept(results: Sequence[Result]) -> list[str]:
    """A line for each thing that is kept from call to call, as sequences of calls and second calls show it."""
    later = [one for one in results if one.mismatches and one.mismatches[0].call]
    said: dict[str, list[Result]] = {}
    for one in sorted(later, key=lambda one: not one.kept):
        said.setdefault(one.kept or MAY_BE_KEPT, []).append(one)
    lines: list[str] = []
    for what, ones in list(said.items())[:REASONS]:
        cause = Cause(ones[0].mismatches[0].stage, what, FIXES["keeps"] * (what != MAY_BE_KEPT)).line
        lines.append(f"{cause} In {listed(list(dict.fromkeys(one.case for one in ones)), NAMES)}.")
    return lines


def _of_few(results: Sequence[Result]) -> list[str]:
    """A line where so few cases could be asked that a cause may not show."""
    cases = [one for one in results if (one.dtype, one.device) == (results[0].dtype, results[0].device)]
    asked = [one for one in cases if one.status != "unsupported"]
    if FEW * len(asked) >= len(cases):
        return []
    left_out = [one.message.removeprefix("cannot express: ") for one in cases if one.status == "unsupported"]
    of_heads = any("no parameter num_heads" in one for one in left_out)
    declared = sum(all(_lacking(reason)[0] for reason in one.split("; ")) for one in left_out)
    why = HEADS if of_heads else BELOW if 2 * declared > len(left_out) else WHY_FEW
    few = (
        f"Only {len(asked)} of {len(cases)} cases were asked, so a cause may not show."
        if asked
        else "No case was asked."
    )
    return [f"{few} {why}"]


def _misshapen(results: Sequence[Result]) -> list[tuple[Result, Mismatch]]:
    """The first array of a wrong shape of each result that has one."""
    wrong = {
        id(one): (one, each)
        for one in results
        for each in reversed(one.mismatches)
        if " has shape " in each.message and not each.call
    }
    return list(wrong.values())


def _of_shapes(results: Sequence[Result], told: Brief | None) -> list[str]:
    """A line for the first array of a wrong shape, unless a cause says that."""
    wrong = _misshapen(results)
    if not wrong or (
        told is not None and any(" has shape " in cause.what or MUST_BE in cause.what for cause in told.causes)
    ):
        return []
    first, mismatch = wrong[0]
    head = "" if mismatch.message.startswith(mismatch.stage) else f"{mismatch.stage}: "
    pairs = [_shapes_in(each.message) for _, each in wrong if each.stage == "output"]
    # Its width may be wrong too.
    forms = [form_of([(got, (*right[:2], got[2]))]) for got, right in pairs if len(got) == len(right) == 3]
    changes = {form.change for form in forms if form is not None}
    is_width = bool(pairs) and all(len(got) == len(right) == 3 and got[:2] == right[:2] for got, right in pairs)
    change = f" {changes.pop()}" if len(changes) == 1 and 2 * sum(map(bool, forms)) > len(wrong) else ""
    judged = sum(one.status != "unsupported" for one in results)
    change = f" {OF_WIDTH}" if is_width else change
    return [f"{head}{mismatch.message} (case {first.case}, and so in {len(wrong)} of {judged}).{change}"]


def _is_said(line: str, shapes: Sequence[str]) -> bool:
    """Return whether a line on a case repeats one on shapes of the same case."""
    head, _, said = line.partition(", ")
    return any(said.partition(": ")[2] in one and f"({head.lower()}, " in one for one in shapes if said)


def _shapes_in(message: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape of an array and the right one, of a message that says both.

    >>> _shapes_in("output has shape (5, 2, 12); it must be (2, 5, 12)")
    ((5, 2, 12), (2, 5, 12))
    """
    got, right = (tuple(map(int, re.findall(r"\d+", one))) for one in re.findall(r"\(([\d, ]*)\)", message)[:2])
    return got, right


def of_other_shape(results: Sequence[Result]) -> list[str]:
    """Return [a row that names the required output shape] if an output has a wrong shape, else []."""
    wrong = any(each.message.startswith("output has shape") for one in results for each in one.mismatches)
    return [f"An output is (B, Lq, Do): {TO_BEGIN}."] if wrong else []


def _raised(results: Sequence[Result], width: int) -> list[str]:
    """A line for each reason why cases did not run."""
    said: dict[str, list[Result]] = {}
    for one in results:
        if one.status == "failed":
            said.setdefault(_alike(one), []).append(one)
    ranked = sorted(said.values(), key=lambda ones: (ones[0].message.startswith(NOT_ASKED), -len(ones)))
    lines, asked = [], {one.case for one in results if one.status != "unsupported"}
    for ones in ranked[:REASONS]:
        names = list(dict.fromkeys(one.case for one in ones))
        # Of what it wrote into, the case with the fewest names tells most: in self-attention, they are one array.
        plainest = min(ones, key=lambda one: one.message.count(",")) if WROTE in ones[0].message else ones[0]
        in_all = NAMES < len(names) == len(asked)
        cases = f", in {f'all {len(asked)} cases' if in_all else listed(names, NAMES)}"
        room = max(100, 3 * width - 20 - len("Did not run: ") - len(cases))
        lines.append(f"Did not run: {_with_shapes(_why(plainest), room)}{cases}")
        found = [(re.search(of, plainest.message), why) for of, why in HINTS.items()]
        lines += [f"  {why.format(*one.groups())}" for one, why in found if one]
    more = len(ranked) - REASONS
    return [*lines, f"Did not run: for {more} more reasons"] if more > 0 else lines


SHAPE, PLACE = re.compile(r"[(\[]\d+(?:, ?\d+)*,?[)\]]"), re.compile(r" \([^()]*:\d+ in [^()]*\)$")
"""Patterns of a shape, and of the line of the user's code at the end of a reason."""


def _with_shapes(text: str, longest: int) -> str:
    """A reason that is cut where it is too long, but not in its first two shapes, nor in the line of the user's code.

    >>> _with_shapes("RuntimeError: size mismatch, a.weight: it is [6, 12] and not [12, 12], as is (a.py:3 in f)", 70)
    'RuntimeError ... it is [6, 12] and not [12, 12] ... (a.py:3 in f)'
    """
    shapes = [one.span() for one in SHAPE.finditer(text)][:2]
    end = at[0] if (at := PLACE.search(text)) else ""
    if len(text) <= longest or not shapes:
        return shown(text, longest)
    start, stop = shapes[0][0], shapes[-1][1]
    room = longest - len(f"{text[start:stop]} ...{end}")
    return f"{shown(text[:start], room)}{text[start:stop]} ...{end}" if room >= 20 else shown(text, longest)


SEVERAL = re.compile(r"; the weights are .*|(?<=wrote into its inputs: ).*|\d+")
"""Parts of a reason that differ from case to case in one failure: names of weights or inputs, and numbers."""


def _alike(result: Result) -> str:
    """Why it did not run, without what differs from case to case: its type, first words and line, if it has a line."""
    why = _why(result)
    if (place := PLACE.search(why)) is None or WROTE in why:
        return SEVERAL.sub("", why)
    biases = re.search(BIASES, why)
    return " ".join([*SEVERAL.sub("", why).split(" ")[:3], *(biases.groups() if biases else ()), place[0]])


def _why(result: Result) -> str:
    """Why it did not run, without the call of a sequence, and without the signature in NumPy's error of a product."""
    return re.sub(r"^call \d+ of [\w-]+ \(.*?\): |, with gufunc signature \S+", "", result.message)


def _of_one(results: Sequence[Result], catches: Mapping[str, str]) -> list[str]:
    """One difference, where there is one that is a number, else one failure; and the command that runs it again."""
    wrong = [one for one in results if one.status == "different"]
    numbers = [one for one in wrong if one.mismatches and math.isfinite(one.mismatches[0].error or math.inf)]
    numbers.sort(key=lambda one: (one.case.startswith("sequence"), one.mismatches[0].total))
    chosen = next(iter([*numbers, *wrong, *(one for one in results if one.status == "failed")]), None)
    few = len({one.case for one in wrong}) <= NAMES  # else they have more in common than what one of them catches
    if chosen is None:
        return []
    lines = of_one(chosen, catches if few else {})
    return lines if chosen.status == "different" else lines[-1:]  # why it did not run stands there already


OF_CALL = re.compile(r"^call (\d+) of [\w-]+ \(")
"""The beginning of the message of a call of a sequence."""


def alone(results: Sequence[Result], cases: Sequence[Asked]) -> list[str]:
    """Return [a line that says that a subject (layer under test) is wrong in single calls too], or [].

    The line is there if all wrong calls are in sequences of calls, and each is also wrong if a new layer gets it alone.

    Args:
        cases: all cases and sequences of calls that the subject was given.
    """
    sequences = {case.id: case for case in cases if isinstance(case, CallSequence)}
    wrong = [one for one in results if one.status == "different"]
    if not wrong or any(one.case not in sequences or any(each.call for each in one.mismatches) for one in wrong):
        return []
    of_wrong: list[set[str]] = []
    of_all: list[set[str]] = []
    for one in wrong:
        numbers = {int(found[1]) for each in one.mismatches if (found := OF_CALL.match(each.message))}
        number = 0
        for step in sequences[one.case].steps():
            inputs = step.case.build().inputs
            has = {each.words for each in FEATURES if each.words and each.present(step.case.config, inputs)}
            of_all.append(has)
            of_wrong += [has] * bool(numbers & {number + 1 + at for at in range(step.calls)})
            number += step.calls
    shared = sorted(of_wrong[0].intersection(*of_wrong) - of_all[0].intersection(*of_all)) if of_wrong else []
    having = f"Every call that differs has {' and '.join(shared)}. " * bool(shared)
    either = "the call is wrong by itself, or something is kept that all layers share"
    return [f"{having}A layer prepared for such a call alone gives the same: {either}."]


def of_one(result: Result, catches: Mapping[str, str]) -> list[str]:
    """Return lines on a wrong result: the first array that differs, or the error; then the command that runs it again.

    Args:
        result: the result of a case that differs or did not run.
        catches: id of a case -> the mistakes that it detects.
    """
    lines = [f"Case {result.case}, {result.dtype}: {result.message}"] * bool(result.message)
    if result.mismatches:
        first = result.mismatches[0]
        lines = [f"Case {result.case}, {result.dtype}: {first.call}{', ' * bool(first.call)}{shown_place(first)}"]
        if result.case in catches:
            lines.append(f"  It catches: {catches[result.case]}.")
    return [*lines, f"  rerun: {result.rerun}"]


def _not_judged(results: Sequence[Result], width: int) -> list[str]:
    """A row with what the subject must declare to be asked more, the most frequent first, and one with other reasons.

    In brackets stands in how many cases each is one.
    """
    left_out = {one.case: one.message for one in results if one.status == "unsupported"}
    kinds: dict[str, Counter[str]] = {}
    for message in left_out.values():
        reasons = message.removeprefix("cannot express: ").split("; ")
        for kind, what in dict.fromkeys(map(_lacking, reasons)):
            kinds.setdefault(kind, Counter())[what] += 1
    rows = []
    for kind, counted in sorted(kinds.items(), key=lambda one: -max(one[1].values())):
        named = kind if len(counted) > 1 else {"capabilities": "capability", "parameters": "parameter"}.get(kind, "")
        head = f"Not judged without the {named} " if kind else CASES_WITH
        rows += _fitted(head, [f"{what} ({count})" for what, count in counted.most_common()], width)
    return rows


CASES_WITH = "Not judged, cases with "
NO_PARAMETER = re.compile(r".* \(the function has no parameter (\w+)")


def _lacking(reason: str) -> tuple[str, str]:
    """What would have it asked, if a subject can declare that: the kind of thing, and its name; else "" and the reason.

    >>> _lacking("fewer key heads than query heads"), _lacking("a mask of each head (it takes one)")
    (('capabilities', 'grouped'), ('', 'a mask of each head'))
    """
    if found := NO_PARAMETER.match(reason):
        return "parameters", found[1]
    reason = reason.partition(" (")[0]
    named = next((row.name for row in FEATURES if row.words == reason), "")
    return ("capabilities", named) if named else ("", reason)


def _covered(looked_at: LookedAt | None, width: int) -> list[str]:
    """A row with the largest sizes, one with those of each part that was met, and one with what no call was."""
    if looked_at is None:
        return []
    words = {"batches": "items", "head_dim": "channels a head"}

    def row(head: str, sizes: Mapping[str, int]) -> list[str]:
        return _fitted(head, [f"{size:,} {words.get(name, name)}" for name, size in sizes.items()], width)

    of_parts = chain.from_iterable(row(f"With {part} to: ", one.sizes) for part, one in looked_at.parts.items())
    not_covered = _fitted("Not covered: ", list(looked_at.never), width)
    return [*row("Covered to: ", looked_at.sizes), *of_parts, *not_covered]


def _fitted(head: str, items: Sequence[str], width: int) -> list[str]:
    """One row with as many of the items as it has room for, and how many there are besides; none without any."""
    if not items:
        return []
    chosen: list[str] = []
    for item in items:
        more = len(items) - len(chosen) - 1
        if len(head + ", ".join([*chosen, item])) + len(f" and {more} more") * bool(more) <= width:
            chosen.append(item)
    chosen = chosen or [items[0]]
    more = len(items) - len(chosen)
    return [shown(head + ", ".join(chosen) + f" and {more} more" * bool(more), max(width, 20))]
