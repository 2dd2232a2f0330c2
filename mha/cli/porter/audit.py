"""`mha audit`: which bugs a comparison would let pass on recorded calls."""

from pathlib import Path

from mha.cli import options
from mha.cli.common import consoles, finish, say, says, write_asked
from mha.cli.options import Options, option


class AuditOptions(Options):
    """The argument and options of `mha audit`."""

    file: Path = options.path_argument(metavar="RECORDING")
    atol: float | None = option("--atol", type=float, help="The absolute tolerance of numpy.allclose.")
    rtol: float | None = option("--rtol", type=float, help="With --atol: the relative tolerance. Default: 0.")
    cosine: float | None = option("--cosine", type=float, help="The least cosine of two outputs, each as one vector.")
    kl: float | None = option(
        "--kl", type=float, help="The largest mean divergence of the softmax of each row of two outputs, in nats."
    )
    patterns: tuple[str, ...] = options.calls()
    time_limit: float = options.time_limit("each of the three searches", of="recording")
    json_path: Path | None = options.json_file()


@options.command(AuditOptions, "mha audit calls.safetensors --atol 1e-3")
def audit(asked: AuditOptions) -> None:
    """Say which known bugs (`mha bugs`) a comparison would miss on the calls in RECORDING, a file from mha.capture.

    The reference is run with each bug in it. Its output is compared with the right one by --atol, --cosine or --kl. A
    bug is missed if its output is accepted in every call. Bugs that the computed bounds (mha.tolerance) miss too are
    listed separately.

    Exit status: 0 done, whatever is missed; 2 could not run.
    """
    from mha.recordings.recording import Recording
    from mha.recordings.replay import selected
    from mha.tolerances.audit import audit as run
    from mha.tolerances.audit import chosen

    comparison = chosen(asked.atol, asked.rtol, asked.cosine, asked.kl)
    console, errors = consoles()
    recording = Recording.load(asked.file)
    names = selected(recording, asked.patterns or ("*",))
    with errors.status("") as status:
        found = run(recording, comparison, names, seconds=asked.time_limit, progress=says(status))
    say(console, found.text())
    write_asked(asked.json_path, found.to_dict)
    finish(different=False)
