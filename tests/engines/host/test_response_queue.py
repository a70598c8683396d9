"""The queue of a call's responses."""

import asyncio

import pytest

from engines.core.messages import InferRequest, InferResponse, TensorData
from engines.host.exchange import Exchange
from engines.host.response_queue import ResponseQueue


def response(num_bytes):
    return InferResponse((TensorData("x", "UINT8", (num_bytes,), bytes(num_bytes)),))


def with_answers(work, max_bytes=1000):
    async def run():
        exchange = Exchange(None, "POST", "/", {})
        answers = ResponseQueue(exchange, InferRequest("m"), max_bytes)
        await asyncio.wait_for(work(answers, answers.call, exchange), 120)

    asyncio.run(run())


def test_answers_come_in_their_order():
    """Queued responses, awaited ones, and the end."""

    async def work(answers, call, exchange):
        call.respond(response(1), is_final=False)
        assert (await answers.next()).outputs[0].shape == (1,)
        waiting = asyncio.create_task(answers.next())
        await asyncio.sleep(0)
        call.respond(response(2), is_final=False)
        assert (await waiting).outputs[0].shape == (2,)
        call.finish()
        assert await answers.next() is None

    with_answers(work)


@pytest.mark.parametrize("num_read", [0, 3])
def test_what_waits_has_a_limit(num_read):
    """Above the limit the call is cancelled once; earlier responses are delivered and later ones dropped. Responses
    that were read do not count."""

    async def work(answers, call, exchange):
        cancels = []
        call.on_cancel = lambda: cancels.append(1)
        for _ in range(num_read):
            call.respond(response(400), is_final=False)
            await answers.next()
        for _ in range(5):
            call.respond(response(400), is_final=False)
        call.finish()
        seen = 0
        while await answers.next() is not None:
            seen += 1
        assert (seen, cancels) == (3, [1])

    with_answers(work)


def test_a_client_that_leaves_ends_the_wait():
    """When the client disconnects, waiting ends and the call is cancelled."""

    async def work(answers, call, exchange):
        waiting = asyncio.create_task(answers.complete())
        await asyncio.sleep(0)
        exchange.cancel()
        await waiting
        assert (answers.is_gone, call.is_cancelled) == (True, True)
        assert await answers.next() is None

    with_answers(work)
