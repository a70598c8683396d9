"""`httpx.get` and its kin for tests.

They do not load the machine's certificates, which costs 30 ms of CPU a call and slows every poll; they do not read the
environment; and they wait a minute, because the machine may be busy.
"""

import ssl
from functools import partial

import httpx

_CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nobody: for http:// only

get = partial(httpx.get, verify=_CONTEXT, trust_env=False, timeout=120)
post = partial(httpx.post, verify=_CONTEXT, trust_env=False, timeout=120)
patch = partial(httpx.patch, verify=_CONTEXT, trust_env=False, timeout=120)
put = partial(httpx.put, verify=_CONTEXT, trust_env=False, timeout=120)
delete = partial(httpx.delete, verify=_CONTEXT, trust_env=False, timeout=120)
request = partial(httpx.request, verify=_CONTEXT, trust_env=False, timeout=120)
stream = partial(httpx.stream, verify=_CONTEXT, trust_env=False, timeout=120)
