"""The errors that this project raises on purpose, and the words for what others raise or call their things.

What stands in a message may come from a file or from code that anybody made: a name of a megabyte, escape sequences
that rewrite a terminal, a text that fails while it is made. So every message is bounded and printable, here.
"""

import re
import shlex
import textwrap
from collections.abc import Callable, Iterable, Sequence

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""Escape sequences for colours and bold letters, which frameworks put into their messages."""

HEADS = re.compile(
    r"\{\{function_node [^}]*\}\} ?| ?\[Op:\w+\](?: name: ?\w*)?|\n *Arguments received by .*", re.DOTALL
)
"""What TensorFlow and Keras put around the sentence of an error: where it ran, and all arguments of the layer."""

ARRAYS = re.compile(r"{0}(?:[\])]*[\s,]+(?:\.\.\.,?\s*)?[\[(]*{0}){{8,}}".format(r"-?\b\d+\.?\d*(?:e[+-]?\d+)?"))
"""Many numbers in a row, as a printed array has them and no shape does."""

OTHER_SIZE = (
    r"size mismatch for (?P<name>\S+): copying a param with shape torch\.Size\(\[(?P<given>[\d, ]*)\]\) from checkpoint"
    r", the shape in current model is torch\.Size\(\[(?P<own>[\d, ]*)\]\)\.?",
    r"The shape of the target variable and .* must match\. variable\.shape=\((?P<own>.*?)\), Received: value\.shape="
    r"\((?P<given>.*?)\)(?:\. Target variable: <Variable path=(?P<name>[^,>]*).*)?",
)
"""PyTorch's and Keras' sentences on weights of another shape than the layer's."""

LONGEST_MESSAGE = 4000
"""Most characters of a message; a longer one is cut in the middle."""

LONGEST_NAME = 120
"""Most characters that are shown of a name from outside."""

LONGEST_WORD = 20
"""Most characters of a word that is left out whole where a text is cut."""

LONGEST_REASON = 300
"""Most characters that are shown of another program's error message."""


def shown(text: object, longest: int = LONGEST_NAME) -> str:
    r"""Return a text from outside in the form for messages and tables: printable, and cut in the middle if it is long.

    Characters that are not printable (line ends, escape sequences, marks that reverse the direction of writing) are
    written as Python writes them. Markup of the package rich stays; code that prints with rich must escape it.

    >>> shown("layer.0\x1b[2J\n"), shown("a" * 200 + "z", longest=12)
    ('layer.0\\x1b[2J\\n', 'aaaa ... aaz')
    >>> shown("at least one dimension spans across two subspaces", longest=40)
    'at least one ... two subspaces'
    """
    plain = str(text)
    if len(plain) > longest:  # before it is escaped, which takes time
        plain = _cut(plain, longest)
    if not plain.isprintable():
        plain = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in plain)
    return _cut(plain, longest)


def short_names(names: Sequence[str], longest: int) -> dict[str, str]:
    """Return name -> a short form of at most `longest` characters.

    If a name is longer, the beginning that all names share becomes "..."; a name still longer is cut in the middle.

    >>> short_names(["encoder.layer.0.attention", "encoder.layer.11.attention"], 20)
    {'encoder.layer.0.attention': '...0.attention', 'encoder.layer.11.attention': '...11.attention'}
    >>> short_names(["a.b", "a.c"], 20), short_names(["embeddings.attention"], 12)
    ({'a.b': 'a.b', 'a.c': 'a.c'}, {'embeddings.attention': 'embe ... ion'})
    """
    parts = [re.split(r"(?<=[./])", name) for name in names]
    alike = next((at for at, column in enumerate(zip(*parts, strict=False)) if len(set(column)) > 1), 0)
    start = sum(map(len, parts[0][:alike])) if alike and max(map(len, names)) > longest else 0
    return {name: shown(f"...{name[start:]}" if start > 3 else name, longest) for name in names}


def listed(texts: Sequence[str], most: int) -> str:
    """Return at most `most` of the texts in one line, and how many more there are.

    >>> listed(["a", "b"], 2), listed(["a", "b", "c", "d"], 2)
    ('a, b', 'a, b and 2 more')
    """
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


LACKING = ("no", "not", "missing", "without")
"""Words that say the same in a name."""


MOST_MEANT = 3
"""Most names that may have been meant that are said."""


def meant(text: str, known: Iterable[str]) -> str:
    """Return the end of an error message: a suggestion of known names that are close to `text`; "" if none is.

    A name with the same words comes before one with a similar spelling. "no" and "missing" count as the same word.

    >>> meant("kears", ["keras", "torch"]), meant("x", ["keras"]), meant("no-scale", ["no-scaled", "scale-missing"])
    ('; did you mean keras?', '', '; did you mean scale-missing?')
    >>> meant("lens", ["valid-lens", "long", "lens-of-none", "no-lens", "all-lens"])
    '; did you mean valid-lens, lens-of-none, no-lens (and 1 more)?'
    """
    from difflib import get_close_matches

    def words(name: str) -> list[str]:
        return sorted("no" if word in LACKING else word for word in name.split("-"))

    known, text = list(known), str(text)  # a subject may call a number its dtype
    asked = [word for word in re.split(r"[\W_]+", text.lower()) if len(word) > 2]
    holds_all = [one for one in known if asked and all(word in one.lower() for word in asked)]
    near = [one for one in known if words(one) == words(text)] or get_close_matches(text, known, n=1, cutoff=0.8)
    near = near[:1] or holds_all or get_close_matches(text, known, n=1)
    more = f" (and {len(near) - MOST_MEANT} more)" if len(near) > MOST_MEANT else ""
    return f"; did you mean {', '.join(near[:MOST_MEANT])}{more}?" if near else ""


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Return a text in rows of at most `width` columns; rows after the first are indented.

    >>> wrapped("  one two three", 20, "  "), wrapped("x" * 30, 20)
    (['  one two three'], ['xxxxxxxxxxxxxxxxxxxx', 'xxxxxxxxxx'])
    """
    deep = " " * (len(text) - len(text.lstrip()))
    return textwrap.wrap(
        text.strip(), max(width, 20), initial_indent=deep, subsequent_indent=deep + indent, break_on_hyphens=False
    )


def fitted(blocks: Sequence[Sequence[str]], room: int, left: Callable[[int], str]) -> list[str]:
    """Return at most `room` rows: the first blocks that fit, and one row about the blocks that are left out.

    Args:
        blocks: groups of rows; a group is returned whole or left out whole.
        room: the most rows; if the first block alone is longer, it is cut and ends with "...".
        left: (how many blocks are left out) -> the row about them.

    >>> fitted([["a", "  b"], ["c", "  d"]], 3, "and {} more".format), fitted([["a", "  b", "  c"]], 2, str)
    (['a', '  b', 'and 1 more'], ['a', '  ...'])
    """
    kept = [*blocks]
    while len(kept) > 1 and sum(map(len, kept)) + (len(kept) < len(blocks)) > room:
        kept.pop()
    more, rows = len(blocks) - len(kept), [row for block in kept for row in block]
    if len(rows) > room - bool(more):
        rows[room - bool(more) - 1 :] = ["  ..."]
    return [*rows, *[left(more)] * bool(more)]


def install_command(extra: str = "", package: str = "mha-parity") -> str:
    """Return the pip command that installs a package with an extra, from the clone or wheel that it came from, if any.

    >>> install_command("torch", "no-such-package")
    "pip install 'no-such-package[torch]'"
    """
    import json
    from importlib.metadata import distributions
    from pathlib import Path
    from urllib.parse import unquote

    clone = Path(__file__).parent.parent
    source = str(clone) if package == "mha-parity" and (clone / "pyproject.toml").is_file() else package
    for one in distributions(name=package):  # the current folder may have one that was only built
        try:
            came_from = json.loads(one.read_text("direct_url.json") or "{}")["url"]
        except (ValueError, LookupError):  # it came from an index
            continue
        source = shown(unquote(came_from.removeprefix("file://"))) if came_from.startswith("file://") else source
        break
    named = f"{source}[{extra}]" if extra else source
    return f"pip install {shlex.quote(named)}"


def one_line(error: BaseException, *, whole: bool = False) -> str:
    r"""Return the type of an error and the first line of its message: printable, not too long, and without colours.

    If the first line ends with a colon, the second line is added. A second line that has ": " is returned alone.
    Numbers of arrays become "...". PyTorch's and Keras' long sentences on weights of another shape are shortened.

    `whole`: whether to join all lines of the message, up to the longest text that is allowed.

    >>> one_line(ValueError("no such axis\nand a long explanation")), one_line(AssertionError())
    ('ValueError: no such axis', 'AssertionError')
    >>> one_line(ValueError("\x1b[1mno such axis\x1b[0m:\n3"), whole=True)
    'ValueError: no such axis: 3'
    >>> one_line(RuntimeError("Error(s) in loading state_dict for Layer:\n    Missing key(s): 'a.bias'.\n    Size: 3"))
    "RuntimeError: Missing key(s): 'a.bias'."
    >>> sizes = "with shape torch.Size([3, 2]) from checkpoint, the shape in current model is torch.Size([2, 3])."
    >>> one_line(RuntimeError(f"size mismatch for a.weight: copying a param {sizes}"))
    'RuntimeError: size mismatch: a.weight is (2, 3) in the layer, and is given (3, 2)'
    >>> head = "Exception encountered when calling L.call().\n\n\x1b[1m{{function_node __wrapped__AddV2_device_/CPU:0}}"
    >>> tail = "[Op:AddV2] name: \x1b[0m\n\nArguments received by L.call():\n x=3"
    >>> one_line(ValueError(f"{head} Incompatible shapes {tail}"))
    'ValueError: Incompatible shapes'
    >>> one_line(ValueError("shape=(2, 6), value=[[1. 2. 3. 4. 5.]\n [-6e-05 7. 8. 9. 10.]], expected (3, 6)"))
    'ValueError: shape=(2, 6), value=[[...]], expected (3, 6)'
    """
    if isinstance(error, ErrorElsewhere):
        return shown(str(error), LONGEST_REASON)
    try:
        said = "".join((str(error), ""))  # a str, and no subclass with methods of its own
    except (Exception, SystemExit) as failure:  # an error of somebody's own may fail even there
        said = f"(it can't say what it is: its __str__ raised {_name_of(failure)})"
    said = ARRAYS.sub("...", HEADS.sub("", COLOURS.sub("", said[: 2 * LONGEST_MESSAGE])))
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if not whole and len(lines) > 1 and lines[0].startswith("Exception encountered when calling "):  # Keras' own head
        lines = lines[1:]
    if not whole and len(lines) > 1 and lines[0].endswith(":"):
        lines = lines[1:2] if ": " in lines[1] else [" ".join(lines[:2])]
    text = " ".join(lines if whole else lines[:1])
    for sentence in OTHER_SIZE:
        text = re.sub(sentence, r"size mismatch: \g<name> is (\g<own>) in the layer, and is given (\g<given>)", text)
    name = _name_of(error)
    return f"{name}: {shown(text, LONGEST_REASON)}" if text else name


class SpecError(ValueError):
    r"""An error: a request that the definition of multi-head attention does not allow.

    The message names the value, the rule and the choices. It is printable and at most LONGEST_MESSAGE characters long.
    The error is raised before any arithmetic.

    >>> str(SpecError("no layer is called \x1b[31m"))
    'no layer is called \\x1b[31m'
    """

    def __init__(self, message: object = "") -> None:
        # Line ends stay: some messages are lists. What comes from outside is put in by `shown` or as a repr.
        lines = _cut(str(message), LONGEST_MESSAGE).split("\n")
        super().__init__("\n".join(shown(line, LONGEST_MESSAGE) for line in lines))


class BackendError(RuntimeError):
    """An error: a backend is unknown, not installed, broken, or unable to do what is requested."""


class ErrorElsewhere(BackendError):
    """A stand-in for an exception of another process. Its message is that exception's `one_line`.

    >>> one_line(ErrorElsewhere("KeyError: 'a'"))
    "KeyError: 'a'"
    """


class BackendNotInstalled(BackendError):
    """An error: a backend's framework is not installed; the message has the command that installs it."""


def _name_of(error: BaseException) -> str:
    """The name of an error's class, which its metaclass can't change."""
    return shown(type.__dict__["__name__"].__get__(type(error)))


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    mark = " ... "
    kept = longest - len(mark)
    head, tail = text[: kept - kept // 2], text[len(text) - kept // 2 :]
    near = min(LONGEST_WORD, kept // 4)  # a word that is no longer is left out whole
    if " " in head[-near:]:
        head = head if text[len(head)] == " " else head.rpartition(" ")[0]
    if " " in tail[:near]:
        tail = tail if text[-len(tail) - 1] == " " else tail.partition(" ")[2]
    return head.rstrip(" ") + mark + tail.lstrip(" ")
