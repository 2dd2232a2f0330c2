"""What frameworks log while they are imported is not shown; what a subject prints is."""

import os

from conformance.subjects.quiet import pass_on


def test_what_tensorflow_logs_is_no_part_of_what_is_printed(capfd):
    said = (
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
        "I0000 00:00:1795920003.299030    9264 port.cc:153] oneDNN custom operations are on.\n"
    )
    pipe, writing = os.pipe()
    os.write(writing, f"{said}mine: 3 keys\nI0000 is mine\n".encode())
    os.close(writing)
    pass_on(pipe, "quiet-test").join(10)
    assert capfd.readouterr().err == "mine: 3 keys\nI0000 is mine\n"


def test_a_warning_is_shown_once_whatever_its_numbers(capfd):
    """Keras warns of each shape anew, in each of the processes of a subject."""
    said = "lib/nn.py:959: UserWarning: the axis has size 1, of shape (2, {}).\n  warnings.warn(\n"
    for sizes in ((3, 4), (5,)):
        pipe, writing = os.pipe()
        os.write(writing, "".join(map(said.format, sizes)).encode() + b"mine\n")
        os.close(writing)
        pass_on(pipe, "warned-test").join(10)
    assert capfd.readouterr().err == said.format(3) + "mine\nmine\n"


def test_a_warning_of_an_installed_package_is_not_shown(capfd):
    """Keras warns of what cases ask for, such as a softmax over one key; a warning of the user's own is shown."""
    pipe, writing = os.pipe()
    line = "{}: UserWarning: the axis has size 1.\n  warnings.warn(\n"
    own = line.format("/home/me/mine.py:7").replace("has", "in site-packages has")
    os.write(writing, f"{line.format('/env/lib/site-packages/keras/nn.py:9')}{own}".encode())
    os.close(writing)
    pass_on(pipe, "installed-test").join(10)
    assert capfd.readouterr().err == own
