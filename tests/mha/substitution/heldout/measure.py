"""What is said of held-out ports and layers: `python -m tests.mha.substitution.heldout.measure [open|hidden|all]`.

Rows of even number are "open", those of odd number "hidden": these are not looked at while `mha where` is built.
Without a half, both are run, and of the hidden half counts alone are printed. The rows are in four parts:

- faults: ports with one planted fault, by `mha where`; the verdict says whether the module that has it is named;
- ways: right ports written otherwise, by `mha where`, of which none may be called wrong;
- where: relatives of known cases, by `mha where`;
- layers: the same, by `mha check` and `mha diagnose`, each in a process of its own.

What is false in a text is printed beside its verdict. That the rows are what they say, is shown by `check_own`.
"""

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

PACKAGE = "tests.mha.substitution.heldout"
ROOT = Path(__file__).parents[4]
MODELS = ("bert", "gpt", "cross", "vit")
PARAMETERS = "Its parameters are the original's"
HALVES = ("open", "hidden")
LONGEST = 100
"""Seconds that a process may take."""


@dataclass(frozen=True)
class Task:
    """One row, and how it is asked.

    Attributes:
        id: of the row.
        half: "open" or "hidden".
        done: what was done to the port.
        note: what stands above its answer in a kept file.
        answer: gives (text, exit status).
        judge: of these, (verdict, what is named or the row's case, false statements).
    """

    id: str
    half: str
    done: str
    note: str
    answer: Callable
    judge: Callable


def command(*arguments):
    """What the command prints, and its exit status, in this process (its script ends with os._exit)."""

    def leave(code):
        raise SystemExit(code)

    main = next(iter(entry_points(group="console_scripts", name="mha"))).load()
    status, argv, hard = 0, sys.argv, os._exit
    sys.stdout.flush(), sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 1), os.dup2(file.fileno(), 2)
        sys.argv, os._exit = ["mha", *map(str, arguments)], leave
        try:
            main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0 if end.code is None else 2
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            sys.argv, os._exit = argv, hard
            for to, back in zip((1, 2), kept, strict=True):
                os.dup2(back, to), os.close(back)
            file.seek(0)
            text = file.read().decode()
    return text, status


def plain(path):
    """A path as all frameworks have it here: dots, and without the model's own name."""
    path = path.strip().replace("/", ".")
    return "" if path in ("the model", "port") else path.removeprefix("port.")


def named(text):
    """The modules in the line "Wrong: ..."."""
    line = re.search(r"^Wrong: (.*?)\. \d+ of \d+ modules", text, re.M) or re.search(r"^Wrong: (.*?)\.?$", text, re.M)
    if not line:
        return []
    return [plain(n) for n in line.group(1).split(", ") if n != "none"]


def around(module, places, text):
    """Whether a module that is named holds one of `places`, and the text says that its lines may have the fault."""
    head = rf"^{re.escape(module) or 'the model'} \(.*?\) is wrong in its own lines, or in those of (.*?)"
    said = re.search(rf"{head}, which have no original", text, re.M)
    return bool(said) and any(p in [plain(n) for n in said.group(1).split(", ")] for p in places)


def of_fault(row, text, status):
    """The verdict on a planted fault, what is named, and the false statements in the text."""
    found = named(text)
    parts = [(line, *line.partition(" (")) for line in text.splitlines()]
    dotted = "\n".join(plain(a) + " (" + b if ") is wrong" in line else line for line, a, _, b in parts)
    dotted = re.sub(r"^ \(", "the model (", dotted.replace("/", ".").replace("port.", ""), flags=re.M)
    true, parent, also = {plain(n) for n in row.true}, plain(row.parent), {plain(n) for n in row.also}
    false = []
    if status == 0:
        return "equal said", found, ["equal said of a wrong port"]
    if "drops out: record a model in inference" in text and row.fault == "dropout":
        return "right", found, []
    outer = ({n for n in found if around(n, true, dotted)} | ({parent} & set(found))) - true
    others = [n for n in found if n not in true | also | outer]
    if others:
        false.append(f"right modules named: {others}")
    for line in dotted.splitlines():
        head = re.match(r"(.+?) \(.*?\) is wrong", line)
        at = plain(head.group(1)) if head else None
        if head and row.kind == "parameters" and at in true and PARAMETERS in line:
            false.append(f"{at}: {PARAMETERS}")
        called = re.search(r"parameters are (not the original's|others)|in another order", line)
        if head and row.kind != "parameters" and called:
            false.append(f"{at}: parameters called wrong")
        if head and at in outer and true & set(found) and "is wrong in its own lines (" in line:
            false.append(f"{at}: its own lines called wrong")
    if not found:
        verdict = "nothing said"
    elif true <= set(found):
        verdict = "right"
    elif set(found) & (true | also):
        verdict = "right in part" if set(found) & true else "right (what was given less)"
    else:
        verdict = "its parent" if outer else "wrong module"
    return verdict + (", others beside" if others and verdict != "wrong module" else ""), found, false


def of_way(text, status):
    """The same of a right port."""
    found = named(text)
    return "right" if status == 0 else f"exit {status}", found, [f"called wrong: {found}"] if found else []


def of_relative(row, compares, text, status):
    """The same of a relative by `mha where`; `compares` says that it is given two recordings without modules."""
    wanting = [] if status == row.status else [f"exit {status}"]
    if not compares and set(named(text)) != set(row.wrong):
        wanting.append(f"named {named(text)}")
    return "; ".join(wanting + words(row, " ".join(text.split()))) or "right", row.case, []


def of_layer(row, text, status):
    """The same of a relative by `mha check` or `mha diagnose`."""
    one = " ".join(re.sub(rf"(:|^){row.name}\b", "", text, flags=re.M).split())
    wanting = [] if status in row.status else [f"exit {status}"]
    return "; ".join(wanting + words(row, one)) or "right", row.case, []


def words(row, text):
    """Which words a text lacks, or should."""
    lacks = [f"not said: {row.said}"] * (not re.search(row.said, text))
    return lacks + [f"said: {row.unsaid}"] * bool(row.unsaid and re.search(row.unsaid, text))


def where(name, made):
    """What `mha where` says of what `made(model)` gives, with its modules recorded in one call."""
    import mha

    module = importlib.import_module(f"{PACKAGE}.{name}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "port.safetensors"
        try:
            port = made(module)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with mha.capture(port, path, modules=True, overwrite=True):
                    module.call(port)
            return command("where", f"{PACKAGE}.{name}:original", path, "--no-unseen")
        except Exception as error:  # what could not be recorded is a result, too
            return f"{type(error).__name__}: {error}", 2


def relative(row, compares):
    """What `mha where` says of a relative."""
    import mha
    from tests.mha.substitution.heldout import rel_where

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, second = (Path(folder) / f"{n}.safetensors" for n in ("original", "port"))
        if compares:
            original, port, given = rel_where.recorded(row.name)
            for model, path in ((original, first), (port, second)):
                with mha.capture(model, path):
                    model(*given)
            return command("where", first, second, "--no-unseen")
        with mha.capture(port := rel_where.port(row.name), second, modules=True):
            port(rel_where.inputs())
        return command("where", f"{PACKAGE}.rel_where:original", second, "--no-unseen")


def process(arguments):
    """What the command says in a process of its own."""
    call = [str(Path(sys.executable).with_name("mha")), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    try:
        ran = subprocess.run(call, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return f"no answer in {LONGEST} s", 2
    return ran.stdout + ran.stderr, ran.returncode


def faults():
    """Every planted fault."""
    for name in MODELS:
        for i, row in enumerate(importlib.import_module(f"{PACKAGE}.{name}").FAULTS):
            note = f"{row.fault}: {row.done}; true: {row.true}, parent: {row.parent!r}"
            answer = partial(where, name, lambda m, row=row: m.port(row.fault, row.layer))
            yield Task(f"{name}-{i:02d}", HALVES[i % 2], row.done, note, answer, partial(of_fault, row))


def ways():
    """Every right port written otherwise."""
    for name in MODELS:
        for i, row in enumerate(importlib.import_module(f"{PACKAGE}.{name}").WAYS):
            note = f"right: {row.way}: {row.done}"
            answer = partial(where, name, lambda m, row=row: m.port(way=row.way))
            yield Task(f"{name}-way-{i}", HALVES[i % 2], row.done, note, answer, of_way)


def relatives():
    """Relatives of three cases, by `mha where`."""
    from tests.mha.substitution.heldout import rel_where

    for i, row in enumerate(rel_where.RELATIVES):
        compares = row.case == rel_where.TWO
        note = f"{row.case}, {row.name}: {row.done}"
        answer, judge = partial(relative, row, compares), partial(of_relative, row, compares)
        yield Task(f"where-{i:02d}", HALVES[i % 2], row.done, note, answer, judge)


def layers():
    """Relatives of five cases, by `mha check` and `mha diagnose`."""
    from tests.mha.substitution.heldout import rel_layers

    rows = sorted(enumerate(rel_layers.RELATIVES), key=lambda pair: not pair[1].options)  # the short ones first
    for i, row in rows:
        call = [row.command, "--subject", f"{PACKAGE}.rel_layers:{row.name}", *row.options, "--workers", "1"]
        note = f"{row.case}, {row.name}: {row.done}; {' '.join(call)}"
        yield Task(f"layer-{i:02d}", HALVES[i % 2], row.done, note, partial(process, call), partial(of_layer, row))


PARTS = {"faults": faults, "ways": ways, "where": relatives, "layers": layers}


def read(folder, task):
    """A kept answer: (text, exit status)."""
    text, _, status = (folder / f"{task.id}.txt").read_text().partition("\n")[2].rpartition("\n(exit status ")
    return text, int(status.partition(")")[0])


def line(result):
    """One line about a result."""
    false = f" | FALSE: {result['false']}" if result["false"] else ""
    head = f"{result['seconds']:6.0f} s  {result['id']:14} {result['half']:6} {result['verdict']}"
    return f"{head} | {result['about']} | {result['done']}{false}"


def total(part, half, results):
    """One line about all results of a half."""
    own = [result for result in results if result["half"] == half]
    counts = dict(Counter(result["verdict"] for result in own))
    return f"{part} {half} {counts} rows with false statements: {sum(bool(result['false']) for result in own)}"


def main(arguments=None):
    parser = argparse.ArgumentParser(prog=f"python -m {PACKAGE}.measure", description=__doc__.split("\n")[0])
    parser.add_argument("half", nargs="?", choices=(*HALVES, "all"), help="whose answers are printed (default: open)")
    parser.add_argument("--part", action="append", choices=tuple(PARTS), help="this part alone (repeatable)")
    parser.add_argument("--id", action="append", default=[], help="this row alone (repeatable)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write the answers that are printed to this folder")
    parser.add_argument("--judge", type=Path, metavar="FOLDER", help="judge the answers kept there, and run nothing")
    options = parser.parse_args(arguments)
    run = HALVES if options.half in (None, "all") else (options.half,)
    told = ("open",) if options.half is None else run
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    tasks = {part: [task for task in PARTS[part]() if task.half in run] for part in options.part or PARTS}
    known = [task.id for each in tasks.values() for task in each]
    if unknown := sorted(set(options.id) - set(known)):
        raise SystemExit(f"no row {unknown[0]!r} in this half (known: {', '.join(known)})")
    for part, each in tasks.items():
        results = []
        for task in each:
            if (options.id and task.id not in options.id) or (
                options.judge and not (options.judge / f"{task.id}.txt").exists()
            ):
                continue
            start = time.perf_counter()
            text, status = read(options.judge, task) if options.judge else task.answer()
            verdict, about, false = task.judge(text, status)
            result = {"id": task.id, "half": task.half, "verdict": verdict, "about": about, "false": false}
            result |= {"done": task.done, "status": status, "seconds": time.perf_counter() - start}
            results.append(result)
            if task.half not in told:
                continue
            print(line(result), flush=True)
            if options.keep:
                kept = f"# {task.note}\n{text}\n(exit status {status})\n"
                (options.keep / f"{task.id}.txt").write_text(kept)
        if results:
            print(*(total(part, half, results) for half in run), sep="\n", flush=True)
        if options.keep:
            shown = [result for result in results if result["half"] in told]
            (options.keep / f"results-{part}.json").write_text(json.dumps(shown, indent=1))


if __name__ == "__main__":
    main()
