"""Result: the outcome of one case on one subject."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from conformance.judging.compare import Mismatch

Status = Literal["equal", "deviates", "different", "failed", "unsupported"]
"""Equal to the reference; different as the table of deviations lists it; different; no answer; or not expressible."""


@dataclass(frozen=True)
class Result:
    """The outcome of one case on one subject (a tested layer).

    Attributes:
        ratios: stage, or "gradients.NAME" -> largest ratio of error to allowed error; at most 1 if the array is right.
        recorded: for trained weights, stage -> worst absolute difference from the original implementation's recording.
        mismatches: one for every array that differs.
        message: one line for a subject that failed to run, can't express the case, or deviates as listed; else "".
        judged: the stages and "gradients.NAME" that the subject returned, which were compared.
        gradients_asked: whether the case asks for gradients.
        selector: the options of `mha check` that choose the subject.
        deviations: the ids of the known deviations that occurred.
        gone: the ids of known deviations that are listed for this case and did not occur.
        kept: a sentence on what the layer wrongly carries over from call to call; "" if nothing, or for a single call.
        left_out: for a sequence of calls, reason -> the calls, in words, that can't be expressed for that reason.
        in_float64: the names of arrays that a user's code gave in float64 though the run has another dtype.
    """

    case: str
    subject: str
    dtype: str
    device: str
    status: Status
    ratios: Mapping[str, float] = field(default_factory=dict)
    recorded: Mapping[str, float] = field(default_factory=dict)
    mismatches: tuple[Mismatch, ...] = ()
    message: str = ""
    seconds: float = 0.0
    judged: tuple[str, ...] = ()
    gradients_asked: bool = False
    selector: str = ""
    deviations: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    kept: str = ""
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    in_float64: tuple[str, ...] = ()

    @property
    def rerun(self) -> str:
        """Return the command that runs this case alone again."""
        device = "" if self.device == "cpu" else f" --device {self.device}"
        selector = self.selector or f"--backend {self.subject}{device}"
        if (
            late := re.search(r"no answer within ([\d.e+]+) s", self.message)
        ) is not None:  # the same limit shows no more
            longer = f"--time-limit {10.0 * float(late[1]):g}"
            selector = re.sub(r" --time-limit \S+|$", f" {longer}", selector, count=1)
        if self.case.startswith("onnx:"):  # its vectors have a dtype of their own
            return f"mha check --suite onnx {selector} --case {shlex.quote(self.case.partition('/')[0])}"
        return f"mha check {selector} --case {shlex.quote(self.case)} --dtype {self.dtype}"

    @property
    def stale(self) -> bool:
        """Return whether each mismatch is a listed deviation that did not occur, so that only the list is wrong."""
        return 0 < len(self.gone) == len(self.mismatches)

    @property
    def wrong_at_once(self) -> bool:
        """Return whether the first call's answer was wrong; a known deviation that did not occur does not count."""
        return not self.stale and any(not mismatch.call for mismatch in self.mismatches)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values, and `rerun`."""
        return {**asdict(self), "rerun": self.rerun}
