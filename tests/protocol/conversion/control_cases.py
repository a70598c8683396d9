"""Pairs of equivalent control requests and replies in gRPC and REST."""

import json
from typing import Any

from gateway.protocol.protobuf import message

Fields = dict[str, Any]


def request(rpc: str, **fields: Any) -> bytes:
    return message(f"inference.{rpc}Request")(**fields).SerializeToString(deterministic=True)


def response(rpc: str, **fields: Any) -> bytes:
    return message(f"inference.{rpc}Response")(**fields).SerializeToString(deterministic=True)


def body(value: Any) -> bytes:
    return b"" if value is None else json.dumps(value, separators=(",", ":")).encode()


# One request in both protocols: RPC, fields, HTTP method, target, JSON.
REQUESTS: list[tuple[str, Fields, str, str, Any]] = [
    ("ServerLive", {}, "GET", "/v2/health/live", None),
    ("ServerReady", {}, "GET", "/v2/health/ready", None),
    ("ServerMetadata", {}, "GET", "/v2", None),
    ("ModelReady", {"name": "m"}, "GET", "/v2/models/m/ready", None),
    ("ModelReady", {"name": "m", "version": "2"}, "GET", "/v2/models/m/versions/2/ready", None),
    ("ModelMetadata", {"name": "m"}, "GET", "/v2/models/m", None),
    ("ModelMetadata", {"name": "m", "version": "2"}, "GET", "/v2/models/m/versions/2", None),
    ("ModelMetadata", {"name": "a b/c%?#ü"}, "GET", "/v2/models/a%20b%2Fc%25%3F%23%C3%BC", None),
    ("ModelMetadata", {"name": "org+name:1.0@x"}, "GET", "/v2/models/org+name:1.0@x", None),
    ("ModelMetadata", {"name": "stats", "version": "1"}, "GET", "/v2/models/stats/versions/1", None),
    ("ModelConfig", {"name": "{name}[v]"}, "GET", "/v2/models/%7Bname%7D%5Bv%5D/config", None),
    ("ModelConfig", {"name": "m", "version": "02"}, "GET", "/v2/models/m/versions/02/config", None),
    ("ModelStatistics", {}, "GET", "/v2/models/stats", None),
    ("ModelStatistics", {"name": "m"}, "GET", "/v2/models/m/stats", None),
    ("ModelStatistics", {"name": "stats"}, "GET", "/v2/models/stats/stats", None),
    ("ModelStatistics", {"name": "m", "version": "2"}, "GET", "/v2/models/m/versions/2/stats", None),
    ("RepositoryIndex", {}, "POST", "/v2/repository/index", {"ready": False}),
    ("RepositoryIndex", {"ready": True}, "POST", "/v2/repository/index", {"ready": True}),
    ("RepositoryModelLoad", {"model_name": "m"}, "POST", "/v2/repository/models/m/load", {}),
    ("RepositoryModelLoad", {"model_name": "m", "repository_name": "r"}, "POST", "/v2/repository/r/models/m/load", {}),
    (
        "RepositoryModelLoad",
        {
            "model_name": "m",
            "parameters": {"config": {"string_param": '{"ü":1}'}, "file:1/model.py": {"bytes_param": b"\x00\xff\xfe"}},
        },
        "POST",
        "/v2/repository/models/m/load",
        {"parameters": {"config": '{"ü":1}', "file:1/model.py": "AP/+"}},
    ),
    ("RepositoryModelUnload", {"model_name": "m"}, "POST", "/v2/repository/models/m/unload", {}),
    (
        "RepositoryModelUnload",
        {
            "model_name": "m",
            "parameters": {
                "grace": {"int64_param": -3},
                "reason": {"string_param": "old"},
                "unload_dependents": {"bool_param": True},
            },
        },
        "POST",
        "/v2/repository/models/m/unload",
        {"parameters": {"grace": -3, "reason": "old", "unload_dependents": True}},
    ),
    ("SystemSharedMemoryStatus", {}, "GET", "/v2/systemsharedmemory/status", None),
    ("SystemSharedMemoryStatus", {"name": "r"}, "GET", "/v2/systemsharedmemory/region/r/status", None),
    (
        "SystemSharedMemoryRegister",
        {"name": "r/1", "key": "/k", "offset": 8, "byte_size": (1 << 64) - 1},
        "POST",
        "/v2/systemsharedmemory/region/r%2F1/register",
        {"key": "/k", "offset": 8, "byte_size": (1 << 64) - 1},
    ),
    ("SystemSharedMemoryUnregister", {}, "POST", "/v2/systemsharedmemory/unregister", None),
    ("SystemSharedMemoryUnregister", {"name": "r"}, "POST", "/v2/systemsharedmemory/region/r/unregister", None),
    ("CudaSharedMemoryStatus", {}, "GET", "/v2/cudasharedmemory/status", None),
    ("CudaSharedMemoryStatus", {"name": "r"}, "GET", "/v2/cudasharedmemory/region/r/status", None),
    (
        "CudaSharedMemoryRegister",
        {"name": "r", "raw_handle": b"\xfb\xff", "device_id": 1, "byte_size": 64},
        "POST",
        "/v2/cudasharedmemory/region/r/register",
        {"raw_handle": {"b64": "+/8="}, "device_id": 1, "byte_size": 64},
    ),
    ("CudaSharedMemoryUnregister", {}, "POST", "/v2/cudasharedmemory/unregister", None),
    ("CudaSharedMemoryUnregister", {"name": "r"}, "POST", "/v2/cudasharedmemory/region/r/unregister", None),
    ("TraceSetting", {}, "GET", "/v2/trace/setting", None),
    ("TraceSetting", {"model_name": "m"}, "GET", "/v2/models/m/trace/setting", None),
    (
        "TraceSetting",
        {
            "model_name": "m",
            "settings": {
                "trace_level": {"value": ["TIMESTAMPS", "TENSORS"]},
                "trace_rate": {"value": ["7"]},
                "trace_count": {},
            },
        },
        "POST",
        "/v2/models/m/trace/setting",
        {"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": "7", "trace_count": None},
    ),
    ("TraceSetting", {"settings": {"trace_level": {}}}, "POST", "/v2/trace/setting", {"trace_level": None}),
    ("LogSettings", {}, "GET", "/v2/logging", None),
    (
        "LogSettings",
        {
            "settings": {
                "log_info": {"bool_param": False},
                "log_verbose_level": {"uint32_param": 0},
                "log_format": {"string_param": "ISO8601"},
            }
        },
        "POST",
        "/v2/logging",
        {"log_info": False, "log_verbose_level": 0, "log_format": "ISO8601"},
    ),
]

DURATIONS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
DURATION = {"count": 3, "ns": (1 << 64) - 1}
RESPONSE_DURATIONS = ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")
MODEL_STATISTICS = {
    "name": "m",
    "version": "1",
    "last_inference": 1_795_271_133_710,
    "inference_count": 8,
    "execution_count": 2,
    "inference_stats": dict.fromkeys(DURATIONS, DURATION),
    "response_stats": {"0": dict.fromkeys(RESPONSE_DURATIONS, DURATION)},
    "batch_stats": [{"batch_size": 4, **dict.fromkeys(("compute_input", "compute_infer", "compute_output"), DURATION)}],
    "memory_usage": [{"type": "GPU", "id": 1, "byte_size": 1 << 40}],
}
SYSTEM_REGION = {"name": "r", "key": "/k", "offset": 0, "byte_size": 64}
CUDA_REGION = {"name": "r", "device_id": 0, "byte_size": 64}

# One reply in both protocols: RPC, fields, status, JSON.
REPLIES: list[tuple[str, Fields, int, Any]] = [
    ("ServerLive", {"live": True}, 200, None),
    ("ServerLive", {}, 400, None),
    ("ServerReady", {"ready": True}, 200, None),
    ("ServerReady", {}, 400, None),
    (
        "ServerMetadata",
        {"name": "triton", "version": "2.51.0", "extensions": ["a", "b(c)"]},
        200,
        {"name": "triton", "version": "2.51.0", "extensions": ["a", "b(c)"]},
    ),
    ("ModelReady", {"ready": True}, 200, None),
    ("ModelReady", {}, 400, {"error": "Model version not ready"}),
    (
        "ModelMetadata",
        {
            "name": "m",
            "versions": ["1", "2"],
            "platform": "python",
            "inputs": [{"name": "a", "datatype": "INT32", "shape": [-1, 1 << 40]}],
        },
        200,
        {
            "name": "m",
            "versions": ["1", "2"],
            "platform": "python",
            "inputs": [{"name": "a", "datatype": "INT32", "shape": [-1, 1 << 40]}],
            "outputs": [],
        },
    ),
    ("ModelStatistics", {}, 200, {"model_stats": []}),
    ("ModelStatistics", {"model_stats": [MODEL_STATISTICS]}, 200, {"model_stats": [MODEL_STATISTICS]}),
    ("RepositoryIndex", {}, 200, []),
    (
        "RepositoryIndex",
        {"models": [{"name": "m", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}, {"name": "never"}]},
        200,
        [{"name": "m", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}, {"name": "never"}],
    ),
    ("RepositoryModelLoad", {}, 200, None),
    ("RepositoryModelUnload", {}, 200, None),
    ("SystemSharedMemoryStatus", {}, 200, []),
    ("SystemSharedMemoryStatus", {"regions": {"r": SYSTEM_REGION}}, 200, [SYSTEM_REGION]),
    ("SystemSharedMemoryRegister", {}, 200, None),
    ("SystemSharedMemoryUnregister", {}, 200, None),
    ("CudaSharedMemoryStatus", {"regions": {"r": CUDA_REGION}}, 200, [CUDA_REGION]),
    ("CudaSharedMemoryRegister", {}, 200, None),
    ("CudaSharedMemoryUnregister", {}, 200, None),
    (
        "TraceSetting",
        {
            "settings": {
                "trace_mode": {"value": ["triton"]},
                "trace_file": {"value": [""]},
                "trace_rate": {"value": ["1000"]},
                "trace_level": {"value": ["OFF"]},
            }
        },
        200,
        {"trace_level": ["OFF"], "trace_rate": "1000", "trace_file": "", "trace_mode": "triton"},
    ),
    (
        "LogSettings",
        {
            "settings": {
                "log_verbose_level": {"uint32_param": 0},
                "log_info": {"bool_param": False},
                "log_file": {"string_param": ""},
            }
        },
        200,
        {"log_file": "", "log_info": False, "log_verbose_level": 0},
    ),
]
