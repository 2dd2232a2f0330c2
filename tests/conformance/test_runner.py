"""The runner, and that the suite names the right stage for deliberate mistakes."""

import json
from dataclasses import replace

import numpy as np
import pytest

from conformance.bounds.precision import Precision
from conformance.cases.table import all_cases, select
from conformance.judging.expected import expected
from conformance.runner import run_case, until_interrupted
from conformance.subjects.backend import BackendSubject, ReferenceSubject, paths_to_check
from mha_core import STAGES, Trace
from mha_core.backend import Backend, SoftmaxKernel
from mha_core.call.masks import padding_keys
from mha_core.heads import split_heads
from mha_core.reference import forward
from mha_core.reference import pipeline as reference
from tests.conformance.running import run_all


class Broken(ReferenceSubject):
    """The reference with one forward step replaced."""

    name = "broken"

    def __init__(self, **steps):
        self.forward = {**forward.FORWARD, **steps}

    def prepare(self, config, weights):
        return lambda inputs: reference.run(config, weights, inputs, forward=self.forward)


@pytest.mark.nightly("the reference is equal to itself", every=4)
@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.id)
def test_the_reference_goes_through_the_suite_as_a_subject(case):
    result = run_case(case, ReferenceSubject())
    assert result.status == "equal"
    assert all(distance < 1e-14 for distance in result.recorded.values())


def test_trained_recordings_are_compared():
    results = [run_case(case, ReferenceSubject()) for case in select(("trained-*",))]
    assert all(set(result.recorded) == {"weights", "output"} for result in results)


def split_as_d_h(state):
    projected = forward.project(state, "q_proj", state.inputs.queries)
    batch, length, _ = projected.shape
    return projected.reshape(batch, length, -1, state.config.num_heads).transpose(0, 3, 1, 2)


MISTAKES = {
    "scale left out": ("scores", {"scores": lambda s: forward.scores(s) / s.config.softmax_scale}),
    "heads split as (d, h)": ("queries", {"queries": split_as_d_h}),
    "mask inverted": (
        "weights",
        {
            "allowed": lambda s: ~forward.allowed(s),
            "padding": lambda s: padding_keys(s.inputs.mask, s.sizes),
        },
    ),
    "mask inverted, and padding with it": ("keys", {"allowed": lambda s: ~forward.allowed(s)}),
    "lengths one too long": (
        "keys",
        {
            "allowed": lambda s: np.roll(forward.allowed(s), 1, axis=-1),
            "padding": lambda s: forward.padding(s) & False,
        },
    ),
    "keys where values belong": (
        "values",
        {"values": lambda s: split_heads(forward.project(s, "v_proj", s["key_inputs"]), s.config.num_kv_heads)},
    ),
    "output bias twice": ("output", {"output": lambda s: forward.output(s) + s.parameters["out_proj.bias"]}),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_first_stage_named_is_where_the_mistake_is(name):
    stage, steps = MISTAKES[name]
    result = run_case(select(("ragged-square",))[0], Broken(**steps))
    assert result.status in ("different", "failed")
    if result.status == "different":
        assert result.mismatches[0].stage == stage
        assert result.mismatches[0].index is not None


class Raising(ReferenceSubject):
    name = "raising"

    def prepare(self, config, weights):
        raise RuntimeError("out of luck\nand a long traceback")


def test_a_subject_that_raises_gives_one_line_and_the_rest_still_runs():
    seen = []
    results = list(run_all(select(("prime", "causal")), [Raising(), ReferenceSubject()], seen.append))
    assert [(result.subject, result.status) for result in results] == [
        ("raising", "failed"),
        ("raising", "failed"),
        ("reference", "equal"),
        ("reference", "equal"),
    ]
    assert results[0].message == "RuntimeError: out of luck"
    assert seen == results


def test_results_say_how_to_run_them_again():
    result = run_case(select(("prime",))[0], Raising())
    assert result.rerun == "mha check --backend raising --case prime --dtype float64"


def test_the_reference_runs_once_per_case_and_dtype():
    case = select(("prime",))[0]
    single = Precision.of("float32")
    assert expected(case, single) is expected(case, Precision.of("float32"))
    assert expected(case, single) is not expected(case, Precision.of("float64"))


class OutputOnly(ReferenceSubject):
    """Gives its output and no gradients."""

    name = "output-only"

    def prepare(self, config, weights):
        return lambda inputs: Trace(output=reference.run(config, weights, inputs).output)


def test_results_say_what_was_judged():
    (case,) = select(("prime",))
    everything = run_case(case, ReferenceSubject()).judged
    gradients = {f"gradients.{name}" for name in expected(case, Precision.of("float64")).trace.gradients}
    assert everything[:7] == STAGES
    assert set(everything[7:]) == gradients
    assert run_case(case, OutputOnly()).judged == ("output",)
    wrong = run_case(case, Broken(output=lambda s: forward.output(s) + 1.0))
    assert wrong.judged == everything
    assert json.loads(json.dumps(wrong.to_dict()))["judged"] == list(everything)


class Unable(ReferenceSubject):
    name = "unable"

    def supports(self, config, inputs):
        return "causal masks" if inputs.mask.causal else None


def test_what_a_subject_cannot_express_is_listed_with_its_reason():
    results = {result.case: result for result in run_all(select(("prime", "causal")), [Unable()])}
    assert results["prime"].status == "equal"
    assert (results["causal"].status, results["causal"].message) == ("unsupported", "cannot express: causal masks")
    assert results["causal"].to_dict()["status"] == "unsupported"


class Interrupted(ReferenceSubject):
    name = "interrupted"

    def prepare(self, config, weights):
        if config.head_dim == 1:
            raise KeyboardInterrupt
        return super().prepare(config, weights)


def test_an_interrupt_leaves_what_is_finished():
    finished, interrupted = until_interrupted(run_all(select(("prime", "head-dim-1", "views")), [Interrupted()]))
    assert interrupted
    assert [result.case for result in finished] == ["prime"]
    finished, interrupted = until_interrupted(run_all(select(("prime",)), [Interrupted()]))
    assert not interrupted
    assert len(finished) == 1


class Vandal(ReferenceSubject):
    name = "vandal"

    def prepare(self, config, weights):
        def run(inputs):
            trace = reference.run(config, weights, inputs)
            inputs.keys[...] = 0.0
            return trace

        return run


def test_writing_into_the_inputs_is_a_failure_that_harms_nobody_else():
    results = list(run_all(select(("prime",)), [Vandal(), ReferenceSubject(), Vandal()]))
    assert [result.status for result in results] == ["failed", "equal", "failed"]
    assert results[0].message.startswith("wrote into its inputs: keys, by assignment (test_runner.py:")


def test_backends_say_how_to_run_them_again(backend):
    (case,) = select(("prime",))
    assert run_case(case, BackendSubject(backend, "float32", "cpu")).rerun == (
        f"mha check --backend {backend.name} --case prime --dtype float32"
    )
    elsewhere = BackendSubject(backend, "float32", "gpu:1", "compiled")
    assert elsewhere.selector == f"--backend {backend.name} --path compiled --device gpu:1"
    assert elsewhere.name == f"{backend.name} compiled"
    spaced = replace(run_case(case, ReferenceSubject()), case="B=1 H=2")
    late = replace(spaced, message="no answer within 2 s: it is at mine.py:3", selector="--subject m:f --time-limit 2")
    assert late.rerun.startswith("mha check --subject m:f --time-limit 20 --case ")
    late = replace(late, selector="--subject m:f")
    assert late.rerun.startswith("mha check --subject m:f --time-limit 20 --case ")
    assert spaced.rerun == "mha check --backend reference --case 'B=1 H=2' --dtype float64"


class Fused(Backend):
    """A backend whose fast path has a fused kernel with an online softmax."""

    name = "fused"

    def versions(self):
        return {}

    def devices(self):
        return ("cpu", "gpu:0")

    def dtypes(self, device):
        return ("float32",)

    def paths(self):
        return ("eager", "fast", "blocks")

    def softmax_kernel(self, device, path):
        return SoftmaxKernel(20.0, 3) if (device, path) == ("cpu", "fast") else super().softmax_kernel(device, path)

    def build(self, config, weights, dtype, device, path):
        return lambda inputs: Trace(output=reference.run(config, weights, inputs).output.astype(np.float32))


def test_a_path_is_judged_by_the_kernel_that_it_has():
    usual, fast, elsewhere, blocks = (
        BackendSubject(Fused(), "float32", device, path)
        for device, path in (("cpu", None), ("cpu", "fast"), ("gpu:0", "fast"), ("cpu", "blocks"))
    )
    plain = Precision.of("float32")
    assert usual.precision == elsewhere.precision == blocks.precision == plain
    assert fast.precision == replace(plain, exp_ulps=20.0, key_block=3)
    (case,) = select(("prime",))
    assert (
        expected(case, fast.precision).allowed_error["output"] > expected(case, plain).allowed_error["output"]
    ).all()
    result = run_case(case, fast)
    assert (result.subject, result.status, result.judged) == ("fused fast", "equal", ("output",))
    assert result.rerun == "mha check --backend fused --path fast --case prime --dtype float32"


def test_the_paths_that_are_checked_unless_one_is_asked_for():
    assert paths_to_check(Fused(), None) == (None, "fast")
    assert paths_to_check(Fused(), "blocks") == ("blocks",)


@pytest.mark.parametrize(("key_block", "blocks"), [(None, 1), (512, 1), (7, 1), (6, 2), (1, 7)])
def test_the_blocks_of_an_online_softmax_follow_from_the_keys(key_block, blocks):
    """One block is what a whole row is; with more of them the bounds grow."""
    (case,) = select(("prime",))  # seven keys
    precision = replace(Precision.of("float32"), key_block=key_block)
    assert precision.key_blocks(7) == blocks
    assert precision.key_blocks(0) == 1
    plain, found = (expected(case, p).allowed_error["weights"] for p in (Precision.of("float32"), precision))
    if blocks == 1:
        np.testing.assert_array_equal(found, plain)
    else:
        assert (found > plain).all()
