"""Merging the replies of several servers."""

from copy import deepcopy

from gateway.protocol.merge_replies import merge_index, merge_regions, merge_statistics


def test_statistics_add_up() -> None:
    """Counts and times of the same model and version are summed at every depth; batch sizes are joined by size."""
    one = {
        "name": "m",
        "version": "1",
        "last_inference": 5,
        "inference_count": 1,
        "inference_stats": {"success": {"count": 1, "ns": 10}},
        "response_stats": {},
        "batch_stats": [{"batch_size": 1, "compute_infer": {"count": 1, "ns": 4}}],
        "memory_usage": [],
    }
    other = {
        **one,
        "last_inference": 3,
        "response_stats": {"0": {"success": {"count": 2, "ns": 2}}},
        "batch_stats": [
            {"batch_size": 2, "compute_infer": {"count": 1, "ns": 1}},
            {"batch_size": 1, "compute_infer": {"count": 2, "ns": 6}},
        ],
    }
    second = {**one, "version": "2"}
    merged = merge_statistics([{"model_stats": [one]}, {"model_stats": [other, second]}])["model_stats"]
    assert [model["version"] for model in merged] == ["1", "2"]
    assert merged[0] == {
        "name": "m",
        "version": "1",
        "last_inference": 5,
        "inference_count": 2,
        "inference_stats": {"success": {"count": 2, "ns": 20}},
        "response_stats": {"0": {"success": {"count": 2, "ns": 2}}},
        "batch_stats": [
            {"batch_size": 1, "compute_infer": {"count": 3, "ns": 10}},
            {"batch_size": 2, "compute_infer": {"count": 1, "ns": 1}},
        ],
        "memory_usage": [],
    }
    assert merged[1] == second


def test_indexes_and_regions_are_joined() -> None:
    """Each model version is listed once, ready if any server has it ready; each memory region is listed once."""
    loading = {"name": "b", "version": "1", "state": "LOADING"}
    ready = {"name": "b", "version": "1", "state": "READY"}
    unloaded = {"name": "a", "state": "UNAVAILABLE"}
    assert merge_index([[loading, unloaded], [ready], [loading]]) == [unloaded, ready]
    region = {"name": "r", "key": "/k", "offset": 0, "byte_size": 1}
    assert merge_regions([[region], [region, {"name": "q"}]]) == [{"name": "q"}, region]


def test_what_servers_leave_out() -> None:
    """Fields that only some servers report are kept, and missing ones are no error."""
    old = {"name": "m", "version": "1", "inference_count": 1}
    new = {
        "name": "m",
        "version": "1",
        "inference_count": 2,
        "last_inference": 7,
        "batch_stats": [{"batch_size": 4, "compute_infer": {"count": 1, "ns": 2}}],
        "memory_usage": [{"type": "GPU", "id": 0, "byte_size": 10}],
        "response_stats": None,
    }
    for answers in ([old, new], [new, old]):
        assert merge_statistics({"model_stats": [answer]} for answer in answers)["model_stats"] == [
            {**new, "inference_count": 3}
        ]
    assert merge_statistics([{}, {"model_stats": []}]) == {"model_stats": []}
    assert merge_statistics([]) == {"model_stats": []}


def test_memory_of_all_servers_is_listed() -> None:
    """Memory use is listed for each server, not summed."""
    one = {"name": "m", "version": "1", "memory_usage": [{"type": "GPU", "id": 0, "byte_size": 10}]}
    other = {"name": "m", "version": "1", "memory_usage": [{"type": "GPU", "id": 0, "byte_size": 20}]}
    (merged,) = merge_statistics([{"model_stats": [one]}, {"model_stats": [other]}])["model_stats"]
    assert [usage["byte_size"] for usage in merged["memory_usage"]] == [10, 20]


def test_merging_changes_no_answer() -> None:
    """Merging does not modify its inputs."""
    one = {"name": "m", "version": "1", "inference_count": 1, "batch_stats": [{"batch_size": 1, "n": 1}]}
    answers = [{"model_stats": [one]}, {"model_stats": [dict(one)]}]
    before = deepcopy(answers)
    merge_statistics(answers)
    assert answers == before


def test_entries_of_another_shape_are_left_out() -> None:
    """What is no object in one server's list hides nothing of the others."""
    ready = {"name": "m", "version": "1", "state": "READY"}
    assert merge_index([[1, None, "x"], [ready]]) == [ready]  # type: ignore[list-item]
    assert merge_statistics([{"model_stats": None}, {"model_stats": [3, ready]}]) == {"model_stats": [ready]}
    assert merge_regions([[None], [ready]]) == [ready]  # type: ignore[list-item]
