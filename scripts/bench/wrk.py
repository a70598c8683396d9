"""Load from wrk if it is installed: it costs a third of the load generator here, so it can saturate faster proxies.

On two cores the generator and the upstream share one core and the proxy has the other, so a cheap generator is needed
for requests/s to be the proxy's figure. The requests are the same bytes; the answers are checked by status and by total
size.
"""

import json
import math
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.load import LoadSpec
from bench.messages import EXCHANGES, Exchange
from bench.processes import BenchError, group_cpu_seconds
from bench.window import LoadResult, run_program

SCRIPT = """
local before, after, run, serial, right = {before}, {after}, {run}, 0, {right}
local whole = before .. after
local fixed = function() return whole end
local unique = function()
  serial = serial + 1
  local mark = run .. string.format("%08x", serial)
  local trace = mark .. mark .. "-" .. mark
  return before .. "x-request-id: " .. mark .. "\\r\\ntraceparent: 00-" .. trace .. "-01\\r\\n" .. after
end
request = {kind}
wrong = 0
if right then
  response = function(status, headers, body)
    if body ~= right then wrong = wrong + 1 end
  end
end
local threads = {{}}
setup = function(thread) table.insert(threads, thread) end
done = function(summary, latency)
  local errors, wrong = summary.errors, 0
  for _, thread in ipairs(threads) do wrong = wrong + thread:get("wrong") end
  io.write(string.format(
    'RESULT {{"requests":%d,"microseconds":%d,"bytes":%d,"refused":%d,"wrong":%d,' ..
    '"broken":%d,"p50_us":%d,"p99_us":%d}}\\n',
    summary.requests, summary.duration, summary.bytes, errors.status, wrong,
    errors.connect + errors.read + errors.write + errors.timeout, latency:percentile(50), latency:percentile(99)))
end
"""


def wrk_path() -> str | None:
    return shutil.which("wrk")


def wrk_version() -> str | None:
    if not (path := wrk_path()):
        return None
    first_line = subprocess.run([path, "-v"], capture_output=True, text=True, check=False).stdout.splitlines()[:1]
    return " ".join("".join(first_line).split()[:2])


def script(exchange: Exchange, unique_heads: bool, right: bytes | None) -> str:
    before, after = exchange.parts()
    return SCRIPT.format(
        # A JSON string of plain ASCII text is a Lua string too.
        before=json.dumps(before.decode("ascii")),
        after=json.dumps(after.decode("ascii")),
        run=json.dumps(secrets.token_hex(4)),
        right="nil" if right is None else json.dumps(right.decode("ascii")),
        kind="unique" if unique_heads else "fixed",
    )


def run_wrk(spec: LoadSpec, cores: Sequence[int] | None) -> LoadResult:
    return ask_by_wrk(EXCHANGES[spec.exchange], spec, cores)


def ask_by_wrk(
    exchange: Exchange, spec: LoadSpec, cores: Sequence[int] | None, right: bytes | None = None
) -> LoadResult:
    """Run wrk with one thread. Its CPU window is the whole run, including the time to open the connections.

    Each answer's body must be `right`, if given.
    """
    seconds = max(1, math.ceil(spec.seconds))  # wrk counts whole seconds
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(script(exchange, spec.unique_heads, right))
        file.flush()
        argv = [wrk_path() or "wrk", "-t1", f"-c{spec.connections}", f"-d{seconds}s", "-s", str(Path(file.name))]
        cpu = group_cpu_seconds(spec.groups)
        done = run_program([*argv, f"http://127.0.0.1:{spec.port}/"], seconds, cores)
        cpu_after = group_cpu_seconds(spec.groups)
    found = re.search(r"RESULT (\{.*\})", done.stdout)
    if done.returncode or not found:
        raise BenchError(f"wrk ended with status {done.returncode}: {done.stdout}{done.stderr}")
    seen = json.loads(found[1])
    if seen["refused"] or seen["broken"] or not seen["requests"]:
        raise BenchError(f"wrk saw {seen['refused']} answers other than 200 and {seen['broken']} broken connections")
    if seen["wrong"]:
        raise BenchError(f"wrk saw {seen['wrong']} answers whose body is not the right one")
    if seen["bytes"] < seen["requests"] * (exchange.answer_bytes or 0):
        raise BenchError(f"wrk read {seen['bytes']} bytes in {seen['requests']} answers: some were cut short")
    return LoadResult(
        units=seen["requests"],
        seconds=seen["microseconds"] / 1e6,
        p50_us=seen["p50_us"],
        p99_us=seen["p99_us"],
        group_cpu_seconds={name: cpu_after[name] - cpu[name] for name in cpu},
        loader_cpu_seconds=None,
    )
