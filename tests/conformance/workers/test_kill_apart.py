"""`mha bugs --kill` in worker processes: the table is that of one process."""

import json
from concurrent.futures import Executor, Future

import pytest
from click.testing import CliRunner

from conformance.cases.table import select as select_cases
from conformance.workers import Local, Settings
from conformance.zoo.kill import kill, kill_apart
from conformance.zoo.registry import select as select_bugs
from mha.cli.main import main
from mha_core import BackendError

pytestmark = pytest.mark.same_on_newest  # it is about processes

BUGS = ("scale-given-*", "q-proj-weight-transposed", "mask-*")
CASES = ("prime", "causal", "scale", "ragged-square")


def test_the_table_is_that_of_one_process():
    bugs, cases = select_bugs(BUGS), select_cases(CASES)
    done = []
    with Local(2) as executor:
        apart = kill_apart(bugs, cases, executor, Settings(), progress=lambda case: done.append(case.id))
    here = kill(bugs, cases)
    assert (apart.bugs, apart.cases, apart.dtypes) == (here.bugs, here.cases, here.dtypes)
    # As text, so that the order counts too: it is that of a report.
    assert json.dumps(apart.first_stages) == json.dumps(here.first_stages)
    assert apart.impossible == here.impossible
    assert apart.impossible
    assert any(apart.killers(bug) for bug in bugs)
    assert sorted(done) == sorted(case.id for case in cases)


def test_a_case_that_is_lost_is_no_case_that_kills_nothing():
    class Gone(Executor):
        def submit(self, function, /, *arguments):
            future = Future()
            future.set_exception(ConnectionError("nobody is there"))
            return future

    with pytest.raises(BackendError) as error:
        kill_apart(select_bugs(BUGS), select_cases(("prime",)), Gone(), Settings())
    assert str(error.value) == "case prime could not be run over the bugs: ConnectionError: nobody is there"


def test_the_command_writes_the_same_file(tmp_path):
    texts = []
    for workers in ("0", "2"):
        path = tmp_path / f"{workers}.json"
        options = ["--kill", "-b", "scale-given-*", "-c", "prime", "-c", "scale", "--workers", workers]
        result = CliRunner().invoke(main, ["bugs", *options, "--json", str(path)])
        assert result.exit_code == 0, result.output
        texts.append(path.read_text())
    assert texts[0] == texts[1]
