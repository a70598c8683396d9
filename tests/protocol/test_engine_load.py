"""Reading the load that engines report."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.engine_load import Load, read_energy, read_metrics, read_orca

VLLM = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="org/llama{x}"} 3.0
vllm:num_requests_running{engine="1",model_name="org/llama{x}"} 4.0
vllm:num_requests_waiting{engine="0",model_name="a \\"b\\" } c"} 2.0
vllm:num_requests_waiting_by_reason{engine="0"} 9.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:e2e_request_latency_seconds_bucket{le="0.3",model_name="m"} 5.0
"""
SGLANG = b"""\
sglang:num_running_reqs{model_name="m",tp_rank="0"} 12.0
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 1.0
sglang:token_usage{model_name="m",tp_rank="0"} 0.28
"""
LLAMA_CPP = b"""\
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 1
llamacpp:requests_deferred 6
llamacpp:kv_cache_usage_ratio 0.5
"""
TGI = b"""tgi_batch_current_size 8\ntgi_queue_size 0 1700000000000\n"""
TRITON = b"""\
nv_inference_pending_request_count{model="a",version="1"} 3
nv_inference_pending_request_count{model="b",version="1"} 4
nv_inference_count{model="a",version="1"} 100
"""
OURS = (
    TRITON
    + b"""\
pointsman_requests_in_flight{model="a",version="1"} 5
pointsman_requests_in_flight{model="b",version="1"} 4
"""
)

TRTLLM_SERVE = b"""\
trtllm_num_requests_running{model_name="llama"} 4.0
trtllm_num_requests_waiting{model_name="llama"} 3.0
trtllm_num_requests_completed_total{model_name="llama"} 90.0
trtllm_kv_cache_utilization{model_name="llama"} 0.25
"""
TRTLLM_BACKEND = (
    TRITON
    + b"""\
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 6
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 5
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 1
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} 40
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.75
"""
)

METRICS = [
    (VLLM, Load(7, 2, 0.5)),
    (VLLM.replace(b"kv_cache", b"gpu_cache"), Load(7, 2, 0.5)),
    (VLLM.replace(b"\n", b"\r\n"), Load(7, 2, 0.5)),
    (SGLANG, Load(12, 1, 0.28)),
    (LLAMA_CPP, Load(1, 6, 0.5)),
    (TGI, Load(8, 0, None)),
    (TRITON, Load(0, 7, None)),
    (OURS, Load(2, 7, None)),
    (TRTLLM_SERVE, Load(4, 3, 0.25)),
    (TRTLLM_BACKEND, Load(5, 8, 0.75)),
    (b"vllm:num_requests_running 0.0", Load(0, 0, None)),
    (b"vllm:num_requests_running NaN\nvllm:kv_cache_usage_perc +Inf\n", None),
    (b"vllm:num_requests_running -1\n", None),
    (b'vllm:num_requests_running\nvllm:num_requests_waiting{a="\n', None),
    (b"# vllm:num_requests_running 3\nprocess_cpu_seconds_total 1\n", None),
    (b"<html>no metrics here</html>", None),
    (b"", None),
]


@pytest.mark.parametrize("text, load", METRICS)
def test_metrics_tell_the_load(text: bytes, load: Load | None) -> None:
    """Request counts are summed over models and ranks, memory use is averaged, and other metrics are ignored."""
    assert read_metrics(text) == load


ORCA = [
    (b"TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=2.0", Load(0, 2, 0.4)),
    (b'JSON {"named_metrics": {"kv_cache_usage_perc": 0.4, "num_requests_waiting": 2}}', Load(0, 2, 0.4)),
    (
        b"TEXT cpu_utilization=0.3,named_metrics.kv_cache_utilization=0.9,named_metrics.max_token_capacity=9000",
        Load(0, 0, 0.9),
    ),
    (b'{"cpu_utilization": 0.3, "named_metrics": {"num_requests_running": 5}}', Load(5, 0, None)),
    (b'json: {"num_requests_running": 5}', Load(5, 0, None)),
    (b"num_requests_waiting=1,num_requests_running=2", Load(2, 1, None)),
    (b"TEXT cpu_utilization=0.3", None),
    (b"TEXT num_requests_waiting=x", None),
    (b'JSON {"named_metrics": [1]', None),
    (b'JSON {"named_metrics": [1]}', None),
    (b"BIN AAEC", None),
    (b"\xff", None),
    (b"", None),
]


@pytest.mark.parametrize("value, load", ORCA)
def test_orca_tells_the_load(value: bytes, load: Load | None) -> None:
    """The ORCA field is read as text or JSON, with or without its format prefix."""
    assert read_orca(value) == load


@given(st.one_of(st.binary(), st.lists(st.sampled_from([*VLLM.split(), b"{", b"}", b" ", b"\n", b'"'])).map(b"".join)))
def test_nothing_breaks_the_readers(text: bytes) -> None:
    """Any bytes yield a load or None."""
    for found in (read_metrics(text), read_orca(text), read_orca(b"JSON {" + text)):
        assert found is None or found.outstanding >= 0


ENERGY = [
    (b'JSON {"request_cost": {"energy_joules": 2.5}, "named_metrics": {"energy_joules": 9}}', 2.5),
    (b'{"named_metrics": {"energy_joules": 9}}', 9.0),
    (b"TEXT named_metrics.energy_joules=0.25, cpu_utilization=0.5", 0.25),
    (b"energy_joules=3", 3.0),
    (b'JSON {"request_cost": {"energy_joules": "much"}}', None),
    (b'JSON {"request_cost": {"energy_joules": -1}}', None),
    (b"JSON {energy_joules", None),
    (b"TEXT cpu_utilization=0.3", None),
    (b"", None),
]


@pytest.mark.parametrize("value, joules", ENERGY)
def test_orca_tells_the_energy(value: bytes, joules: float | None) -> None:
    """The request's own cost takes precedence over the named metric."""
    assert read_energy(value) == joules


@pytest.mark.parametrize(
    ("lines", "adapters"),
    [
        (
            b'{max_lora="4",running_lora_adapters="sql,chat",waiting_lora_adapters="poems"} 2.0',
            {"sql", "chat", "poems"},
        ),
        (b'{max_lora="4",running_lora_adapters="",waiting_lora_adapters=""} 2.0', set()),
        (  # each set of adapters is a sample of its own, and the latest counts
            b'{running_lora_adapters="new",waiting_lora_adapters=""} 1.7e+09\n'
            b'vllm:lora_requests_info{running_lora_adapters="old",waiting_lora_adapters=""} 1.6e+09',
            {"new"},
        ),
        (b'{running_lora_adapters="' + b"a" * 300 + b',b"} 1', {"b"}),
        (b'{running_lora_adapters="' + b",".join(b"%d" % number for number in range(999)) + b'"} 1', set("0123456789")),
        (b'{not_running_lora_adapters="a"} 1', set()),
        (b'{running_lora_adapters="a"} NaN', set()),
        (b'{running_lora_adapters="a', set()),
    ],
)
def test_vllm_tells_its_adapters(lines: bytes, adapters: set[str]) -> None:
    """vLLM's gauge has the LoRA adapters of running and waiting requests in its labels."""
    load = read_metrics(b"vllm:num_requests_running 1\nvllm:lora_requests_info" + lines + b"\n")
    assert load is not None and load.running == 1
    assert adapters <= load.adapters and len(load.adapters) <= 256
    assert len(adapters) == 10 or load.adapters == adapters
