"""How well known bugs are recognised in other people's code: `python -m tests.conformance.diagnosis.diagnosis_bench`.

Every bug of `bugs_in_other_code` is diagnosed from outputs alone, with stages, and with stages and gradients. What is
said of it is one word: "named", it explains all; "k of n", it explains most cases, and the others are listed;
"closest", it is only listed; "silent", nothing is listed; "wrong", something else is named.
"""

import sys
import time
from collections import Counter
from fnmatch import fnmatchcase

from conformance.cases.table import all_cases
from conformance.diagnosis.diagnose import Runs, diagnose
from mha_core import SpecError
from tests.conformance.diagnosis.bugs_in_other_code import BACKWARD, KNOWN, RELATED, UNKNOWN

CASES = [case for case in all_cases() if not case.expensive]
WAYS = {"outputs": {}, "stages": {"stages": True}, "stages and gradients": {"stages": True, "gradients": True}}
ANSWERS = ("named", "k of n", "closest", "silent", "wrong", "equal")


def answer(subject, runs, cases=CASES):
    """One of ANSWERS, and what was said."""
    try:
        found = diagnose(subject, cases, runs=runs)
    except SpecError as error:
        return "silent", str(error)
    if not found.failing:
        return "equal", ""
    for word, hypotheses in (
        ("named", found.explanations),
        ("k of n", getattr(found, "partly", ())),
        ("closest", found.closest),
    ):
        told = "; ".join(f"{one.name} {one.explained}/{one.total}" for one in hypotheses[:3])
        if any(subject.bug in [bug.id for bug in one.bugs] for one in hypotheses):
            return word, told
        if hypotheses and word != "closest":
            return "wrong", told
    return "silent" if not found.closest else "wrong closest", told


def main(patterns):
    """Print the table; with patterns, of these bugs alone, and what was said of each."""
    groups = {"known": KNOWN, "backward": BACKWARD, "related": RELATED, "unknown": UNKNOWN}
    for way, visible in WAYS.items():
        runs = Runs()
        for group, subjects in groups.items():
            if group == "backward" and "gradients" not in visible:
                continue
            chosen = [one for one in subjects if not patterns or any(fnmatchcase(one.bug, pat) for pat in patterns)]
            start, counts = time.process_time(), Counter()
            for subject in chosen:
                word, told = answer(subject.showing(**visible), runs)
                counts[word] += 1
                style = subject.layer.__mro__[1].__name__
                print(f"  {way:21} {group:8} {subject.bug:32} {style:9} {word:13} {told}", flush=True)
            if chosen:
                spent = time.process_time() - start
                print(f"{way}, {group}, {len(chosen)}: {dict(counts)}; {spent:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
