"""What is wrong with a text that is no JSON, in RapidJSON's words."""

import http.client
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.errors import EngineError
from engines.host.rest.rapidjson_errors import fault_of
from engines.host.rest.triton_json import read_json

MEMBER = "Missing a comma or '}' after an object member."
ELEMENT = "Missing a comma or ']' after an array element."
NAME = "Missing a name for object member."
ROOT = "The document root must not be followed by other values."
VALUE = "Invalid value."
ESCAPE = "Invalid escape character in string."
HEX = "Incorrect hex digit after \\u escape in string."
SURROGATE = "The surrogate pair in string is invalid."
QUOTE = "Missing a closing quotation mark in string."

FAULTS = {
    b"  ": ("The document is empty.", 2),
    b"x": (VALUE, 0),
    b"}": (VALUE, 0),
    b":": (VALUE, 0),
    b"nul": (VALUE, 3),
    b"truex": (ROOT, 4),
    b"{}x": (ROOT, 2),
    b"{} {}": (ROOT, 3),
    b"[1]]": (ROOT, 3),
    b"{": (NAME, 1),
    b"{not": (NAME, 1),
    b"{1:2}": (NAME, 1),
    b'{"a":1,}': (NAME, 7),
    b'{"a"': ("Missing a colon after a name of object member.", 4),
    b'{"a" 1}': ("Missing a colon after a name of object member.", 5),
    b'{"a":}': (VALUE, 5),
    b'{"a":1': (MEMBER, 6),
    b'{"a":1 "b"}': (MEMBER, 7),
    b'{"a":01}': (MEMBER, 6),
    b"[": (VALUE, 1),
    b"[,]": (VALUE, 1),
    b"[1,]": (VALUE, 3),
    b"[1": (ELEMENT, 2),
    b"[1 2]": (ELEMENT, 3),
    b"[true false]": (ELEMENT, 6),
    b"[1.5.5]": (ELEMENT, 4),
    b'{"a":{"b":[}}': (VALUE, 11),
    b'{"a":nulx}': (VALUE, 8),
    b'{"a":+1}': (VALUE, 5),
    b'{"a":-}': (VALUE, 6),
    b"[--1]": (VALUE, 2),
    b'{"a":.5}': (VALUE, 5),
    b'{"a":1.}': ("Miss fraction part in number.", 7),
    b'{"a":1e+}': ("Miss exponent in number.", 8),
    b'{"a":1e999}': ("Number too big to be stored in double.", 5),
    b'{"a":NaX}': (VALUE, 7),
    b'{"a":Infx}': (MEMBER, 8),
    b'{"a":Infi}': (VALUE, 9),
    b'"abc': (QUOTE, 4),
    b'{"a":"abc': (QUOTE, 9),
    b'{"a":"a\nb"}': (ESCAPE, 7),
    b'{"a":"\\x"}': (ESCAPE, 6),
    b'{"a":"\\u12g4"}': (HEX, 6),
    b'{"a":"\\u12"}': (HEX, 6),
    b'{"a":"\\ud800"}': (SURROGATE, 6),
    b'{"a":"\\ud800\\u0041"}': (SURROGATE, 6),
}


@pytest.mark.parametrize("text", FAULTS)
def test_faults_and_where_they_are(text):
    """RapidJSON's sentence, and the byte where it stops reading."""
    fault, at = FAULTS[text]
    assert fault_of(text) == f"failed to parse the request JSON buffer: {fault} at {at}"


@pytest.mark.triton
def test_triton_says_the_same(triton):
    """Of every text in the table, by an endpoint that reads JSON before all else."""
    connection = http.client.HTTPConnection("127.0.0.1", triton.http_port, timeout=10)
    told = {}
    for text in FAULTS:
        connection.request("POST", "/v2/repository/index", text)
        response = connection.getresponse()
        told[text] = (response.status, json.loads(response.read()).get("error"))
    connection.close()
    assert told == {text: (500, fault_of(text)) for text in FAULTS}


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet='{}[],:" \\utrfnalse0123456789.eE+-NaInf', max_size=24))
def test_what_python_reads_has_no_fault(text):
    """And what has one is not read."""
    body = text.encode()
    try:
        read_json(body)
    except EngineError as error:
        assert error.message.startswith("failed to parse the request JSON buffer: ")
    else:
        assert "Unspecific" in fault_of(body)


@pytest.mark.parametrize("text", [b"[" * 1_000_000, b'["' + b"\\n" * 1_000_000 + b"x", b"[tru" + b" " * 1_000_000])
def test_a_long_text_is_not_walked_to_its_end(text):
    """The host serves others: what is wrong far behind is told as something, what is wrong in front as what it is."""
    told = fault_of(text).removeprefix("failed to parse the request JSON buffer: ")
    assert told == ("Invalid value. at 4" if b"tru" in text else f"Unspecific syntax error. at {len(text)}")
