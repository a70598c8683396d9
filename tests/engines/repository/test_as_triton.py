"""Loading and unloading on this repository and on a real Triton: the same states, statuses and texts."""

from tests.engines.repository.fakes import MODEL, PYTHON, ensemble
from tests.engines.repository.scenes import OK, Server

# A model that is complete in the request.
CONFIG = {
    "backend": "python",
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [3]}],
}
POLL_FAILED = "500 failed to load '{0}', failed to poll from model repository"
BROKEN = "version {} is at UNAVAILABLE state: Internal: ValueError: broken;"


def test_load_and_unload(server: Server) -> None:
    """A model that was never loaded has only a name in the index. An unloaded one has a reason, and the server stays
    ready."""
    server.write("plain")
    assert server.index() == ["plain"]
    assert server.status("plain") == "404 Request for unknown model: 'plain' is not found"
    assert server.load("plain") == OK
    assert server.index() == ["plain 1 READY"]
    assert server.status("plain", "1") == OK
    assert server.status("plain", "0") == "404 Request for unknown model: 'plain' version 0 is not found"
    assert server.unload("plain") == OK
    assert server.index() == ["plain 1 UNAVAILABLE unloaded"]
    assert server.status("plain") == "404 Request for unknown model: 'plain' has no available versions"
    assert server.status("plain", "1") == "503 Request for unknown model: 'plain' version 1 is not at ready state"
    assert server.status("plain", "9") == "404 Request for unknown model: 'plain' version 9 is not found"
    assert server.is_ready


def test_models_that_cannot_be_read(server: Server) -> None:
    """A load fails for an unknown model, one in two repositories, one with a wrong configuration or another name in
    it."""
    server.write("misspelt", 'backend: "python"\nmax_batch: 3')
    server.write("misnamed", 'name: "other"\n' + PYTHON)
    server.write("negative", PYTHON + "max_batch_size: -1")
    server.write_twice("twice")
    for name in ("nowhere", "misspelt", "misnamed", "negative", "twice"):
        assert server.load(name) == POLL_FAILED.format(name)
    twice = "twice UNAVAILABLE model appears in two or more repositories"
    assert server.index() == ["misnamed", "misspelt", "negative", twice]
    assert server.unload("nowhere") == OK


def test_a_model_that_fails(server: Server) -> None:
    """The failure is in the load's reply and in the index; a later load tries again."""
    version = server.write("fails") / "1"
    (version / "broken").touch()
    assert server.load("fails") == f"400 load failed for model 'fails': {BROKEN.format(1)}\n"
    assert server.index() == ["fails 1 UNAVAILABLE Internal: ValueError: broken"]
    assert not server.is_ready
    assert server.unload("fails") == OK
    assert server.index() == ["fails 1 UNAVAILABLE Internal: ValueError: broken"]
    (version / "broken").unlink()
    assert server.load("fails") == OK
    assert server.index() == ["fails 1 READY"]


def test_versions(server: Server) -> None:
    """A policy takes versions that are there; names that are no numbers, or have leading zeros, do not count."""
    server.write("latest", "version_policy { latest { num_versions: 1 } }" + PYTHON, ("2", "10", "03", "x"))
    server.write("every", "version_policy { all { } }" + PYTHON, ("1",))
    server.write("some", "version_policy { specific { versions: [ 1, 9 ] } }" + PYTHON, ("1", "2"))
    server.write("none", "version_policy { specific { versions: [ 9 ] } }" + PYTHON, ("1", "2"))
    server.write("empty", PYTHON, ())
    assert [server.load(name) for name in ("latest", "every", "some")] == [OK] * 3
    for name in ("none", "empty"):
        text = f"at least one version must be available under the version policy of model '{name}'"
        assert server.load(name) == f"400 load failed for model '{name}': {text}\n"
        assert server.status(name) == f"404 Request for unknown model: '{name}' has no available versions"
    assert server.index() == ["every 1 READY", "latest 10 READY", "some 1 READY"]
    assert not server.is_ready


def test_a_reload_that_fails(server: Server) -> None:
    """The previous version continues to serve, without a reason in the index. The next load tries again."""
    version = server.write("again") / "1"
    assert server.load("again") == OK
    (version / "broken").touch()
    for _ in range(2):
        assert server.load("again") == f"400 load failed for model 'again': {BROKEN.format(1)}\n"
        assert server.index() == ["again 1 READY"]
        assert server.status("again") == OK
    (version / "broken").unlink()
    assert server.load("again") == OK


def test_a_new_version(server: Server) -> None:
    """A new version replaces an older one when it is ready. If one version fails to load, none is replaced."""
    policy = "version_policy { latest { num_versions: 2 } }" + PYTHON
    directory = server.write("grows", policy, ("1", "2"))
    assert server.load("grows") == OK
    server.write("grows", policy, ("3",))
    (directory / "3" / "broken").touch()
    assert server.load("grows") == f"400 load failed for model 'grows': {BROKEN.format(3)}\n"
    failed = "grows 3 UNAVAILABLE Internal: ValueError: broken"
    assert server.index() == ["grows 1 READY", "grows 2 READY", failed]
    (directory / "3" / "broken").unlink()
    assert server.load("grows") == OK
    assert server.index() == ["grows 1 UNAVAILABLE unloaded", "grows 2 READY", "grows 3 READY"]


def test_a_model_that_is_removed(server: Server) -> None:
    """A removed model serves until it is unloaded, although the index no longer lists it."""
    server.write("gone")
    assert server.load("gone") == OK
    server.remove("gone")
    assert server.index() == []
    assert server.load("gone") == POLL_FAILED.format("gone")
    assert server.status("gone") == OK
    assert server.unload("gone") == OK
    assert server.status("gone") == "404 Request for unknown model: 'gone' has no available versions"


def test_a_configuration_in_the_request(server: Server) -> None:
    """The request's configuration stays in effect until the model is unloaded; a load without one keeps it."""
    server.write("changed")
    assert server.load("changed", CONFIG) == OK
    assert server.dims("changed") == [3]
    assert server.load("changed") == OK
    assert server.dims("changed") == [3]
    changed = {**CONFIG, "input": [{**CONFIG["input"][0], "dims": [4]}]}
    assert server.load("changed", changed) == OK
    assert server.dims("changed") == [4]
    assert server.unload("changed") == OK
    assert server.load("changed") == OK
    assert server.dims("changed") == [-1]


def test_a_configuration_in_the_request_that_is_wrong(server: Server) -> None:
    """A wrong configuration does not affect the serving version."""
    server.write("steady")
    assert server.load("steady") == OK
    for config in ("{", "", '{"bogus": 1}', '{"name": "other", "backend": "python"}'):
        assert server.load("steady", config) == POLL_FAILED.format("steady")
    assert server.index() == ["steady 1 READY"]


def test_files_in_the_request(server: Server) -> None:
    """The request's files form the whole model, whether or not the repository has one of that name. A load without
    files restores the repository's."""
    model = MODEL.encode()
    assert server.load("carried", CONFIG, **{"1__model.py": model}) == OK
    assert server.dims("carried") == [3]
    assert server.unload("carried") == OK
    assert server.load("carried") == POLL_FAILED.format("carried")
    server.write("replaced", PYTHON, ("1",))
    assert server.load("replaced", CONFIG, **{"5__model.py": model}) == OK
    assert server.index() == ["replaced 5 READY"]
    assert server.load("replaced") == OK
    assert server.index() == ["replaced 1 READY", "replaced 5 UNAVAILABLE unloaded"]
    assert server.dims("replaced") == [-1]


def test_files_in_the_request_that_are_wrong(server: Server) -> None:
    """Files without a configuration are refused, and paths that lead out of the model."""
    assert server.load("stray", None, **{"1__model.py": b""}) == POLL_FAILED.format("stray")
    assert server.load("stray", CONFIG, **{"..__..__x": b""}) == POLL_FAILED.format("stray")


def test_an_ensemble_brings_its_models(server: Server) -> None:
    """An ensemble's models are loaded with it. They are unloaded with it on request unless something else needs
    them."""
    server.write("first")
    server.write("second")
    server.write("chain", ensemble("first", "second"))
    assert server.load("second") == OK
    assert server.load("chain") == OK
    assert server.index() == ["chain 1 READY", "first 1 READY", "second 1 READY"]
    assert server.unload("chain") == OK
    gone = "chain 1 UNAVAILABLE unloaded"
    assert server.index() == [gone, "first 1 READY", "second 1 READY"]
    assert server.load("chain") == OK
    assert server.unload("chain", unload_dependents=True) == OK
    assert server.index() == [gone, "first 1 UNAVAILABLE unloaded", "second 1 READY"]


def test_an_ensemble_goes_with_its_models(server: Server) -> None:
    """An ensemble is unloaded and loaded together with its model."""
    server.write("base")
    server.write("over", ensemble("base"))
    assert server.load("over") == OK
    assert server.unload("base") == OK
    assert server.index() == ["base 1 UNAVAILABLE unloaded", "over 1 UNAVAILABLE unloaded"]
    assert server.load("base") == OK
    assert server.index() == ["base 1 READY", "over 1 READY"]


def test_an_ensemble_whose_models_do_not_serve(server: Server) -> None:
    """An ensemble fails to load if a model is missing, fails, lacks a version or does not fit, or if ensembles form a
    cycle."""
    needs = {"lacking": "missing", "failing": "faulty", "strict": "sound", "typed": "sound"}
    (server.write("faulty") / "1" / "broken").touch()
    server.write("sound")
    for name, needed in needs.items():
        server.write(name, ensemble(needed))
    server.write("strict", ensemble("sound").replace("model_version: -1", "model_version: 7"))
    server.write("typed", ensemble("sound").replace("TYPE_FP32", "TYPE_BOOL", 1))
    server.write("round", ensemble("about"))
    server.write("about", ensemble("round"))
    for name, reason in (
        ("lacking", "ensemble lacking contains models that are not available or ambiguous: missing"),
        (
            "failing",
            "ensemble 'failing' depends on 'faulty' which has no loaded version. Model 'faulty' loading failed with "
            "error: " + BROKEN.format(1),
        ),
        ("strict", "ensemble 'strict' depends on 'sound' whose required version 7 is not loaded."),
        (
            "typed",
            "in ensemble typed, ensemble tensor x: inconsistent data type: TYPE_BOOL is inferred from model typed "
            "while TYPE_FP32 is inferred from model sound",
        ),
        ("round", "circular dependency between ensembles: round -> ... -> about -> round"),
    ):
        assert server.load(name) == f"400 load failed for model '{name}': {reason}\n"
    assert server.load("round") == "500 failed to load 'round', no version is available"
    failed = "faulty 1 UNAVAILABLE Internal: ValueError: broken"
    assert server.index() == ["about", "failing", failed, "lacking", "round", "sound 1 READY", "strict", "typed"]


def test_what_is_wrong_in_a_model_itself(server: Server) -> None:
    """Instance groups, labels and dims are checked when the model loads."""
    labels = server.write("unlabelled", PYTHON.replace('name: "y"', 'name: "y", label_filename: "no.txt"'))
    server.write("sizeless", 'backend: "python" input [ { name: "x", data_type: TYPE_FP32, dims: [ 0 ] } ]')
    server.write("pinned", "instance_group [ { kind: KIND_CPU, gpus: [ 0 ] } ]" + PYTHON)
    for name, reason in (
        (
            "unlabelled",
            f"Internal: failed to open text file for read {labels}/no.txt: No such file or directory",
        ),
        (
            "sizeless",
            "Invalid argument: model input 'x' dimension must be integer >= 1, or -1 to indicate a variable-size "
            "dimension for sizeless",
        ),
        (
            "pinned",
            "Invalid argument: instance group pinned_0 of model pinned has kind KIND_CPU but specifies one or "
            "more GPUs",
        ),
    ):
        assert (
            server.load(name) == f"400 load failed for model '{name}': version 1 is at UNAVAILABLE state: {reason};\n"
        )
    assert len(server.index()) == 3


def test_a_model_without_a_configuration(server: Server) -> None:
    """Its backend follows from its files."""
    server.write("bare", None)
    assert server.load("bare") == OK
    assert server.index() == ["bare 1 READY"]
