"""Priorities and times are read of heads and bodies, and no text of a prompt is taken for one."""

import json

import pytest
from tritonclient.grpc import service_pb2

from gateway.protocol.request_urgency import (
    NO_URGENCY,
    Urgency,
    read_seconds,
    urgency_of_generation,
    urgency_of_message,
    urgency_of_v2,
)


def test_v2_names_a_class_by_its_number_and_a_timeout_in_microseconds():
    body = json.dumps({"inputs": [], "parameters": {"priority": 2, "timeout": 1_500_000}}, indent=1).encode()
    assert urgency_of_v2(body) == Urgency(1, queue_seconds=1.5)
    assert urgency_of_v2(b'{"parameters": {"priority": 0}}') == NO_URGENCY, "the default"
    assert urgency_of_v2(b'{"parameters": {"priority": 1.5, "timeout": 2e3}}') == NO_URGENCY


def test_a_message_has_the_same_in_its_parameters():
    message = service_pb2.ModelInferRequest(model_name="m")
    assert urgency_of_message(message.SerializeToString()) == NO_URGENCY
    message.parameters["priority"].uint64_param = 300
    message.parameters["timeout"].int64_param = 250_000
    message.raw_input_contents.append(bytes(1000))
    assert urgency_of_message(message.SerializeToString()) == Urgency(299, queue_seconds=0.25)


@pytest.mark.parametrize(
    ("fields", "below"),
    [({"priority": 2}, 2), ({"priority": -3}, 0), ({"service_tier": "flex"}, -1), ({"service_tier": "auto"}, 0)],
)
def test_generations_ask_for_lower_classes(fields, below):
    body = json.dumps({"model": "m", "messages": [], **fields}).encode()
    assert urgency_of_generation(body) == Urgency(classes_below=below)


def test_a_text_is_not_taken_for_a_name():
    for text in ('{"priority": 5}', '"service_tier": "flex"', '\\"priority": 5'):
        body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
        assert urgency_of_generation(body) == NO_URGENCY
        assert urgency_of_v2(body) == NO_URGENCY


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *[(b"2.5", 2.5), (b"500ms", 0.5), (b" 3 s ", 3.0), (b"2m", 120.0), (b"", 0.0), (b"-1", 0.0), (b"inf", 0.0)],
        *[(b"NOT_GIVEN", 0.0), (b"1e400", 0.0), (b"9" * 30, 0.0)],
    ],
)
def test_times_of_clients(text, seconds):
    assert read_seconds(text) == seconds
