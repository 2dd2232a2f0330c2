"""Random cases: repeatable, replayable from their id, shrunk to small ones; and they find what is planted."""

import hashlib
import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

from conformance.cases.random import case_from_text, is_case_text, random_cases, shrink
from conformance.runner import run_case
from conformance.subjects.backend import BackendSubject, ReferenceSubject
from conformance.zoo.bug import BuggySubject
from conformance.zoo.registry import all_bugs
from mha.cli.main import main
from mha_core import SpecError

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone


def bug(name):
    return next(bug for bug in all_bugs() if bug.id == name)


def test_the_same_seed_gives_the_same_cases():
    first, again, other = (random_cases(20, seed) for seed in (1, 1, 2))
    assert [case.id for case in first] == [case.id for case in again]
    assert [case.config for case in first] == [case.config for case in again]
    assert [case.config for case in first] != [case.config for case in other]
    assert len({case.config for case in first}) > 15


def test_an_id_alone_rebuilds_its_case():
    for case in random_cases(20, 3):
        assert is_case_text(case.id)
        rebuilt = case_from_text(case.id)
        assert rebuilt.id == case.id
        assert rebuilt.config == case.config
        first, second = case.build().inputs, rebuilt.build().inputs
        np.testing.assert_array_equal(first.values, second.values)
        np.testing.assert_array_equal(first.cotangent, second.cotangent)


def test_the_reference_is_equal_in_random_cases():
    assert {run_case(case, ReferenceSubject()).status for case in random_cases(40, 4)} == {"equal"}


def test_random_cases_use_every_feature():
    cases = random_cases(200, 5)
    assert {case.config.score for case in cases} == {"scaled_dot", "dot", "additive"}
    masks = [case.build().inputs.mask for case in cases]
    for source in ("valid_lens", "allowed", "bias", "window"):
        assert any(getattr(mask, source) is not None for mask in masks), source
    assert any(mask.causal for mask in masks)
    assert any(case.config.num_kv_heads < case.config.num_heads for case in cases)
    assert any(case.build().inputs.dropout_keep is not None for case in cases)


@pytest.mark.nightly("every backend is equal in random cases")
def test_every_backend_is_equal_in_random_cases(backend):
    count = 8 if backend.name == "jax" else 30  # JAX compiles each shape
    subject = BackendSubject(backend, "float64", "cpu")
    results = [run_case(case, subject) for case in random_cases(count, 6)]
    assert [result.rerun for result in results if result.status != "equal"] == []


@pytest.mark.nightly("random cases find bugs", but=("window-ignored",))
@pytest.mark.parametrize("name", ["window-ignored", "groups-tiled", "lens-one-long", "scale-missing"])
def test_a_planted_bug_is_found_and_shrunk(name):
    subject = BuggySubject(bug(name))

    def fails(case):
        return run_case(case, subject).status == "different"

    failing = next((case for case in random_cases(200, 7) if fails(case)), None)
    assert failing is not None
    small = shrink(failing, fails)
    assert fails(small)
    assert sum(small.sizes().values()) <= sum(failing.sizes().values())
    assert fails(case_from_text(small.id))


def test_what_cannot_be_shrunk_stays_as_it_is():
    case = case_from_text('random:{"Lk":3,"Lq":4}')
    assert shrink(case, lambda other: False) is case


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("random:B=2", "is not JSON"),
        ("random:[2]", "must be a JSON object"),
        ('random:{"heads":2}', "'heads' is not asked for"),
        ('random:{"Lk":-1}', "Lk must be one of"),
        ("random-1", "a random case is random-SEED-INDEX or random:{...}"),
    ],
)
def test_a_malformed_text_is_refused(text, message):
    with pytest.raises(SpecError) as error:
        case_from_text(text)
    assert message in str(error.value)


def test_a_negative_seed_is_refused():
    with pytest.raises(SpecError, match="the seed of random cases must be 0 or more"):
        random_cases(1, -1)


def test_a_pattern_that_leaves_no_random_case_is_refused():
    arguments = ["check", "-b", "torch", "-d", "float64", "--random", "3", "--seed", "1", "--case"]
    none = CliRunner().invoke(main, [*arguments, "prime"])
    assert (none.exit_code, none.output) == (
        2,
        "Error: 'prime' is none of the 3 random cases of seed 1: random-1-0 and so on; --case leaves nothing\n",
    )
    some = CliRunner().invoke(main, [*arguments, "random-1-[02]*"])
    assert (some.exit_code, "All 4 results are equal" in some.output) == (0, True), some.output


def test_check_runs_shrinks_and_replays_random_cases(monkeypatch):
    torch_scores = pytest.importorskip("backends.torch.ops.scores")
    arguments = ["check", "-b", "torch", "-d", "float64", "--random", "8", "--seed", "1"]
    equal = CliRunner().invoke(main, arguments)
    assert equal.exit_code == 0, equal.output
    assert "All 16 results are equal" in equal.output
    right = torch_scores.dot_score
    monkeypatch.setattr(torch_scores, "dot_score", lambda queries, keys, scale: right(queries, keys, 2.0 * scale))
    wrong = CliRunner().invoke(main, arguments)
    assert wrong.exit_code == 1
    assert "A small one of the" in wrong.output
    small = re.findall(r"--case '(random:.*?)' --dtype", wrong.output)[-1]
    again = CliRunner().invoke(main, ["check", "-b", "torch", "-d", "float64", "--case", small])
    assert again.exit_code == 1
    assert "different since stage 'scores'" in again.output


OF_OLD_NAMES = "03a5bf13724cf982b7c3924e08b7e4a44a1f4f35952ca9d8ee71c4656b892cf8"
"""Of 60 random cases as they were before there were rotary positions and a query-key norm."""


def test_names_of_random_cases_stay_what_they_were():
    digest = hashlib.sha256()
    for index in range(60):
        problem = case_from_text(f"random-1-{index}").build()
        inputs, mask = problem.inputs, problem.inputs.mask
        arrays = {
            **problem.weights,
            **{name: getattr(inputs, name) for name in ("queries", "keys", "values", "cotangent")},
            **{"bias": mask.bias, "allowed": mask.allowed, "lens": mask.valid_lens, "keep": inputs.dropout_keep},
        }
        sums = {
            name: f"{np.nan_to_num(array, nan=0.0, posinf=0.0, neginf=0.0).sum():.6g}"
            for name, array in arrays.items()
            if array is not None
        }
        digest.update(json.dumps([problem.config.to_dict(), list(problem.sizes[:4]), sums], sort_keys=True).encode())
    assert digest.hexdigest() == OF_OLD_NAMES


def test_random_cases_have_parts_under_names_of_their_own():
    cases = random_cases(120, 9)
    with_parts = [case for case in cases if "-parts" in case.id]
    assert len(with_parts) == 30
    assert not any(case.config.parts for case in cases if "-parts" not in case.id)
    found = [case.config.rotary for case in with_parts if case.config.rotary is not None]
    assert {settings.interleaved for settings in found} == {settings.start == "last" for settings in found} == {0, 1}
    assert any(settings.rule is not None for settings in found)
    assert {case.config.query_key_norm and case.config.query_key_norm.kind for case in with_parts} == {
        *(None, "rms", "layer"),
    }
    calls = [case.build().inputs.rotary for case in with_parts if case.config.rotary is not None]
    assert {given is None or given.has_tables for given in calls} == {True, False}
