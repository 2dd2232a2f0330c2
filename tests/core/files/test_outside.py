"""What comes from outside: texts in JSON and TOML, names and messages, the headers of safetensors files."""

import json
import re
import struct

import numpy as np
import pytest
from safetensors.numpy import save_file

from mha_core import AttentionConfig, SpecError, init_weights, load_weights, save_weights
from mha_core.errors import LONGEST_MESSAGE, one_line, shown
from mha_core.files.outside import parse_json, parse_toml
from mha_core.files.tensorfile import SEAL, read_header, read_tensors, to_sealed

CONFIG = AttentionConfig(12, 3, head_dim=5, bias={"v_proj": True}, scale=0.25)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "it is nested deeper than 64"),
        ("[" * 65 + "]" * 65, "is nested deeper than 64"),
        ("9" * 5000, "is beyond the range of integers, 64 bits"),
        (str(2**63), "is beyond the range of integers, 64 bits"),
        ("1e400", "1e400 is beyond the range of numbers"),
        ('{"scale": NaN}', "NaN is no number in JSON"),
        ('{"a": {"heads": 2, "heads": 4}}', "'heads' stands there twice"),
        ("{", "is not JSON: JSONDecodeError"),
        (b"\xff\xfe\x00", "is not JSON: "),
    ],
    ids=["deep", "65", "long", "65 bits", "large", "NaN", "twice", "cut", "bytes"],
)
def test_json_that_can_t_be_trusted_is_refused_in_one_line(text, message):
    with pytest.raises(SpecError) as caught:
        parse_json(text, what="config.json")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_json_that_can_be_trusted_is_read():
    found = {"a": [1, -2, 0.5, None, True, "x", {}], "largest": 2**63 - 1}
    assert parse_json(json.dumps(found), what="x") == found
    assert parse_json("[" * 64 + "1" + "]" * 64, what="x")


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 100_000, "a = " + "9" * 5000, "a = 0x" + "f" * 5000, "a = 1e400", "a = 1\na = 2", "a = inf"]
)
def test_toml_likewise(text):
    with pytest.raises(SpecError, match="mine.toml") as caught:
        parse_toml(text, what="mine.toml")
    assert len(str(caught.value)) < 300


def test_messages_are_bounded_and_printable():
    assert shown("a\x1b[31m\u202eb\ud800\n") == "a\\x1b[31m\\u202eb\\ud800\\n"
    assert len(shown("x" * 10**6)) == 120
    assert len(shown("\n" * 10**6)) == 120
    message = str(SpecError("y" * 10**6 + "\x1b"))
    assert (len(message), message.isprintable()) == (LONGEST_MESSAGE, True)

    class Odd(Exception):
        def __str__(self):
            raise RuntimeError

    assert one_line(Odd()) == "Odd: (it can't say what it is: its __str__ raised RuntimeError)"
    assert one_line(ValueError("\n  \n first \n second")) == "ValueError: first"


def header_of(path):
    data = path.read_bytes()
    return data[8 : 8 + int.from_bytes(data[:8], "little")]


def with_header(path, header):
    data = path.read_bytes()
    numbers = data[8 + int.from_bytes(data[:8], "little") :]
    path.write_bytes(struct.pack("<Q", len(header)) + header + numbers)


def test_a_changed_config_in_a_file_of_ours_is_refused(tmp_path):
    path = tmp_path / "layer.safetensors"
    save_weights(path, CONFIG, init_weights(CONFIG, 0))
    header = header_of(path)
    for old, new in ((b"0.25", b"0.26"), (b'q_proj.weight":{', b'k_proj.weight":{'), (b"mha_config", b"mha_c0nfig")):
        assert old in header
        with_header(path, header.replace(old, new, 1))
        with pytest.raises(SpecError):
            load_weights(path)
    with_header(path, header.replace(b"q_proj.weight", b"\0").replace(b"k_proj.weight", b"q_proj.weight"))
    with pytest.raises(SpecError):
        load_weights(path)
    with_header(path, header)
    assert load_weights(path)[0] == CONFIG


def test_the_same_weights_make_the_same_file(tmp_path):
    for name in "ab":
        save_weights(tmp_path / name, CONFIG, init_weights(CONFIG, 0))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert list(read_header(tmp_path / "a").metadata) == ["mha_config", SEAL]


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
         "'a' stands there twice"),
        (b'{"\\u001b[31m":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', "must be printable"),
        (b'{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}', "is not a whole safetensors file"),
        (b'{"__metadata__":{"x":1},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', "metadata must be texts"),
        (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":' + b'{"x":' * 200, "is not JSON"),
    ],
    ids=["twice", "unprintable", "shape", "metadata", "deep"],
)  # fmt: skip
def test_headers_that_can_t_be_trusted_are_refused(header, message, tmp_path):
    path = tmp_path / "file.safetensors"
    save_file({"a": np.ones(2, np.float32)}, path)
    with_header(path, header)
    with pytest.raises(SpecError, match="is not a whole safetensors file|must be printable") as caught:
        read_tensors(path)
    assert message in str(caught.value)


def test_an_integer_that_no_float_holds_is_refused():
    with pytest.raises(SpecError, match="scale must be a finite number. Got an integer beyond the range of floats"):
        AttentionConfig.from_dict({"embed_dim": 12, "num_heads": 3, "scale": 10**400})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"PK\x03\x04" + b"\xff" * 40, "its first bytes are those of: zip archive"),
        (b"import numpy as np\n", "its first bytes are those of: a text"),
        (b"\xff" * 60, "its header ends beyond it"),
    ],
)
def test_a_file_of_another_kind_is_said_to_be_that(content, said, tmp_path):
    (tmp_path / "one.safetensors").write_bytes(content)
    with pytest.raises(SpecError, match=re.escape(said)):
        read_header(tmp_path / "one.safetensors")


def test_a_file_that_is_cut_off_is_said_to_be_so(tmp_path):
    whole = to_sealed({"x": np.arange(7.0), "y": np.ones((3, 5))}, {})
    (tmp_path / "one.safetensors").write_bytes(whole[:-50])
    with pytest.raises(SpecError, match=f"it is cut off, at {len(whole) - 50:,} of {len(whole):,} bytes"):
        read_header(tmp_path / "one.safetensors")
