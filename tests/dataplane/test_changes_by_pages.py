"""Web pages may not change what engines serve: their readers' browsers reach the ports of their machines."""

from pathlib import Path

from tests.dataplane.stage import Engine, post, rules, run, stage

CHANGES = [
    "/v2/repository/models/m/load",
    "/v2/repository/models/m/unload",
    "/v2/logging",
    "/v2/trace/setting",
    "/v2/models/m/trace/setting",
    "/v2/systemsharedmemory/region/r/register",
    "/v2/cudasharedmemory/unregister",
]
OF_PAGES = ["Origin: http://a.example", "Origin: null", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-origin"]


def test_a_page_changes_nothing(tmp_path: Path) -> None:
    """With all operations allowed, those that change something are refused where a browser says that a page asks;
    other clients, and a page's inferences, pass. Heads that were seen before do not matter."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            for path in CHANGES:
                for field in ["X-Other: 1", *OF_PAGES, *OF_PAGES]:
                    reply = await it.ask(post(path, b"{}", field))
                    if field in OF_PAGES:
                        assert reply.status == 403 and b"web page" in reply.body, (path, field)
                    else:
                        assert b"web page" not in reply.body, (path, field)
            num_asked = len(engine.received)
            for field in [*OF_PAGES, "Sec-Fetch-Site: none"]:
                assert (await it.ask(post("/v2/models/m/infer", b"{}", field))).status == 200
            assert (await it.ask(post("/v2/repository/index", b"{}", OF_PAGES[0]))).status == 200
            assert len(engine.received) > num_asked
        engine.stop()

    run(scene())
